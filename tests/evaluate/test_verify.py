"""The ladder: what it does when a device is lost on the way."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.jobs import Entry, Job
from kernelwright.evaluate.judge import Judge
from kernelwright.problems import resolve
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
