"""What keeps a measurement going: restarts after a hang and a crash, and the end of the time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import argparse, os, sys, time
from pathlib import Path
from measuring import Budget, Lines, hopeless, read, refuse, supervise

parser = argparse.ArgumentParser()
parser.add_argument("raw", type=Path)
parser.add_argument("--seconds", type=float, default={seconds})
parser.add_argument("--inner", action="store_true")
args = parser.parse_args()
if not args.inner:
    sys.exit(0 if supervise(args.seconds, args.raw) else 1)
budget, lines = Budget(args.seconds, 2.0), Lines(args.raw)
done = {{x["end"] for x in read(args.raw) if "end" in x}} | hopeless(read(args.raw))
for step in ("fine", "hangs", "crashes", "also fine")[:{steps}]:
    if step not in done and budget.left > 0:
        budget.watch()
        lines.add({{"start": step}})
        {work}
        lines.add({{"end": step}})
"""
FAULTS = 'if step == "hangs": time.sleep(60)\n        if step == "crashes": os.abort()'


def run(folder: Path, work: str, seconds: float, steps: int = 4) -> tuple[int, float, list[dict]]:
    import measuring

    (folder / "program.py").write_text(PROGRAM.format(work=work, seconds=seconds, steps=steps))
    started = time.monotonic()
    path = f"{ROOT / 'benchmarks'}:{ROOT / 'src'}"
    done = subprocess.run(
        [sys.executable, "program.py", "raw.jsonl"], cwd=folder, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}, timeout=200
    )
    return done.returncode, time.monotonic() - started, measuring.read(folder / "raw.jsonl")


@pytest.mark.slow
def test_what_hangs_or_crashes_is_tried_twice_and_then_passed_over(tmp_path):
    import measuring

    code, _, lines = run(tmp_path, FAULTS, 150)
    assert code == 0
    assert [x["end"] for x in lines if "end" in x] == ["fine", "also fine"]
    assert measuring.hopeless(lines) == {"hangs", "crashes"}


@pytest.mark.slow
def test_where_nothing_comes_of_it_there_is_an_end(tmp_path):
    code, _, lines = run(tmp_path, "os._exit(7)", 100, steps=1)
    assert code in (0, 1) and len(lines) == 2, "it was begun twice"


def test_what_the_end_of_the_time_cuts_short_does_not_hang(tmp_path, monkeypatch):
    import measuring

    raw = tmp_path / "raw.jsonl"
    monkeypatch.setattr(measuring, "GRACE", 0.1)
    monkeypatch.setattr(measuring.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["-c", "import time; time.sleep(60)"])
    for _ in range(2):
        measuring.Lines(raw).add({"start": "x"})
        assert measuring.supervise(1.1, raw)
    lines = measuring.read(raw)
    assert lines == [{"start": "x"}, {"stopped": "x"}] * 2 and measuring.hopeless(lines) == set()
    assert measuring.hopeless([*lines, {"start": "x"}, {"start": "x"}]) == {"x"}


def test_a_refusal_is_said_once(tmp_path):
    code, _, lines = run(tmp_path, 'refuse("no GPU")', 100)
    assert code == 1 and lines == [{"start": "fine"}]


def test_a_line_that_was_torn_does_not_spoil_the_next(tmp_path):
    import measuring

    (tmp_path / "raw.jsonl").write_text('{"end": "one"}\n{"end": "tw')
    measuring.Lines(tmp_path / "raw.jsonl").add({"end": "three"})
    assert [x["end"] for x in measuring.read(tmp_path / "raw.jsonl")] == ["one", "three"]


def test_rounds_are_interleaved_and_operands_take_turns(monkeypatch):
    import measuring

    seen = []
    contenders = {name: (lambda i, name=name: seen.append((name, i))) for name in ("kw", "torch", "kw again")}
    taken = measuring.rounds(contenders, [(0,), (1,)], 6, measuring.Budget(60, 60), lambda call, operands: (call(*operands), 1.0)[1])
    measuring.Budget(1, 1).close()
    assert {name: len(x) for name, x in taken.items()} == dict.fromkeys(contenders, 6)
    timed = seen[3:]
    assert [i for _, i in timed] == [0, 1] * 9
    orders = {tuple(name for name, _ in timed[3 * r : 3 * r + 3]) for r in range(6)}
    assert all(set(order) == set(contenders) for order in orders) and len(orders) > 1


def test_a_short_sample_during_which_the_core_was_taken_away_is_none(monkeypatch):
    import measuring
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    switches = iter([0, 0, 1, 2, 2, 3])
    monkeypatch.setattr(measuring, "_switches", lambda: next(switches))
    assert measuring.sample(lambda: None, ()) is not None
    assert measuring.sample(lambda: None, ()) is None
    monkeypatch.setattr(measuring, "SHORT", 0.0)  # a long one always meets others: it counts
    assert measuring.enqueued(lambda: None, ()) is not None


def test_disturbed_rounds_do_not_count():
    import measuring

    samples = {
        "kw": [1.0, None, 1.0, 1.0, 1.0],
        "kw again": [1.0, 1.0, 1.0, 1.0, 1.0],
        "torch": [2.0, 2.0, None, 2.0, 2.0],
        "cublas": [2.0, 2.0] + [None] * 3,
    }
    found = measuring.compared(samples, "offline")
    assert set(found) == {"torch"}, "cublas has two rounds"
    assert (found["torch"].rounds, found["torch"].ratio, found["torch"].mode) == (3, 2.0, "host-offline")
