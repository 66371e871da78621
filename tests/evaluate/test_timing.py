"""Rounds in which a sample was disturbed do not count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat

import pytest
import torch

from kernelwright.evaluate.buffers import Buffers
from kernelwright.evaluate.timing import PATIENCE, Entrant, Limits, measure
from kernelwright.problems import problem_of, resolve
from kernelwright.targets import target
from kernelwright.targets.target import Contender

W = resolve("gemm:8x8x8:fp32")
NAN = math.nan


class Scripted(Contender):
    """Always right; its samples are given."""

    def __init__(self, buffers: Buffers, samples: Iterator[float]):
        self.buffers, self.samples, self.runs = buffers, samples, 0

    def run(self, index: int = 0) -> None:
        self.runs += 1
        inputs = self.buffers.inputs(index)
        self.buffers.outputs(index)["c"].copy_(inputs["a"] @ inputs["b"])

    def estimate(self, mode: str) -> float:
        return 100.0

    def sample(self, mode: str, launches: int, fresh=None) -> tuple[float, int]:
        self.run(0)
        value = next(self.samples)
        return value, launches if math.isnan(value) else 0


class Rival(Scripted):
    in_place = False

    def sample(self, mode: str, launches: int, fresh=None) -> tuple[float, int]:
        value = next(self.samples)
        return value, launches if math.isnan(value) else 0


@pytest.fixture
def run():
    device = target("fake").open()
    problem = problem_of(W)
    buffers = Buffers(device, problem, W)

    def go(own: Iterator[float], rival: Iterator[float], kinds=(Scripted, Rival), **limits):
        mine, theirs = (kind(buffers, samples) for kind, samples in zip(kinds, (own, rival), strict=True))
        given = Limits(**{"min_rounds": 3, "max_rounds": 5, "seconds": 0.0, "tolerance": 0.0, "noise": False, **limits})
        entrants = [Entrant("own", mine, False), Entrant("eager", theirs, True)]
        rng = torch.Generator()
        found = measure(problem, W, buffers, entrants, "device-warm", given, device.peaks(), rng, "cpu", lambda label, doing: None)
        return *found, mine, theirs

    return go


def test_disturbed_rounds_are_repeated_until_a_ratio_can_be_told(run):
    timings, comparisons, _, _ = run(chain([NAN, 5.0, 5.0, NAN], repeat(5.0)), chain([10.0, NAN], repeat(10.0)))
    assert len(timings["own"].samples) == 4 and timings["own"].dropped > 0
    found = comparisons["own", "eager"]
    assert (found.ratio, found.rounds) == (2.0, 3)


def test_a_machine_that_never_rests_ends_the_sampling(run):
    timings, comparisons, own, _ = run(repeat(5.0), repeat(NAN))
    assert "eager" not in timings and not comparisons
    assert own.runs == PATIENCE * 3  # time is up at once, so the smallest number of rounds, four times


def test_clean_rounds_end_at_the_time_limit_or_at_the_round_limit(run):
    timings, *_ = run(chain([5.0, 6.0] * 9), repeat(10.0))
    assert (len(timings["own"].samples), timings["own"].stopped) == (3, "time limit")
    timings, *_ = run(chain([5.0, 6.0] * 9), repeat(10.0), seconds=60.0)
    assert (len(timings["own"].samples), timings["own"].stopped) == (5, "round limit")
    timings, *_ = run(repeat(5.0), repeat(10.0), seconds=60.0, tolerance=0.01)
    assert (len(timings["own"].samples), timings["own"].stopped) == (3, "converged")


def test_a_rival_is_checked_in_its_first_round_only(run):
    *_, own, rival = run(repeat(5.0), repeat(10.0))
    assert (own.runs, rival.runs) == (3, 1)


def test_rivals_are_asked_as_python_candidates_are(run):
    for apart in (True, False):
        own, rival = (type(f"{kind.__name__}Here", (kind,), {"apart": mine}) for kind, mine in ((Scripted, apart), (Rival, not apart)))
        *_, theirs = run(repeat(5.0), repeat(10.0), kinds=(own, rival))
        assert theirs.apart is apart
