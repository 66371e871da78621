"""No timed launch meets inputs that an earlier one has met; what is done in a timed round only is found there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from kernelwright.evaluate.buffers import Buffers, Shape
from kernelwright.evaluate.timing import Entrant, Limits, measure
from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Outcome
from kernelwright.targets import target
from kernelwright.targets.target import Contender

W = resolve("gemm:24x16x32:fp32")
PROBLEM = problem_of(W)


@pytest.mark.parametrize("text", ["gemm:24x16x32:fp16", "gemm:1x16x32:fp32", "gemm:8x8x8:bf16:tt", "chain:softmax:9x33"])
def test_altered_inputs_have_the_same_values_and_make_every_old_row_wrong(text: str) -> None:
    w = resolve(text)
    problem = problem_of(w)
    buffers = Buffers(target("fake").open(), problem, w, sets=3, shape=Shape(pad=3))
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    for index in range(3):
        buffers.fill(problem.generate(w, case, torch.Generator(), "cpu"), index)
    old = [{k: t.clone() for k, t in buffers.inputs(index).items()} for index in range(3)]
    assert buffers.alter(random.Random(1))
    for index in range(3):
        new = buffers.inputs(index)
        assert all(torch.equal(new[k].flatten().sort()[0], t.flatten().sort()[0]) for k, t in old[index].items())
        ((name, kept),), ((_, now),) = (problem.reference(w, inputs).items() for inputs in (old[index], new))
        assert ((kept - now).abs() > 1e-4).any(dim=-1).all(), "no row of an old result is a row of the new one"
        stale = {name: kept.to(buffers.outputs(index)[name].dtype)}
        assert not compare(problem, w, expect(problem, w, new), stale).passed
        assert buffers.disturbed(index) is None, "the padding between rows is left alone"


class Product(Contender):
    """Right; `trick(buffers, sample)` may spoil it after the launches of a sample, or of a run (sample 0)."""

    spread = True

    def __init__(self, buffers: Buffers, trick: Callable[[Buffers, int], None] = lambda buffers, sample: None):
        self.buffers, self.trick, self.samples, self.met = buffers, trick, 0, []
        self.cold_launches = len(buffers)

    def run(self, index: int = 0) -> None:
        inputs = self.buffers.inputs(index)
        self.met.append(tuple(inputs["a"].flatten().tolist()))
        self.buffers.outputs(index)["c"].copy_(inputs["a"] @ inputs["b"])
        if self.samples == 0:
            self.trick(self.buffers, 0)

    def estimate(self, mode: str) -> float:
        return 10.0

    def sample(self, mode: str, launches: int, fresh=None) -> tuple[float, int]:
        self.samples += 1
        for index in range(launches):
            self.run(index)
        self.trick(self.buffers, self.samples)
        return 10.0, 0


def measured(
    trick: Callable[[Buffers, int], None] = lambda buffers, sample: None, sets: int = 4, rounds: int = 4
) -> tuple[Entrant, Product]:
    device = target("fake").open()
    buffers = Buffers(device, PROBLEM, W, sets=sets)
    own = Product(buffers, trick)
    entrant = Entrant("own", own, False)
    limits = Limits(rounds, rounds, 60.0, 0.0, noise=True)
    measure(PROBLEM, W, buffers, [entrant], "device-cold", limits, device.peaks(), torch.Generator(), "cpu", lambda label, doing: None)
    return entrant, own


def test_a_right_contender_meets_no_inputs_twice() -> None:
    entrant, own = measured()
    assert entrant.fault is None and len(entrant.samples) == 4
    assert len(own.met) >= 2 * 4 * 4, "two samples a round, on four sets each, and launches that are looked at alone"
    assert len(set(own.met)) == len(own.met)


def test_no_inputs_are_a_column_away_from_those_that_the_contender_has_met() -> None:
    _, own = measured()
    values = [torch.tensor(one) for one in own.met]
    shared = [float((a == b).float().mean()) for i, a in enumerate(values) for b in values[:i]]
    assert max(shared) < 0.5, "else its result could be brought up to date by the difference"


def zeroed(buffers: Buffers, sample: int) -> None:
    for index in range(len(buffers)) if sample >= 3 else ():
        for t in (*buffers.inputs(index).values(), *buffers.outputs(index).values()):
            t.zero_()


def changed(buffers: Buffers, sample: int) -> None:
    for index in range(len(buffers)) if sample >= 3 else ():
        buffers.inputs(index)["b"][0, 0] += 1


def beyond(buffers: Buffers, sample: int) -> None:
    if sample >= 3:
        buffers.flat[100 :: buffers.set_bytes] = 0


def neglected(buffers: Buffers, sample: int) -> None:
    for index in range(len(buffers)) if sample >= 3 else ():
        buffers.outputs(index)["c"][5, 5] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)


def others(buffers: Buffers, sample: int) -> None:
    if sample == 0:
        for index in range(len(buffers)):
            inputs = buffers.inputs(index)
            buffers.outputs(index)["c"].copy_(inputs["a"] @ inputs["b"])


@pytest.mark.parametrize(
    ("trick", "outcome", "words"),
    [
        (zeroed, Outcome.WRONG_RESULT, "wrong"),
        (changed, Outcome.INPUT_MUTATED, "input b"),
        (beyond, Outcome.OUT_OF_BOUNDS, "from the start of a"),
        (neglected, Outcome.WRONG_RESULT, "elements hold the poison"),
    ],
)
def test_what_is_done_in_a_timed_round_only_is_found_there(trick, outcome: Outcome, words: str) -> None:
    entrant, _ = measured(trick)
    assert entrant.fault is not None and entrant.fault.outcome is outcome
    assert "device-cold" in entrant.fault.evidence and words in entrant.fault.evidence


def test_a_launch_that_does_the_work_of_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.evaluate.timing._Spot.coin", lambda self: True)
    entrant, _ = measured(others)
    assert entrant.fault is not None and entrant.fault.outcome is Outcome.CHEAT
    assert "work of several" in entrant.fault.evidence
