"""The verb on the CPU target, from files to the leaderboard: right, wrong, cheating and flags-only answers, faulty problems, resuming."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.bench import run as running
from kernelwright.bench.answers import Entrant
from kernelwright.bench.results import Answer, Facts, Store, Task
from kernelwright.bench.run import Options, run
from kernelwright.records import Workload

ANSWERS = Path(__file__).parents[2] / "examples" / "kernelbench-answers"
running_class = running.Running
QUICK = ("--target", "cpu", "--rival", "eager", "--rounds", "5", "--seconds", "0.3")


def bench(level: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "kernelwright",
        "bench",
        "kernelbench:1",
        "--path",
        str(level),
        *QUICK,
        *words,
        "--out",
        str(home / "out"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"KERNELWRIGHT_HOME": str(home)})


def test_answers_from_files_to_the_leaderboard(level, home):
    (level / "level1" / "8_Broken.py").write_text("import nowhere\n")
    sets = [f"{name}={ANSWERS / name}" for name in ("right", "wrong", "cheating", "flags-only")]
    words = [w for s in sets for w in ("--answers", s)]
    done = bench(level, *words, "--json", home=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    problems = {p["task"]: p for p in found["problems"]}
    answers = {a["entrant"]: a for a in problems["1/2"]["answers"]}
    assert answers["right"]["status"] == "correct" and answers["right"]["work"] == "own kernels"
    assert answers["flags-only"]["status"] == "correct" and answers["flags-only"]["work"] == "flags only"
    assert "torch.jit.script" in answers["flags-only"]["work_why"]
    assert answers["wrong"]["outcome"] == "WRONG_RESULT" and answers["cheating"]["status"] == "wrong"
    assert problems["1/6"]["degenerate"] and "zeros-pass" in [f["rule"] for f in problems["1/6"]["lint"]]
    reasons = {s["tasks"]: (s["reason"], s["why"]) for s in found["skipped"]}
    assert reasons["1/8"][0] == "dependency" and "nowhere" in reasons["1/8"][1]
    scores = {e["entrant"]: e for e in found["entrants"]}
    assert scores["right"]["score"]["tasks"] == 1 and scores["right"]["score"]["correct"] == 1, "the sound problem that can run"
    ratios = [r["ratio"] for r in answers["right"]["ratios"].values()]  # none where other load disturbed every sample
    assert scores["right"]["score"]["fast"]["1"] == float(any(r > 1 for r in ratios)) and scores["wrong"]["score"]["fast"]["0"] == 0.0
    assert scores["flags-only"]["own_work"]["correct"] == 0 and scores["flags-only"]["score"]["correct"] == 1
    assert scores["cheating"]["degenerate"]["tasks"] == 1 and scores["cheating"]["degenerate"]["correct"] == 0
    page = Path(found["report"]).read_text()
    assert "flags only" in page and "degenerate" in page and "<script" not in page
    # again: everything is known; a new set is judged alone
    before = Path(found["results"]).read_bytes()
    again = bench(level, *words, home=home)
    assert again.returncode == 0 and Path(found["results"]).read_bytes() == before
    assert "not run, dependency: 1/8" in again.stdout and "degenerate, scored apart: 1/6" in again.stdout


HANGING = """
import json, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[2]))
def say(**x): pipe.send_bytes(json.dumps(x).encode())
here = {"target": "cpu", "device": "x"}
say(type="opened", environment=here, peaks={"flops": {"fp32": 1.0}, "bandwidth_cold": 1.0, "bandwidth_warm": 1.0})
while True:
    order = json.loads(pipe.recv_bytes())
    task, w = order["task"], order["task"]["name"].split()[-1]
    say(type="doing", what="the work")
    if order["facts"] is None:
        if "hangs at once" in task["name"]:
            time.sleep(1000)
        say(type="task", task=task, workload=w, linted=True)
    elif not order["facts"]["linted"]:
        time.sleep(1000)
    for a in order["answers"]:
        if a["text"] == "hangs": time.sleep(1000)
        if a["text"] == "dies": sys.exit(3)
        say(type="answer", suite="s", task=a["task"], workload=w, entrant=a["entrant"], answer=a["origin"], sample=a["sample"],
            status="correct", environment=here, asked=order["asked"])
    say(type="done")
"""


def test_a_task_that_hangs_or_dies_ends_nothing_but_itself(tmp_path, monkeypatch):
    """A worker that does as it is told, in a real process."""
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(running, "Running", lambda target: running_class(target, "hanging"))
    workloads = [Workload(problem="gemm", axes={"M": i, "N": 1, "K": 1}) for i in (1, 2, 3)]
    names = ("hangs at once", "its lint hangs", "plain")
    tasks = [
        Task(suite="s", key=str(i), number=i, name=f"{name} {w.id}", workload=w)
        for i, (name, w) in enumerate(zip(names, workloads, strict=True), 1)
    ]

    def answer(task: Task, sample: int, text: str) -> Answer:
        made = Answer(entrant="e", task=task.key, sample=sample, text=text)
        return made.replace(origin=made.id)  # which takes no part in the id

    texts = {"1": ("good", "good"), "2": ("good", "good"), "3": ("good", "hangs", "dies", "good again")}
    answers = {t.key: tuple(answer(t, i, x) for i, x in enumerate(texts[t.key])) for t in tasks}
    store = Store(tmp_path / "r.jsonl")
    store.append(Facts(task=tasks[1], workload=workloads[1].id))
    assert run(tasks, [Entrant("e", answers)], store, "cpu", Options(task_seconds=1.0))
    found = {(r.task, r.sample): (r.status, r.skipped) for r in store.results.values()}
    lost = ("skipped", "time")
    assert [found["3", i] for i in range(4)] == [("correct", ""), lost, lost, ("correct", "")]
    assert all(found["1", i] == lost for i in range(2)), "a problem that cannot be looked into"
    assert all(found["2", i] == ("correct", "") for i in range(2)), "a problem that is known to run, whose lint is given up"
    assert "lint was given up" in store.facts[workloads[1].id].faults[0].text
    why = {r.sample: r.evidence for r in store.results.values() if r.task == "3"}
    assert "nothing happened for 1 s (during: the work)" in why[1] and "code 3" in why[2]
    more = [Entrant("e", {"3": (answer(tasks[2], 4, "more"),)})]
    assert not run(tasks, more, store, "cpu", Options(minutes=0.0)), "no time: not finished"


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
        (["chains", "--minutes", "3"], "--minutes is for judging answers"),
        (["chains", "--path", "LEVEL"], "chains needs none"),
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
