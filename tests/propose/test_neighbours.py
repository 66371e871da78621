"""The search led by neighbours: order, priors, and what is proposed first."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_family import BEST, DEVICE, Toy, W, judged

from kernelwright.problems.suites import suite
from kernelwright.propose.configs import SearchSpace
from kernelwright.propose.neighbours import HOPELESS, UNTRIED, Knowledge, Neighbours, distance, in_order, key_of
from kernelwright.records import Workload

SIZES = st.sampled_from([0, 1, 16, 64, 100, 4096])
GEMM = st.builds(
    lambda m, n, k, dtype, layout: Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout),
    SIZES, SIZES, SIZES, st.sampled_from(["fp16", "bf16"]), st.sampled_from(["nn", "nt"]),
)  # fmt: skip
CONFIG = {**BEST, "bm": 64}


def near(m: int) -> Workload:
    return W.replace(axes={"M": m})


@given(GEMM, GEMM, GEMM)
def test_distance_is_a_metric_inside_a_kind(a, b, c):
    assert distance(a, a) == 0 and distance(a, b) == distance(b, a)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9 or math.isnan(distance(a, c))
    assert math.isinf(distance(a, b)) == (a.dtype != b.dtype)


@given(st.lists(GEMM, max_size=12))
def test_order_keeps_every_workload_once_and_grows(workloads):
    path = in_order(workloads)
    assert set(path) == set(workloads) and len(path) == len(set(workloads))
    for kind in {(w.dtype, w.layout) for w in path}:
        sizes = [round(sum(math.log2(max(n, 1)) for n in w.axes.values())) for w in path if (w.dtype, w.layout) == kind]
        assert sizes == sorted(sizes)


def test_the_thousand_products_follow_each_other():
    path = in_order(suite("hgemm-1000"))
    assert tuple(path[0].axes.values()) == (64, 64, 64) and min(path[-1].axes.values()) >= 12288
    steps = sorted(distance(a, b) for a, b in pairwise(path))
    assert steps[len(steps) // 2] < 1.5 and steps[int(0.95 * len(steps))] < 6


def test_priors_are_shares_of_the_best_over_the_neighbours():
    toy, knowledge = Toy(), Knowledge()
    space = SearchSpace(W, [toy], DEVICE)
    assert knowledge.priors(space) == {} and knowledge.winners(W) == []
    configs = (BEST, CONFIG, {**BEST, "split": 8})
    good, poor, broken = (toy.render(c, W, DEVICE) for c in configs)
    for m, scores in ((128, (2.0, 1.0, -math.inf)), (256, (8.0, 6.0, 2.0))):
        for candidate, score in zip((good, poor, broken), scores, strict=True):
            knowledge.learn(near(m), candidate, score)
    knowledge.learn(W.replace(dtype="fp16"), poor, 100.0)  # of another kind
    priors = knowledge.priors(space)
    assert [priors[space.point("toy", c)] for c in configs] == pytest.approx([1.0, 0.625, 0.125]) and len(priors) == 3
    assert knowledge.near(W) == [near(128), near(256)] and knowledge.near(near(128))[0] == near(256)
    assert knowledge.winners(W) == [key_of("toy", BEST)]


def test_the_winner_next_door_comes_first_and_hopeless_seeds_never():
    toy, knowledge = Toy(), Knowledge()
    seed = toy.seeds(W, DEVICE)[0]
    for config, score in ((BEST, 4.0), (CONFIG, 4.0 * (UNTRIED + 0.05)), (seed, 4.0 * (HOPELESS - 0.1))):
        knowledge.learn(near(128), toy.render(config, W, DEVICE), score)
    proposer = Neighbours(W, [toy], DEVICE, knowledge)
    first = [c.origin.config for c in proposer.propose(3)]
    assert first == [BEST, CONFIG, toy.seeds(W, DEVICE)[1]]
    for candidate in proposer.propose(8):
        assert candidate.origin.proposer == "neighbours" and candidate.origin.config != seed


def test_what_neighbours_learn_between_batches_is_used():
    toy, knowledge = Toy(), Knowledge()
    proposer = Neighbours(W, [toy], DEVICE, knowledge)
    assert [c.origin.config for c in proposer.propose(2)] == list(toy.seeds(W, DEVICE))
    knowledge.learn(near(32), toy.render(BEST, W, DEVICE), 4.0)
    assert proposer.propose(1)[0].origin.config == BEST


def test_illegal_here_is_not_proposed():
    knowledge, big = Knowledge(), {**BEST, "bm": 256, "bn": 256, "stages": 8}
    candidate = Toy().render(BEST, W, DEVICE)
    knowledge.learn(near(32), candidate.replace(origin=candidate.origin.replace(config=big)), 9.0)
    knowledge.learn(near(32), candidate.replace(origin=candidate.origin.replace(name="gone")), 9.0)
    assert [c.origin.config for c in Neighbours(W, [Toy()], DEVICE, knowledge).propose(2)] == list(Toy().seeds(W, DEVICE))


def test_children_of_the_best_from_the_first_and_an_exact_end():
    toy = Toy(small=True, seeds=1)
    proposer, seen = Neighbours(W, [toy], DEVICE, Knowledge(), seed=1), []
    while batch := proposer.propose(4):
        for candidate in batch:
            seen.append(candidate.id)
            proposer.learn(judged(candidate, toy.ratio(candidate.origin.config)))
    assert len(seen) == len(set(seen)) == 36


def test_the_same_product_in_another_layout_is_the_nearest():
    w = suite("hgemm-1000")[345]
    nt, larger = w.replace(layout="nt"), w.replace(axes={**w.axes, "K": 2 * w.axes["K"]})
    assert 0 < distance(w, nt) < distance(w, w.replace(layout="tt")) < distance(w, larger)


class Estimating(Toy):
    """BEST fills the device on the neighbours, and leaves most of it idle on W."""

    def estimate(self, config, w, device):
        return 4.0 if config == BEST and w == W else 1.0


def test_a_winner_that_the_estimates_do_not_carry_over_is_not_tried_first():
    toy, knowledge = Estimating(), Knowledge()
    for config, score in ((BEST, 4.0), (CONFIG, 3.5)):
        knowledge.learn(near(128), toy.render(config, W, DEVICE), score)
    assert [c.origin.config for c in Neighbours(W, [toy], DEVICE, knowledge).propose(1)] == [toy.seeds(W, DEVICE)[0]]
    assert Neighbours(near(256), [toy], DEVICE, knowledge).propose(1)[0].origin.config == BEST


class Modelled(Toy):
    def __init__(self, name: str, says: float):
        super().__init__(name)
        self.says = says

    def estimate(self, config, w, device):
        return self.says


def test_a_model_that_promises_too_much_does_not_keep_the_others_out():
    promising, sober, knowledge = Modelled("promising", 1.0), Modelled("sober", 2.0), Knowledge()
    families = [promising, sober]
    assert {c.origin.name for c in Neighbours(W, families, DEVICE, knowledge).propose(2)} == {"promising"}, "by the estimates alone"
    for m in (128, 256):
        knowledge.learn(near(m), promising.render(CONFIG, W, DEVICE), 1.0, microseconds=10.0)
    space = SearchSpace(W, families, DEVICE)
    assert knowledge.bias(space, "promising") == pytest.approx(10.0) and knowledge.bias(space, "sober") == 1.0
    seeds = [c.origin.name for c in Neighbours(W, families, DEVICE, knowledge).propose(3)]
    assert seeds[1:] == ["sober", "sober"], "after the neighbours' winner"
    knowledge.learn(W, sober.render(CONFIG, W, DEVICE), 1.0, microseconds=40.0)
    assert knowledge.bias(space, "sober") == pytest.approx(20.0), "what was measured here counts before the neighbours"
