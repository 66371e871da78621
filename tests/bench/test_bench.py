"""The verb on the CPU target, from files to the leaderboard: right, wrong, cheating and flags-only answers, faults of problems, resuming."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.bench.results import Facts, Result, Store

ANSWERS = Path(__file__).parents[2] / "examples" / "kernelbench-answers"
QUICK = ("--target", "cpu", "--rival", "eager", "--rounds", "5", "--seconds", "0.3")


def bench(level: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", "bench", "kernelbench:1", "--path", str(level), *QUICK, *words, "--out", str(home / "out")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"KERNELWRIGHT_HOME": str(home)})


def test_answers_from_files_to_the_leaderboard(level, home):
    (level / "level1" / "7_Hangs.py").write_text("import time\ntime.sleep(1000)\n")
    (level / "level1" / "8_Broken.py").write_text("import nowhere\n")
    sets = [f"{name}={ANSWERS / name}" for name in ("right", "wrong", "cheating", "flags-only")]
    words = [w for s in sets for w in ("--answers", s)]
    done = bench(level, *words, "--patience", "10", "--json", home=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    problems = {p["task"]: p for p in found["problems"]}
    answers = {a["entrant"]: a for a in problems["1/2"]["answers"]}
    assert answers["right"]["status"] == "correct" and answers["right"]["work"] == "own kernels"
    assert answers["right"]["ratios"]["eager"]["ratio"] > 1.5, "one pass instead of eight"
    assert answers["flags-only"]["status"] == "correct" and answers["flags-only"]["work"] == "flags only"
    assert "torch.jit.script" in answers["flags-only"]["work_why"]
    assert answers["wrong"]["outcome"] == "WRONG_RESULT" and answers["cheating"]["status"] == "wrong"
    assert problems["1/6"]["degenerate"] and "zeros-pass" in [f["rule"] for f in problems["1/6"]["lint"]]
    reasons = {s["tasks"]: (s["reason"], s["why"]) for s in found["skipped"]}
    assert reasons["1/7"][0] == "time" and "nothing happened for 10 s" in reasons["1/7"][1]
    assert reasons["1/8"][0] == "dependency" and "nowhere" in reasons["1/8"][1]
    scores = {e["entrant"]: e for e in found["entrants"]}
    assert scores["right"]["score"]["tasks"] == 1 and scores["right"]["score"]["correct"] == 1, "the sound problem that can run"
    assert scores["right"]["score"]["fast"]["1"] == 1.0 and scores["wrong"]["score"]["fast"]["0"] == 0.0
    assert scores["flags-only"]["own_work"]["correct"] == 0 and scores["flags-only"]["score"]["correct"] == 1
    assert scores["cheating"]["degenerate"]["tasks"] == 1 and scores["cheating"]["degenerate"]["correct"] == 0
    page = Path(found["report"]).read_text()
    assert "flags only" in page and "degenerate" in page and "<script" not in page
    # again: everything is known; a new set is judged alone
    before = Path(found["results"]).read_bytes()
    again = bench(level, *words, "--patience", "10", home=home)
    assert again.returncode == 0 and Path(found["results"]).read_bytes() == before
    assert "not run, time: 1/7" in again.stdout and "degenerate, scored apart: 1/6" in again.stdout


def test_the_files_that_a_run_leaves_can_be_read(tmp_path):
    store = Store(tmp_path / "x" / "bench.jsonl")
    from kernelwright.bench.results import Task

    task = Task(suite="kernelbench:1", key="1/1")
    store.append(Facts(task=task, workload="w"))
    store.append(Result(suite="kernelbench:1", task="1/1", workload="w", entrant="e", status="no answer"))
    again = Store(store.path)
    assert again.facts["w"].task == task and len(again.results) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kernelbench:1"], "--path"),
        (["kernelbench:5", "--path", "."], "levels 1, 2, 3, 4"),
        (["kernelbench:1", "--path", "LEVEL", "--answers", "nowhere"], "nowhere does not exist"),
        (["kernelbench:1", "--path", "LEVEL", "--only", "99"], "--only 99"),
        (["kernelbench:1", "--path", "LEVEL", "--rival", "cublas"], "no rival 'cublas'"),
        (["kernelbench:1", "--path", "LEVEL", "--entrant", "magic"], "torch.compile, families, reference"),
        (["kernelbench:1", "--path", "LEVEL", "--write", "pass"], "KERNELWRIGHT_LLM_URL"),
        (["cudahercules", "--path", "LEVEL"], "no checkout of CUDAHercules"),
    ],
)
def test_bad_requests_get_one_sentence(level, home, monkeypatch, capsys, words, says):
    """In this process, as importing PyTorch eight times takes longer than all of it."""
    from kernelwright.cli import app
    from kernelwright.cli.common import run

    monkeypatch.chdir(home)
    words = [str(level) if w == "LEVEL" else w for w in words]
    monkeypatch.setattr(sys, "argv", ["kernelwright", "bench", *words, "--target", "cpu"])
    with pytest.raises(SystemExit) as ended:
        run(app)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and says in said and len(said.strip().splitlines()) == 1
