"""Dependent launches in the ladder and in mode device-chain, with contenders that say that they are dependent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Entry, Job
from kernelwright.evaluate.judge import Judge
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Origin, Outcome
from kernelwright.targets.fake_device import FakeDevice, _Scripted

W = resolve("gemm:16x16x16:fp32")


class Dependent(_Scripted):
    """Behind its writer it computes from what lies in the buffers: `waits`, after the writer has ended; else before."""

    dependent = True

    def __init__(self, waits: bool, w: Any, sets: Any):
        super().__init__({}, w, sets)
        self.waits, self.modes = waits, []

    def run_dependent(self, inputs: Mapping[str, Any], index: int = 0) -> None:
        tensors = self._sets[index].tensors
        self.run(index)
        early = tensors["c"].clone()
        for name, value in inputs.items():
            tensors[name].copy_(value)
        tensors["c"].view(torch.int32).fill_(-1)
        if self.waits:
            self.run(index)
        else:
            tensors["c"].copy_(early)

    def sample(self, mode: str, launches: int, fresh=None) -> tuple[float, int]:
        self.modes.append(mode)
        us, dropped = super().sample(mode, launches, fresh)
        return us * (0.8 if mode == "device-chain" else 1.0), dropped


class Device(FakeDevice):
    """Loads `plain`, `waits` and `forgets`, the candidates' source."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def load(self, candidate, build, w, sets):
        kind = json.loads(candidate.source)
        self.loaded.append(_Scripted({}, w, sets) if kind == "plain" else Dependent(kind == "waits", w, sets))
        return self.loaded[-1]


def candidate(kind: str) -> Candidate:
    return Candidate(kind="fake", source=json.dumps(kind), origin=Origin(kind="script"))


@pytest.fixture
def judged():
    def go(*kinds: str, **job: Any):
        entries = tuple(Entry(candidate=candidate(kind)) for kind in kinds)
        device = Device()
        reply = Judge(device, 1, lambda message: None).run(
            Job(workload=W, entries=entries, rivals=("eager",), min_rounds=3, max_rounds=3, **job)
        )
        return reply, device

    return go


def test_a_kernel_that_forgets_to_wait_is_found_behind_a_writer(judged):
    reply, _ = judged("waits", "forgets", "plain", rungs=ALL_RUNGS)
    good, bad, plain = reply.results
    assert good.verdict.ok and [c.case for c in good.verdict.checks if c.rung == "chain"] == ["behind a writer"]
    assert bad.verdict.outcome is Outcome.WRONG_RESULT
    assert "right by itself" in bad.verdict.evidence and "griddepcontrol.wait" in bad.verdict.evidence
    assert [c.rung for c in bad.verdict.checks if not c.passed] == ["chain"]
    assert plain.verdict.ok and not [c for c in plain.verdict.checks if c.rung == "chain"]


def test_a_screen_does_not_climb_the_rung(judged):
    reply, _ = judged("forgets", rungs=SCREEN_RUNGS)
    assert reply.results[0].verdict.ok


def test_only_dependent_candidates_are_timed_in_a_chain(judged):
    modes = ("device-cold", "device-chain", "device-warm")
    reply, device = judged("plain", "waits", rungs=SCREEN_RUNGS, modes=modes)
    plain, waits = reply.results
    assert [t.mode for t in plain.timings] == ["device-cold", "device-warm"]
    assert [t.mode for t in waits.timings] == list(modes)
    assert {c.mode for c in plain.comparisons} == {"device-cold", "device-warm"}
    cold, chain = (next(c for c in waits.comparisons if c.mode == mode) for mode in modes[:2])
    assert chain.ratio / cold.ratio == pytest.approx(1 / (0.8 / 1.2), rel=0.1)  # the fake device's cold mode takes 1.2 times as long
    assert [t.mode for t in reply.rivals[0].timings] == list(modes)
    assert len(device.loaded[1]._sets) == device.cold_sets(0)


def test_without_a_dependent_candidate_a_chain_is_not_measured(judged):
    for kinds in (("plain",), ()):
        reply, _ = judged(*kinds, rungs=SCREEN_RUNGS, modes=("device-cold", "device-chain"))
        assert [t.mode for t in reply.rivals[0].timings] == ["device-cold"]
        assert all(r.verdict.ok and [t.mode for t in r.timings] == ["device-cold"] for r in reply.results)


class EarlyReader(Dependent):
    """Of `spmm`: has read one input before its predecessor wrote it."""

    def __init__(self, early: str, w: Any, sets: Any):
        super().__init__(True, w, sets)
        self.early = early

    def run_dependent(self, inputs: Mapping[str, Any], index: int = 0) -> None:
        tensors = self._sets[index].tensors
        read = {"x": inputs["x"], "w": inputs["w"], self.early: tensors[self.early].clone()}
        for name, value in inputs.items():
            tensors[name].copy_(value)
        tensors["y"].copy_(torch.nn.functional.linear(read["x"], read["w"]))


@pytest.mark.parametrize(("early", "outcome"), [("w", Outcome.OK), ("x", Outcome.WRONG_RESULT)])
def test_only_what_no_kernel_writes_may_be_read_early(monkeypatch: pytest.MonkeyPatch, early: str, outcome: Outcome):
    monkeypatch.setattr(Device, "load", lambda self, candidate, build, w, sets: EarlyReader(early, w, sets))
    job = Job(workload=resolve("spmm:4x32x128"), entries=(Entry(candidate=candidate("waits")),), rungs=("chain",))
    (result,) = Judge(Device(), 1, lambda message: None).run(job).results
    assert result.verdict.outcome is outcome
