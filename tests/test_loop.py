"""The loop on the fake target: it finds the known optimum, records everything, and goes on where it stopped."""

from __future__ import annotations

import json

import pytest

from kernelwright.archive import Archive
from kernelwright.loop import Budget, NothingToTry, asked_modes, modes_for, optimize
from kernelwright.problems import resolve
from kernelwright.records import Outcome
from kernelwright.targets import target

W = resolve("gemm:16x16x16:fp32")
QUICK = Budget(trials=40, seconds=120, finalists=2, confirm_rounds=9, confirm_seconds=0.5)


@pytest.mark.parametrize("proposer", ["random", "evolve", "tpe"])
def test_it_finds_a_fast_kernel_and_records_failures(tmp_path, proposer):
    if proposer == "tpe":
        pytest.importorskip("optuna")
    with Archive(tmp_path / "a.db") as archive:
        done = optimize(W, target("fake"), archive, proposer=proposer, budget=QUICK, seed=3)
        assert done.winner is not None and done.winner.stage == "confirm"
        assert json.loads(done.winner.candidate.source)["us"] <= 8.0 * 1.3**2
        stored = list(archive.trials(workload=W))
    assert {t.id for t in done.trials} == {t.id for t in stored}
    outcomes = {t.verdict.outcome for t in stored}
    assert Outcome.OK in outcomes and len(outcomes) > 1
    screened = [t.candidate.id for t in stored if t.stage == "screen"]
    assert len(screened) == len(set(screened)) == 40


def test_resume_counts_what_is_there(tmp_path):
    with Archive(tmp_path / "a.db") as archive:
        first = optimize(
            W, target("fake"), archive, budget=Budget(trials=6, seconds=60, finalists=1, confirm_rounds=9, confirm_seconds=0.2)
        )
        again = optimize(
            W, target("fake"), archive, budget=Budget(trials=10, seconds=60, finalists=1, confirm_rounds=9, confirm_seconds=0.2)
        )
        screens = list(archive.trials(workload=W, stage="screen"))
    assert sum(t.stage == "screen" for t in first.trials) == 6
    assert len(screens) == 10 and len({t.candidate.id for t in screens}) == 10
    assert {t.session for t in screens} == {first.session, again.session}


def test_a_chain_is_offered_where_launches_can_overlap():
    assert modes_for("cuda:sm_90")[:2] == ("device-cold", "device-chain")
    for name in ("cuda:sm_80", "cpu", "fake"):
        assert "device-chain" not in modes_for(name) and len(modes_for(name)) == 4
        with pytest.raises(ValueError, match=f"needs a GPU of sm_90 or newer; {name} offers"):
            asked_modes(["device-chain"], name)
    assert asked_modes(["host-server", "device-chain"], "cuda:sm_90") == ("device-cold", "host-server", "device-chain")
    with pytest.raises(ValueError, match="unknown timing mode 'device-lukewarm'; choose from device-warm, device-cold"):
        asked_modes(["device-lukewarm"], "cpu")


def test_no_family_says_why(tmp_path):
    with Archive(tmp_path / "a.db") as archive, pytest.raises(NothingToTry, match="chain_cpu"):
        optimize(resolve("gemm:4x4x4:fp16:acc=fp16"), target("cpu"), archive)
