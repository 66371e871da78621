"""Optimizes every workload of a suite and writes what `results/` publishes: raw trials, a report, summary.json.

    python benchmarks/suite.py chains --target cpu --out results/cpu/chains
    python benchmarks/suite.py gemm-small --target cpu --out results/cpu/gemm
    python benchmarks/suite.py gemm-dozen chains --target cuda --out results/h200/main

Only confirmed trials are published: fresh process, whole ladder, all rivals, all timing modes. Losses are in the same table.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections import defaultdict
from pathlib import Path

from published import command_line, write_summary, write_trials

from kernelwright.archive import Archive
from kernelwright.evaluate import stats
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.loop import Budget, headline_mode, optimize
from kernelwright.problems import resolve
from kernelwright.problems.suites import SUITES, suite
from kernelwright.records import Trial
from kernelwright.report import html
from kernelwright.targets import usable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", help="names of suites, or problems")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--trials", type=int, default=48, help="candidates for each workload")
    parser.add_argument("--seconds", type=float, default=40.0, help="most seconds of search for each workload")
    parser.add_argument("--confirm-seconds", type=float, default=4.0, help="most seconds of each timing mode of the final measurement")
    parser.add_argument("--proposer", default="evolve")
    parser.add_argument("--add", action="append", help="trials.jsonl.gz of an earlier run, published together with these")
    parser.add_argument("--rival", action="append", help="only these rivals")
    parser.add_argument("--deadline", type=float, default=1e9, help="start no further workload after so many seconds")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    command = command_line("suite.py")
    target, started = usable(args.target), time.monotonic()
    budget = Budget(trials=args.trials, seconds=args.seconds, finalists=2, confirm_seconds=args.confirm_seconds)
    args.out.mkdir(parents=True, exist_ok=True)
    archive_path = args.out / "archive.db"
    workloads = [w for name in args.suites for w in (suite(name) if name in SUITES else (resolve(name),))]
    confirmed: list[Trial] = []
    for path in args.add or ():
        with gzip.open(path) as lines:
            confirmed += [t for t in map(Trial.from_json, lines) if t.workload not in workloads]
    with Archive(archive_path) as archive, Evaluator(target) as evaluator:
        environment, peaks = evaluator.environment, evaluator.peaks
        for index, w in enumerate(workloads, 1):
            if time.monotonic() - started > args.deadline:
                print(f"deadline: {len(workloads) - index + 1} workloads left out, from {w.name}", flush=True)
                break
            done = optimize(w, target, archive, proposer=args.proposer, budget=budget, rival_names=args.rival, evaluator=evaluator)
            found = [t for t in done.trials if t.stage == "confirm"]
            confirmed += found
            print(f"[{index}/{len(workloads)}] {line(w.name, done.winner, done.mode)}  ({done.seconds:.0f} s)", flush=True)
            write(args.out, confirmed, environment, command, target.name, time.monotonic() - started)
    write_trials(args.out, confirmed)
    html.write(args.out / "report.html", confirmed, title=", ".join(args.suites), command=command, target_peaks=peaks)


def line(name: str, winner: Trial | None, mode: str) -> str:
    if winner is None:
        return f"{name}: nothing verified"
    ratios = ", ".join(f"{c.ratio:.2f}x {c.rival}" for c in winner.comparisons if c.mode == mode)
    timing = winner.timing(mode)
    return f"{name}: {timing.median if timing else 0:.2f} us, {ratios}"


def write(out: Path, confirmed: list[Trial], environment, command: str, target: str, seconds: float) -> None:
    """summary.json: {command, date, environment, figures}."""
    mode = headline_mode(target)
    winners: dict[str, Trial] = {}
    for t in confirmed:
        if t.candidate.kind != "rival" and t.verdict.ok and (timing := t.timing(mode)):
            best = winners.get(t.workload.name)
            if best is None or timing.median < best.timing(mode).median:  # pyright: ignore[reportOptionalMemberAccess]
                winners[t.workload.name] = t
    against = defaultdict(list)
    table = []
    for name, t in winners.items():
        row = {"workload": name, "candidate": t.candidate.label, "trial": t.id, "us": {x.mode: x.median for x in t.timings}, "rivals": {}}
        for c in t.comparisons:
            against[f"{c.rival}, {c.mode}"].append(c)
            row["rivals"].setdefault(c.rival, {})[c.mode] = {
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "outcome": c.outcome,
                "rival_us": c.rival_us,
            }
        table.append(row)
    figures: dict = {"mode": mode, "workloads": len({t.workload.id for t in confirmed}), "verified": len(winners)}
    for rival in dict.fromkeys(c.rival for t in winners.values() for c in t.comparisons):
        found = [c for t in winners.values() for c in t.comparisons if c.rival == rival and c.mode == mode]
        if found:
            key = rival.replace("-", "_")
            figures[f"chains_faster_than_{key}" if all(n.startswith("chain:") for n in winners) else f"faster_than_{key}"] = sum(
                c.outcome == "win" for c in found
            )
            figures[f"ties_with_{key}"] = sum(c.outcome == "tie" for c in found)
            figures[f"slower_than_{key}"] = sum(c.outcome == "loss" for c in found)
            figures[f"geomean_over_{key}"] = stats.geomean([c.ratio for c in found])
            figures[f"worst_against_{key}"] = min(c.ratio for c in found)
    write_summary(out, command, environment, figures, seconds=round(seconds, 1), results=table)


if __name__ == "__main__":
    main()
