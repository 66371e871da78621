"""The script that publishes a tuned suite, run as a user does: on a suite tuned on the fake target, and on made-up Trials of an H200."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.archive import Archive
from kernelwright.problems.suites import suite
from kernelwright.records import Trial
from kernelwright.runtime import pack
from kernelwright.targets import target
from kernelwright.tune import Limits, tune
from made_up_products import ENVIRONMENT, confirmed, product, suite_trials

ROOT = Path(__file__).parents[2]


def publish(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "benchmarks" / "hgemm.py"), *words], capture_output=True, text=True, timeout=300)


def archive_of(path: Path, trials: list[Trial]) -> str:
    with Archive(path) as archive:
        for t in trials:
            archive.append(t)
    return str(path)


@pytest.mark.slow
def test_a_suite_that_is_tuned_in_part_is_published_in_part(tmp_path):
    some, limits = suite("gemm-small")[:5], Limits(minutes=2, trials=4, rivals=("eager",), confirm_rounds=9, confirm_seconds=0.05)
    with Archive(tmp_path / "archive.db") as archive:
        done = tune(some, target("fake"), archive, limits)
    pack.save(tmp_path / "pack", done.trials)
    out = tmp_path / "out"
    choice = ("--suite", "gemm-small", "--tuned", "eager", "--pack", str(tmp_path / "pack"))
    made = publish(str(tmp_path / "archive.db"), *choice, "--out", str(out))
    assert made.returncode == 0, made.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) >= {"command", "date", "environment", "figures", "own_losses", "dispatched_losses"}
    figures = summary["figures"]
    assert figures["shapes"] == 5 and figures["own_wins"] == 5, "scripts take 8 us and more, rivals 20"
    assert figures["own_over_tuned"] == pytest.approx(figures["dispatched_over_tuned"], rel=0.1)
    assert figures["kernels_within_1_percent"] == {some[0].layout: len(done.kernels)}
    assert {r["shape"] for r in summary["results"]} == {"x".join(map(str, w.axes.values())) for w in some}
    with gzip.open(out / "trials.jsonl.gz") as lines:
        raw = [Trial.from_json(line) for line in lines]
    assert {t.id for t in raw} == {t.id for t in done.trials}
    assert (out / "own-over-tuned.svg").read_text().startswith("<svg") and "5 shapes" in (out / "report.html").read_text()


def test_both_layouts_outside_times_and_another_devices_trials(tmp_path):
    trials = suite_trials(sizes=(64, 4096))
    elsewhere = confirmed(product(64, 64, 64), 0.1, {"cublaslt-auto": 99.0}, environment=ENVIRONMENT.replace(device="NVIDIA H100"))
    not_of_the_suite = confirmed(product(63, 64, 64), 0.1, {"cublaslt-auto": 99.0})
    table = tmp_path / "outside.csv"
    table.write_text("m_n_k,cublaslt_tuned_us,cuda_l2_us\n64_64_64,2.0,1.0\n4096_64_64,2.0,\n")
    archive = archive_of(tmp_path / "a.db", [*trials, elsewhere, not_of_the_suite])
    made = publish(archive, "--outside", str(table), "--out", str(tmp_path / "out"))
    assert made.returncode == 0, made.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    figures, results = summary["figures"], {r["shape"]: r for r in summary["results"]}
    assert summary["environment"]["device"] == ENVIRONMENT.device and figures["shapes"] == len(results) == 8
    assert figures["own_over_cuda_l2"] == pytest.approx(results["64x64x64"]["ratio"] / 2)
    assert figures["layouts"] == ["nn", "nt"] and figures["intervals"]["own_over_cuda_l2"]["shapes"] == 1
    ratios = [r["ratio"] for r in summary["own_losses"]]
    assert ratios == sorted(ratios) and ratios[-1] < 1 and "persistent" in summary["own_losses"][0]["cause"]
    assert "Left out, since times of other devices" in (tmp_path / "out" / "report.html").read_text()


def test_the_same_archive_gives_the_same_raw_bytes_which_can_be_imported(tmp_path):
    archive = archive_of(tmp_path / "a.db", suite_trials(sizes=(64,)))
    for raw in ("trials.jsonl.gz", "trials.jsonl.xz"):
        for name in ("x", "y"):
            assert publish(archive, "--raw", raw, "--out", str(tmp_path / name)).returncode == 0
        assert (tmp_path / "x" / raw).read_bytes() == (tmp_path / "y" / raw).read_bytes()
        with Archive(tmp_path / f"{raw}.db") as other:
            assert other.import_(tmp_path / "x" / raw).added == 2


def test_bad_input_gets_one_sentence(tmp_path):
    missing = publish(str(tmp_path / "none.db"), "--out", str(tmp_path / "out"))
    empty = publish(archive_of(tmp_path / "a.db", []), "--out", str(tmp_path / "out"))
    table = tmp_path / "t.csv"
    table.write_text("mnk,us\n")
    odd = publish(archive_of(tmp_path / "b.db", suite_trials(sizes=(64,))), "--outside", str(table), "--out", str(tmp_path / "out"))
    for done, said in ((missing, "there is no archive"), (empty, "no confirmed trial"), (odd, "lacks the column")):
        assert done.returncode == 1 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
