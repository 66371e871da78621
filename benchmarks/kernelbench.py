"""KernelBench's levels and published answers to them, re-scored on this machine in bounded time: OUT/summary.json with figures alone.

    python benchmarks/kernelbench.py --path KernelBench --answers CUDA-L1=h100.json --out OUT [--minutes 25] [--sample 20] [--levels 1 2 3]

Answers are judged on the problems that they were made for: CUDA-L1's on KernelBench's commit c6c4ab6 of January 2025, whose files are those
that it published beside them, all 250. Not one of them is in the checkouts of today, whose tensors are ten to a thousand times as large.

Checkout and answers stay where they are; nothing of them is copied into OUT but what the judge says of it. Each level's problems are a
sample drawn once (of those that are answered, if anything is), so that what a run of few minutes leaves is no choice of the easy ones; a
larger --sample adds to it. The minutes are shared by what is left to do, every result is on disk before the next begins, and the same
command goes on. Lint first, on any machine: with --lint-only the same folder knows the faults of the problems afterwards.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from published import command_line

RIVALS = ("eager", "compile", "graph", "compile-reduce", "cudnn-benchmark")
"""Without max-autotune, which takes a minute or more a problem; --rival adds it."""
CPU_RIVALS = ("eager", "compile")


def main(arguments: list[str] | None = None) -> int:
    from kernelwright.targets.target import TargetUnavailable

    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    boards: dict[str, Any] = {}
    for i, level in enumerate(options.levels):
        left = (until - time.monotonic()) / 60
        minutes = max(0.1, left / (len(options.levels) - i))
        try:
            boards[level] = _level(level, options, minutes)
        except (ValueError, TargetUnavailable) as error:  # a checkout or answers that cannot be read, a target that is not here
            print(error, file=sys.stderr)
            return 2
        _write(options, boards)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--answers", action="append", default=[], metavar="[NAME=]PATH")
    parser.add_argument("--entrant", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--levels", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--sample", type=int, default=20, help="problems of each level")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--rival", action="append", default=[])
    parser.add_argument("--mode", action="append", default=[], help="timing modes; Python answers are compared in host-offline alone")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds without a sign of life: the problem is given up")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--lint-only", action="store_true")
    parser.add_argument("--no-lint", action="store_true", help="take the faults that the folder knows; look for no others")
    parser.add_argument("--no-operators", action="store_true", help="do not have nvcc compile answers once more to see what they execute")
    return parser.parse_args(arguments)


def sample(level: str, options: argparse.Namespace) -> list[int]:
    """Numbers of the level's problems, in order; a larger sample holds the smaller."""
    from kernelwright.bench.answers import read
    from kernelwright.bench.tasks import kernelbench

    tasks = kernelbench(level, options.path, options.dtype)
    entrants = [read(text, tasks) for text in options.answers]
    answered = [t.number for t in tasks if not entrants or any(t.key in e.answers for e in entrants)]
    return sorted(random.Random(int(level)).sample(answered, len(answered))[: options.sample])


def _level(level: str, options: argparse.Namespace, minutes: float) -> dict[str, Any]:
    from kernelwright.targets import usable

    numbers = sample(level, options)
    usual = CPU_RIVALS if usable(options.target).kind == "cpu" else RIVALS
    rivals = options.rival or usual
    command = [sys.executable, "-m", "kernelwright", "bench", f"kernelbench:{level}", "--path", str(options.path), "--json"]
    command += ["--only", ",".join(map(str, numbers)), "--dtype", options.dtype, "--target", options.target]
    command += ["--minutes", f"{minutes:.2f}", "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    command += ["--out", str(options.out / f"level{level}"), "--patience", str(options.patience)]
    for word, values in (("--mode", options.mode), ("--rival", rivals), ("--answers", options.answers), ("--entrant", options.entrant)):
        command += [x for value in values for x in (word, value)]
    flags = (("--lint-only", options.lint_only), ("--no-lint", options.no_lint), ("--no-operators", options.no_operators))
    command += [word for word, given in flags if given]
    # the verb ends by itself when its minutes are over and its last problem is done; an hour more is for one that does not
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60 * minutes + 3600)
    except subprocess.TimeoutExpired:
        return {"error": "the verb did not end within an hour of its minutes"}
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": f"the verb exited with {done.returncode}"}


def figures(board: dict[str, Any]) -> dict[str, Any]:
    """Of one level, without a line of anybody's code."""
    if board.get("error"):
        return {"error": board["error"]}
    entrants = {}
    for e in board["entrants"]:
        kept = ("score", "own_work", "degenerate", "against", "by_domain", "pass_at", "best_of_samples")
        entrants[e["entrant"]] = {name: e[name] for name in kept} | {"notes": e["notes"]}
    return {
        "finished": board["finished"],
        "problems": len(board["problems"]),
        "degenerate": sorted(board["degenerate"]),
        "skipped": board["skipped"],
        "entrants": entrants,
        "claims": board["claims"],
        # a compiler quotes the lines that it refuses
        "differences": [d | {"reasons": [r.partition("\n")[0][:200] for r in d["reasons"]]} for d in board["differences"]],
        "answers": [
            {
                "task": p["task"],
                "entrant": a["entrant"],
                "sample": a["sample"],
                "status": a["status"],
                "outcome": a["outcome"],
                "mode": a["mode"],
                "us": a["us"],
                "ratios": a["ratios"],
                "work": a["work"],
                "degenerate": p["degenerate"],
            }
            for p in board["problems"]
            for a in p["answers"]
        ],
    }


def _write(options: argparse.Namespace, boards: dict[str, Any]) -> None:
    file = options.out / "summary.json"
    earlier = json.loads(file.read_text()) if file.exists() else {}
    found = [b for b in boards.values() if b.get("device")]
    summary = {
        "command": command_line("kernelbench.py"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": found[0]["device"] if found else earlier.get("device", ""),
        "environment": found[0]["environment"] if found else earlier.get("environment", {}),
        # those of levels that this call was not asked for stay
        "figures": earlier.get("figures", {}) | {f"level {level}": figures(board) for level, board in boards.items()},
    }
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(file)


if __name__ == "__main__":
    sys.exit(main())
