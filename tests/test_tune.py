"""The loop over a suite: shares of the time, twenty Workloads on the fake target with an interruption, three on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.archive import Archive
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.families.scripted import Scripted
from kernelwright.measured import Measured
from kernelwright.problems import resolve
from kernelwright.propose import score
from kernelwright.propose.neighbours import key_of
from kernelwright.records import Launch, LaunchPlan, Outcome, Workload
from kernelwright.runtime import pack
from kernelwright.targets import target
from kernelwright.tune import GAP_KERNELS, Limits, Listener, Silent, Suite, share, tune

SIZES = (2, 3, 4)
TWENTY = [resolve(f"gemm:{m}x{n}x{k}:fp32") for m in SIZES for n in SIZES for k in SIZES][:20]
QUICK = Limits(minutes=5, trials=16, rivals=("eager",), confirm_rounds=9, confirm_seconds=0.1)


@given(st.floats(-10, 1e5), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_shares_add_up_to_the_time_and_follow_the_costs(left, costs):
    spent, shares = 0.0, []
    for i in range(len(costs)):
        shares.append(share(left - spent, costs[i:]))
        spent += shares[-1]
    assert spent == pytest.approx(max(left, 0.0), rel=1e-6, abs=1e-6)
    assert shares == pytest.approx([max(left, 0.0) * c / sum(costs) for c in costs], rel=1e-6, abs=1e-6)


class Interrupting(Silent):
    """Ctrl-C after some steps of a kind."""

    def __init__(self, step: str, after: int):
        self.step, self.left = step, after

    def _count(self, step: str) -> None:
        self.left -= step == self.step
        if self.left == 0:
            raise KeyboardInterrupt

    def screened(self, w, trials, done):
        self._count("screened")

    def confirmed(self, w, trials, done):
        self._count("confirmed")


class Counting(Silent):
    def __init__(self):
        self.seen: Counter[str] = Counter()
        self.done = [0.0]

    def screened(self, w, trials, done):
        self.seen["screened"] += len(trials)
        self.done.append(done)

    def confirmed(self, w, trials, done):
        self.seen["confirmed"] += 1
        self.done.append(done)


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("fake")) as one:
        yield one


@pytest.mark.slow
def test_twenty_workloads_with_two_interruptions(tmp_path, evaluator):
    def run(listener: Listener):
        return tune(TWENTY, target("fake"), archive, QUICK, evaluator=evaluator, listener=listener)

    with Archive(tmp_path / "a.db") as archive:
        with pytest.raises(KeyboardInterrupt):
            run(Interrupting("screened", 5))
        first = {t.id for t in archive.trials()}
        assert first
        with pytest.raises(KeyboardInterrupt):
            run(Interrupting("confirmed", 7))
        confirmed = {t.workload for t in archive.trials(stage="confirm")}
        assert len(confirmed) == 7
        last = Counting()
        done = run(last)
        trials = list(archive.trials())
        nothing = Counting()
        again = run(nothing)
        assert not nothing.seen and again.kernels == done.kernels and len(archive) == len(trials)
    assert first < {t.id for t in trials}
    assert last.seen["confirmed"] == 13 and last.done == sorted(last.done) and last.done[-1] == pytest.approx(1)
    pairs = Counter((t.workload.id, t.candidate.id) for t in trials if t.stage == "screen")
    assert set(pairs.values()) == {1}, "a candidate was screened twice"
    per_workload = Counter(t.workload for t in trials if t.stage == "screen")
    assert set(per_workload) == set(TWENTY) and max(per_workload.values()) <= QUICK.trials + GAP_KERNELS
    assert {t.verdict.outcome for t in trials} >= {Outcome.OK, Outcome.COMPILE_ERROR}
    # the landscape is the same everywhere, so what the first learn serves all
    assert not done.unfinished and not done.skipped and len(done.kernels) <= 3
    assert 0 <= done.loss <= done.worst_loss <= QUICK.tolerance
    best = next(t for t in done.trials if t.candidate.id == done.kernels[0])
    assert json.loads(best.candidate.source)["us"] <= 8.0 * 1.3
    saved = pack.save(tmp_path / "p", done.trials, tolerance=QUICK.tolerance)
    assert {e.workload for e in saved.entries} == set(TWENTY)
    assert len(list((tmp_path / "p" / "builds").iterdir())) == len(done.kernels), "a kernel that serves many is stored once"


def test_no_time_means_no_measurement_and_what_there_is_still_counts(tmp_path, evaluator):
    with Archive(tmp_path / "a.db") as archive:
        done = tune(TWENTY[:2], target("fake"), archive, Limits(minutes=0), evaluator=evaluator)
        assert not done.trials and len(done.unfinished) == 2 and not len(archive)


def test_time_of_earlier_runs_counts(tmp_path, evaluator):
    with Archive(tmp_path / "a.db") as archive:
        tune(TWENTY[:1], target("fake"), archive, QUICK, evaluator=evaluator)
        spent = sum(t.seconds for t in archive.trials() if t.candidate.kind != "rival")
        late = Limits(minutes=spent / 60, rivals=("eager",))
        done = tune(TWENTY[:2], target("fake"), archive, late, evaluator=evaluator)
        assert done.unfinished == (TWENTY[1],) and done.spent >= spent


def test_a_workload_without_a_family_is_skipped(tmp_path, evaluator, monkeypatch):
    monkeypatch.setattr(Scripted, "refuses", lambda self, w, device: "it is too small" if w == TWENTY[0] else None)
    with Archive(tmp_path / "a.db") as archive:
        done = tune(TWENTY[:2], target("fake"), archive, QUICK, evaluator=evaluator)
    assert done.skipped == {TWENTY[0].name: "scripted: it is too small"} and not done.unfinished


def test_a_workload_that_loses_the_judge_is_passed_over_and_a_dead_machine_ends_the_run(tmp_path, evaluator, monkeypatch):
    guilty: set[Workload] = {TWENTY[1]}
    evaluate = Evaluator.evaluate_built

    def failing(self, built, job, **words):
        if job.workload in guilty:
            raise JudgeError("the device process ran out of memory")
        return evaluate(self, built, job, **words)

    monkeypatch.setattr(Evaluator, "evaluate_built", failing)
    with Archive(tmp_path / "a.db") as archive:
        done = tune(TWENTY[:3], target("fake"), archive, QUICK, evaluator=evaluator)
        assert set(done.skipped) == {TWENTY[1].name} and len(done.trials) >= 4
        guilty.update(TWENTY)
        with pytest.raises(JudgeError):
            tune(TWENTY[4:9], target("fake"), archive, QUICK, evaluator=evaluator)


def test_a_chain_is_asked_only_of_candidates_that_may_overlap(tmp_path, evaluator):
    """Else a suite would confirm the others again and again."""
    with Archive(tmp_path / "a.db") as archive:
        with pytest.raises(ValueError, match=r"needs a GPU of sm_90 or newer; fake offers"):
            tune(TWENTY[:1], target("fake"), archive, Limits(modes=("device-chain",)), evaluator=evaluator)
        done = tune(TWENTY[:1], target("fake"), archive, QUICK, evaluator=evaluator)
        suite = Suite(TWENTY[:1], target("fake"), archive, evaluator, QUICK)
    suite.modes = ("device-warm", "device-chain")
    plain = next(t for t in done.trials if t.candidate.kind != "rival")
    launch = Launch(kernel="k", args=(), pdl=True)
    able = plain.replace(candidate=plain.candidate.replace(plan=LaunchPlan(launches=(launch,))))
    assert suite._counts(plain) and not suite._counts(able)
    assert suite._counts(able.replace(timings=(*able.timings, able.timings[0].replace(mode="device-chain"))))


@pytest.mark.slow
def test_kill_9_and_the_same_command(home, tmp_path):
    command = [
        sys.executable, "-m", "kernelwright", "tune", "gemm-small", "--limit", "4", "--target", "fake", "--trials", "12",
        "--confirm-seconds", "0.1", "--out", str(tmp_path), "--json",
    ]  # fmt: skip
    environment = os.environ | {"KERNELWRIGHT_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline, seen = time.monotonic() + 60, set()
    while not seen and time.monotonic() < deadline:
        time.sleep(0.05)
        if (home / "archive.db").exists():
            with Archive(home / "archive.db") as archive:
                seen = {t.id for t in archive.trials()}
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kernels"] >= 1 and not found["unfinished"] and found["loss"] <= 0.01
    assert len(pack.load(found["pack"]).entries) == 4
    with Archive(home / "archive.db") as archive:
        trials = list(archive.trials())
    assert seen <= {t.id for t in trials}
    assert set(Counter((t.workload.id, t.candidate.id) for t in trials if t.stage == "screen").values()) == {1}


@pytest.mark.slow
def test_three_products_on_the_cpu(tmp_path):
    three = [resolve(f"gemm:{m}x32x32:fp32") for m in (32, 48, 64)]
    limits = Limits(minutes=3, trials=10, rivals=("eager",), confirm_rounds=9, confirm_seconds=0.2, tolerance=0.1)
    with Archive(tmp_path / "a.db") as archive:
        done = tune(three, target("cpu"), archive, limits)
    assert not done.unfinished and not done.skipped and 1 <= len(done.kernels) <= 3
    assert all(t.verdict.ok for t in done.trials)
    assert {e.workload for e in pack.save(tmp_path / "p", done.trials).entries} == set(three)


def test_what_another_layout_showed_is_known(tmp_path, evaluator):
    """tune of the same products, stored otherwise: the first proposal is what won there."""
    w = TWENTY[-1]
    with Archive(tmp_path / "a.db") as archive:
        done = tune([w], target("fake"), archive, QUICK, evaluator=evaluator)
        best = max((t for t in archive.trials(workload=w, stage="screen") if t.verdict.ok), key=score)
        measured = Measured([w.replace(layout="nt")], archive, evaluator.environment, "device-warm", lambda t: True)
        assert done.kernels and not measured.screens[w.replace(layout="nt")]
        assert measured.knowledge.winners(w.replace(layout="nt")) == [key_of(best.candidate.origin.name, best.candidate.origin.config)]


def test_a_suite_of_several_problems_is_asked_for_the_rivals_that_each_has():
    suite = object.__new__(Suite)
    suite.limits, suite.target = Limits(rivals=("eager", "cublaslt-auto", "cusparselt")), target("cuda:sm_90")
    found = {name: suite.rivals(resolve(name)) for name in ("spmm:8x64x256", "spmm:8x64x256:swiglu", "unpack:64x256")}
    assert found["spmm:8x64x256"] == ("eager", "cublaslt-auto", "cusparselt")
    assert found["spmm:8x64x256:swiglu"] == found["unpack:64x256"] == ("eager",)
