"""The ladder: what it does when a device is lost on the way."""

from __future__ import annotations

import pytest
import torch

from kernelwright.evaluate.jobs import Entry, Job
from kernelwright.evaluate.judge import Judge
from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Candidate, Origin, Outcome
from kernelwright.targets.fake_device import FakeDevice, _Scripted
from kernelwright.targets.target import DeviceLost

W = resolve("gemm:16x16x16:fp32")


class LosesTails(FakeDevice):
    def load(self, candidate, build, w, sets):
        contender = _Scripted({}, w, sets)
        if w != W:
            contender.run = self.lose  # pyright: ignore[reportAttributeAccessIssue]
        return contender

    def lose(self, index: int) -> None:
        raise DeviceLost(Outcome.CRASH, "an illegal address")


def test_a_device_that_is_lost_on_a_tail_is_lost():
    """The judge must not go on with it: whatever came next would fail there, and be blamed."""
    entry = Entry(candidate=Candidate(kind="fake", source="{}", origin=Origin(kind="script")))
    with pytest.raises(DeviceLost, match="shape 1x1x1: an illegal address"):
        Judge(LosesTails(), 1, lambda message: None).run(Job(workload=W, entries=(entry,), rungs=("shapes",)))


def test_a_few_elements_are_not_held_against_the_vendors_error():
    problem = problem_of(resolve("chain:new-gelu:1x1"))
    verdicts = []
    for shape in ("1x1", "8x64"):
        w = resolve(f"chain:new-gelu:{shape}")
        rows, cols = map(int, shape.split("x"))
        expected = expect(problem, w, {"x": torch.full((rows, cols), -1.5)}, vendor=True)
        off = {"y": (expected.reference["y"] * (1 + 2**-20)).float()}
        verdicts.append(compare(problem, w, expected, off).passed)
    assert verdicts == [True, False]
