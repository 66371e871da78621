from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_family import BEST, DEVICE, Toy, W, judged

from kernelwright.propose import NAMES, MissingExtra, Proposer, make, proposers, score
from kernelwright.propose.configs import SearchSpace
from kernelwright.records import Candidate, Origin, Outcome, Trial, Verdict

SEARCHES = ("evolve", "random", "tpe")
"""Those that choose among configs."""
every = pytest.mark.parametrize("name", SEARCHES)
BUDGET = {"random": 150, "evolve": 150, "tpe": 50}  # Optuna takes 50 ms for a suggestion
LEGAL = sum(1 for _ in SearchSpace(W, [Toy()], DEVICE).points())


def search(proposer: Proposer, trials: int, batch: int = 4, wrong: float = 0.0) -> list[Trial]:
    """Runs the loop on the toy landscape."""
    toys = {f.name: f for f in proposer.families if isinstance(f, Toy)}
    rng, done = random.Random(0), []
    while len(done) < trials and (proposed := proposer.propose(min(batch, trials - len(done)))):
        for candidate in proposed:
            ratio = toys[candidate.origin.name].ratio(candidate.origin.config)
            done.append(judged(candidate, 0.0 if rng.random() < wrong else ratio))
            proposer.learn(done[-1])
    return done


def best(trials: list[Trial]) -> float:
    return max(map(score, trials), default=-math.inf)


def test_registry():
    assert set(proposers()) == set(NAMES) == {*SEARCHES, "llm", "mix", "policy"}
    assert all(cls.name == name for name, cls in proposers().items())
    with pytest.raises(ValueError, match="unknown proposer 'magic'; choose one of evolve, llm, mix, policy, random, tpe"):
        make("magic", W, [Toy()], DEVICE)


@every
def test_seeds_come_first_and_origin_tells_everything(name):
    toy = Toy()
    first = make(name, W, [toy], DEVICE).propose(3)
    assert [c.origin.config for c in first[:2]] == list(toy.seeds(W, DEVICE))
    for candidate in first:
        assert (candidate.origin.kind, candidate.origin.name, candidate.origin.proposer) == ("family", "toy", name)
        assert toy.render(dict(candidate.origin.config), W, DEVICE).id == candidate.id  # type: ignore[arg-type]


@every
def test_history_of_an_older_family_is_no_point_and_no_harm(name):
    """A choice that the Family no longer has."""
    toy = Toy()
    old = [toy.render(c, W, DEVICE) for c in toy.seeds(W, DEVICE)]
    old = [c.replace(source=c.source + " ", origin=toy.origin({**c.origin.config, "gone": True})) for c in old]
    proposer = make(name, W, [toy], DEVICE, history=[judged(c, 2.0) for c in old])
    assert all(proposer.space.point("toy", dict(c.origin.config)) is None for c in old)  # type: ignore[attr-defined]
    assert [c.origin.config for c in proposer.propose(2)] == list(toy.seeds(W, DEVICE))[:2]


@every
def test_no_duplicates_and_nothing_illegal(name):
    toy = Toy()  # its render() refuses illegal configs
    trials = search(make(name, W, [toy], DEVICE, seed=3), BUDGET[name], wrong=0.3)
    ids = [t.candidate.id for t in trials]
    assert len(ids) == len(set(ids)) == BUDGET[name]


@every
def test_the_same_seed_proposes_the_same(name):
    runs = [[t.candidate.id for t in search(make(name, W, [Toy()], DEVICE, seed), 30)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@every
def test_a_small_space_is_exhausted_exactly(name):
    small = Toy(small=True)
    legal = {small.render(SearchSpace(W, [small], DEVICE).config(p), W, DEVICE).id for p in SearchSpace(W, [small], DEVICE).points()}
    proposer = make(name, W, [small], DEVICE)
    trials = search(proposer, 10_000, batch=50)
    assert {t.candidate.id for t in trials} == legal and len(trials) == len(legal)
    assert proposer.propose(5) == []


@every
def test_no_family_means_no_candidate(name):
    assert make(name, W, [], DEVICE).propose(3) == []


@every
def test_resume_proposes_nothing_again_and_goes_on_from_what_was_learnt(name):
    before = search(make(name, W, [Toy()], DEVICE, seed=0), BUDGET[name] // 2)
    resumed = make(name, W, [Toy()], DEVICE, seed=2, history=before)
    assert resumed.tried == {t.candidate.id for t in before}
    after = search(resumed, BUDGET[name] // 2)
    assert not {t.candidate.id for t in after} & {t.candidate.id for t in before}
    if name != "random":  # what follows at once is better than what a search without history begins with
        begun = search(make(name, W, [Toy()], DEVICE, seed=2), 20)
        assert sum(map(score, after[:20])) > 1.3 * sum(map(score, begun))


@pytest.mark.parametrize("name", ["evolve", "tpe"])
def test_guided_search_finds_the_optimum_in_a_fraction_of_the_space(name):
    assert LEGAL > 3000
    found = [best(search(make(name, W, [Toy()], DEVICE, seed), 120)) for seed in range(3)]
    blind = [best(search(make("random", W, [Toy()], DEVICE, seed), 120)) for seed in range(3)]
    assert max(found) == 4.0, "the optimum itself, in 3 % of the space"
    assert min(found) >= 2.0, "at most one step away from it"
    assert min(found) > max(blind)


@pytest.mark.parametrize("name", ["evolve", "tpe"])
def test_wrong_candidates_do_not_attract_the_search(name):
    """Half of the space fails: everything with vector = True, the optimum included."""
    proposer, trials = make(name, W, [toy := Toy()], DEVICE, seed=1), []
    while len(trials) < 80:
        for candidate in proposer.propose(4):
            config = candidate.origin.config
            trials.append(judged(candidate, 0.0 if config["vector"] is True else toy.ratio(config)))
            proposer.learn(trials[-1])
    late = trials[40:]
    assert sum(not t.verdict.ok for t in late) < len(late) * 0.4
    assert best(trials) > best(search(make("random", W, [Toy()], DEVICE, seed=1), 80)) * 0.9


@pytest.mark.parametrize("name", ["evolve", "tpe"])
def test_the_better_of_two_families_gets_more_trials(name):
    families = [Toy("slow", factor=0.3), Toy("fast")]
    trials = search(make(name, W, families, DEVICE, seed=1), 80)
    late = [t.candidate.origin.name for t in trials[40:]]
    assert late.count("fast") > 25 and {t.candidate.origin.name for t in trials} == {"slow", "fast"}


def test_evolve_names_parents_that_exist():
    trials = search(make("evolve", W, [Toy()], DEVICE, seed=1), 100)
    ids = {t.candidate.id for t in trials}
    children = [t for t in trials if t.candidate.origin.parents]
    assert len(children) > 50 and all(set(t.candidate.origin.parents) <= ids for t in children)


def test_evolve_starts_again_when_stuck():
    """A flat landscape with the optimum hidden far away: uniform draws must go on coming."""
    proposer = make("evolve", W, [Toy()], DEVICE, seed=1)
    orphans = 0
    for _ in range(60):
        for candidate in proposer.propose(4):
            orphans += not candidate.origin.parents
            proposer.learn(judged(candidate, 1.0))
    assert orphans > 0.15 * 240


@every
def test_a_batch_may_be_asked_for_before_the_last_is_learnt(name):
    proposer = make(name, W, [toy := Toy()], DEVICE)
    batches = [proposer.propose(5) for _ in range(4)]
    assert len({c.id for batch in batches for c in batch}) == 20
    for candidate in batches[1] + batches[0]:
        proposer.learn(judged(candidate, toy.ratio(candidate.origin.config)))
    assert len(proposer.propose(5)) == 5


@every
def test_foreign_history_is_passed_over(name):
    mine = make(name, W, [Toy()], DEVICE)
    candidate = Toy().render(BEST, W, DEVICE)
    other_w = W.replace(axes={"M": 65})
    mine.learn(judged(candidate, 4.0, workload=other_w))
    mine.learn(judged(candidate, 4.0, environment=judged(candidate, 1.0).environment.replace(target="cpu")))
    assert not mine.tried and not mine.scores
    # a candidate of no family, or of a config that is no longer in the space, counts as tried and is no parent
    mine.learn(judged(Candidate(kind="fake", source="x", origin=Origin(kind="llm", name="m")), 9.0))
    mine.learn(judged(candidate.replace(source="old", origin=Origin(kind="family", name="toy", config={"bm": 7})), 9.0))
    assert len(mine.tried) == 2 and len(search(mine, 40)) == 40


@every
def test_configs_that_render_alike_are_proposed_once(name):
    class Same(Toy):
        def render(self, config, w, device):
            return super().render({**config, "split": 1}, w, device)

    trials = search(make(name, W, [Same(small=True)], DEVICE), 10_000, batch=20)
    assert len({t.candidate.id for t in trials}) == len(trials) == 9 * 2


def test_a_confirmation_beside_many_rivals_scores_by_the_anchor():
    """A search that is resumed learns what a fresh process measured of a jump: a slow rival there must not count as a gain."""
    confirmed = judged(Toy().render(BEST, W, DEVICE), 2.0, stage="confirm")
    (anchor,) = confirmed.comparisons
    slow = anchor.replace(rival="slow", ratio=40.0, low=39.0, high=41.0)
    assert score(confirmed.replace(comparisons=(anchor, slow))) == 2.0


def test_score_and_later_stages():
    candidate = Toy().render(BEST, W, DEVICE)
    screened = judged(candidate, 2.0)
    assert score(screened) == 2.0 and score(judged(candidate, 0.0)) == -math.inf
    assert score(judged(candidate, 2.0, comparisons=())) == -math.inf
    proposer = make("random", W, [Toy()], DEVICE, history=[screened])
    proposer.learn(judged(candidate, 9.0, stage="confirm"))
    assert proposer.scores == {candidate.id: 2.0}, "confirm compares with other rivals"
    proposer.learn(screened.replace(verdict=Verdict(outcome=Outcome.NOISY), timings=(), comparisons=(), stage="confirm"))
    assert proposer.scores == {candidate.id: 2.0}, "noise says nothing"
    proposer.learn(judged(candidate, 0.0, stage="confirm"))
    assert proposer.scores == {candidate.id: -math.inf}


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["random", "evolve"]), st.integers(0, 2**32), st.lists(st.integers(0, 9), max_size=12))
def test_any_order_of_batches_keeps_the_promises(name, seed, batches):
    proposer = make(name, W, [toy := Toy()], DEVICE, seed)
    seen: list[str] = []
    for n in batches:
        batch = proposer.propose(n)
        assert len(batch) == n
        seen += [c.id for c in batch]
        for candidate in batch[::2]:
            proposer.learn(judged(candidate, toy.ratio(candidate.origin.config)))
    assert len(seen) == len(set(seen))


def test_a_large_space_is_searched_without_listing_it():
    class Huge(Toy):
        def space(self, w, device):
            return {**super().space(w, device), **{f"x{i}": tuple(range(10)) for i in range(12)}}

        def seeds(self, w, device):
            return ()

    assert len(search(make("evolve", W, [Huge()], DEVICE), 60)) == 60


def test_a_missing_extra_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r'pip install "kernelwright\[search\]"'):
        make("tpe", W, [Toy()], DEVICE)


def test_import_is_light():
    code = "import sys, kernelwright.propose as p; p.proposers(); assert not {'torch', 'optuna', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
