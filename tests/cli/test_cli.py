"""The command line as a user types it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

VERBS = (
    "doctor",
    "optimize",
    "tune",
    "bench",
    "verify",
    "report",
    "replay",
    "pack",
    "archive",
    "sparse",
    "train",
    "train-hf",
    "audit",
    "lint",
)


def kernelwright(*words: str, home=None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | ({"KERNELWRIGHT_HOME": str(home)} if home else {}) | environment
    return subprocess.run([sys.executable, "-m", "kernelwright", *words], capture_output=True, text=True, env=env, timeout=300)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb):
    done = kernelwright(verb, "--help")
    assert done.returncode == 0
    assert verb in ("pack", "archive", "sparse") or "Example: kernelwright" in done.stdout


def test_help_does_not_import_torch():
    code = """
import sys
import time
sys.argv = ["kernelwright", "--help"]
from kernelwright.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules and "numpy" not in sys.modules, "a heavy import"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optimize", "gemmm:64x64x64"], "gemm"),
        (["optimize", "gemm:64x64"], "64x64"),
        (["optimize", "gemm:64x64x64:fp12"], "fp12"),
        (["optimize", "chain:softmaxx"], "softmax"),
        (["optimize", "nowhere.py"], "nowhere.py"),
        (["optimize", "gemm:8x8x8", "--target", "tpu"], "tpu"),
        (["optimize", "gemm:8x8x8:fp32", "--target", "fake", "--proposer", "oracle"], "oracle"),
        (["optimize", "chain:new-gelu:8x8", "--target", "cpu", "--proposer", "llm"], "set KERNELWRIGHT_LLM_URL"),
        (["optimize", "gemm:8x8x8:fp32", "--target", "fake", "--rival", "cublas"], "choose from eager"),
        (["verify", "nowhere.cpp", "--problem", "gemm:8x8x8:fp32", "--target", "cpu"], "nowhere.cpp"),
        (["bench", "chains", "--target", "cpu", "--mode", "quick"], "quick"),
        (["bench", "chains", "--target", "cpu", "--mode", "device-chain"], "sm_90"),
        (["tune", "gemm:8x8x8:fp32", "--target", "fake", "--mode", "device-chain"], "sm_90"),
        (["tune", "nowhere.txt", "--target", "fake"], "nowhere.txt"),
        (["replay", "xyz"], "xyz"),
        (["replay", "abcdef"], "abcdef"),
        (["pack", "info", "nowhere"], "nowhere"),
        (["archive", "import", "nowhere.jsonl"], "nowhere.jsonl"),
        (["optimize"], "problem"),
    ],
)
def test_bad_input_gets_one_sentence(words, says, tmp_path):
    done = kernelwright(*words, home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_errors_are_json_too(tmp_path):
    done = kernelwright("optimize", "gemm:64x64", "--json", home=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2


def test_no_gpu_is_said(tmp_path):
    from kernelwright.targets import target

    if target("cuda").unavailable() is None:
        pytest.skip("there is a GPU")
    done = kernelwright("optimize", "gemm:64x64x64", "--target", "cuda", home=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("kernelwright: target cuda cannot be used here")


def test_no_compiler_is_said(tmp_path):
    done = kernelwright("optimize", "chain:softmax", "--target", "cpu", home=tmp_path, PATH="/nonexistent")
    assert done.returncode == 2
    assert "install g++" in done.stderr


def test_a_home_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    done = kernelwright("optimize", "gemm:8x8x8:fp32", "--target", "fake", "--out", str(tmp_path / "out"), home=tmp_path / "file")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr


def test_the_main_job_end_to_end(tmp_path):
    """optimize -> report -> replay -> pack -> archive on the fake target, as a user goes through them."""
    out = str(tmp_path / "out")
    words = ("optimize", "gemm:16x16x16:fp32", "--target", "fake", "--trials", "12", "--confirm-seconds", "0.5")
    done = kernelwright(*words, "--json", "--out", out, home=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= {"problem", "target", "verdict", "candidate", "origin", "speedups", "trials", "seconds", "report"}
    assert found["verdict"] == "OK" and found["trials"] == 12
    eager = found["speedups"]["eager"]
    assert eager["low"] <= eager["ratio"] <= eager["high"] and eager["mode"] == "device-warm"
    page = Path(found["report"]).read_text()
    assert found["trial"] in page and len(page) < 300_000

    replayed = kernelwright("replay", found["trial"], "--json", home=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["replayed"] == found["trial"]

    saved = kernelwright("pack", "save", str(tmp_path / "p"), "gemm:16x16x16:fp32", "--target", "fake", home=tmp_path)
    assert saved.returncode == 0, saved.stderr
    timed = kernelwright("pack", "times", str(tmp_path / "p"), "--json", home=tmp_path)
    assert timed.returncode == 0 and json.loads(timed.stdout) == {"kernels": 1, "measured": 1, "workloads": 1}, timed.stderr
    verified = kernelwright("pack", "verify", str(tmp_path / "p"), "--random", "3", "--json", home=tmp_path)
    assert verified.returncode == 0, verified.stderr
    told = json.loads(verified.stdout)
    assert (told["failed"], len(told["kernels"]), told["kernels"][0]["random"]) == (0, 1, 3) and Path(told["file"]).is_file()
    info = kernelwright("pack", "info", str(tmp_path / "p"), home=tmp_path)
    assert info.returncode == 0 and "verification: 1 kernels, 0 failed" in info.stdout

    lines = str(tmp_path / "trials.jsonl.gz")
    assert kernelwright("archive", "export", lines, home=tmp_path).returncode == 0
    imported = kernelwright("archive", "import", lines, "--json", home=tmp_path / "other")
    assert json.loads(imported.stdout)["added"] > 12

    report = kernelwright("report", "gemm:16x16x16:fp32", "--json", "--out", out, home=tmp_path)
    assert json.loads(report.stdout)["trials"] > 12


def test_a_corrupt_archive_is_said(tmp_path):
    (tmp_path / "archive.db").write_text("this is no database, but long enough to look at" * 100)
    done = kernelwright("optimize", "gemm:8x8x8:fp32", "--target", "fake", "--out", str(tmp_path / "out"), home=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "archive.db" in done.stderr


def test_interrupt_leaves_a_valid_state_and_says_how_to_go_on(tmp_path):
    words = ["optimize", "gemm:16x16x16:fp32", "--target", "fake", "--trials", "6000", "--out", str(tmp_path / "out")]
    env = {**os.environ, "KERNELWRIGHT_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelwright", *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    from kernelwright.archive import Archive

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (tmp_path / "archive.db").exists():
            with Archive(tmp_path / "archive.db") as archive:
                if len(archive) >= 3:
                    break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "the same command goes on" in errors
    with Archive(tmp_path / "archive.db") as archive:
        assert len(list(archive.trials())) >= 3


def test_a_limited_suite_is_a_sample_that_grows():
    from kernelwright.cli.common import workloads_of

    few, more = workloads_of("hgemm-1000", layouts=["nt"], limit=20), workloads_of("hgemm-1000", layouts=["nt"], limit=50)
    assert len(few) == 20 and set(few) < set(more)
    assert {w.layout for w in more} == {"nt"} and len({w.axes["M"] for w in more}) > 5
    for suite, layout, words in (("chains", "nt", "no layout; leave"), ("hgemm-1000", "zz", "choose one of nn, nt, tn, tt")):
        with pytest.raises(typer.BadParameter, match=words):
            workloads_of(suite, layouts=[layout])
    both = workloads_of("hgemm-1000", layouts=["nn", "nt"], limit=20)
    assert len(both) == 40 and both[20:] == few and {w.replace(layout="nt") for w in both[:20]} == set(few)
    assert [w.layout for w in workloads_of("gemm:8x8x8:fp16", layouts=["nn", "nt"])] == ["nn", "nt"]


def test_a_list_of_problems_is_a_suite(tmp_path):
    from kernelwright.cli.common import workloads_of

    listed = tmp_path / "mine.txt"
    listed.write_text("# decode\ngemm:8x16x16:fp32\n\ngemm:16x16x16:fp32:nt  # once more below\ngemm:16x16x16:fp32:nt\n")
    assert [w.name for w in workloads_of(str(listed))] == ["gemm:8x16x16:fp32:nn", "gemm:16x16x16:fp32:nt"]
    plain = tmp_path / "plain.txt"
    plain.write_text("gemm:8x16x16\ngemm:16x16x16\n")
    asked = workloads_of(str(plain), "bf16", ["nt", "nn"])
    assert [(w.dtype, w.layout, w.axes["M"]) for w in asked] == [("bf16", x, m) for x in ("nt", "nn") for m in (8, 16)]
    words = ("--target", "fake", "--minutes", "0.2", "--trials", "8", "--confirm-seconds", "0.2", "--json")
    done = kernelwright("tune", str(listed), *words, "--out", str(tmp_path / "out"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kernels"] >= 1 and told["pack"] == str(tmp_path / "out" / "pack-mine")
    listed.write_text("# nothing\n")
    with pytest.raises(typer.BadParameter, match="names no problem"):
        workloads_of(str(listed))
