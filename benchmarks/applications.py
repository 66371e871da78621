"""Applications and open challenges on this machine: rivals right and timed, example answers up the whole ladder, and all mistakes refused.

    python benchmarks/applications.py --target cpu --items mistakes --out results/h200/applications
    python benchmarks/applications.py --target cuda --out results/h200/applications --minutes 5
    python benchmarks/applications.py --target cpu --out /tmp/applications --minutes 3

Mistakes are judged on a CPU, on any machine. Each item is written to items.jsonl when it is done; the same command goes on with those that
are missing. A rival that says nothing for --patience seconds is given up. Writes summary.json and trials.jsonl.gz at the end of each run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from published import command_line, write_summary, write_trials

from kernelwright import rivals
from kernelwright.candidate_file import load
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Job
from kernelwright.loop import headline_mode
from kernelwright.problems import resolve
from kernelwright.problems.applications import APPLICATIONS, CHALLENGES, Application
from kernelwright.records import Outcome, Trial, Workload
from kernelwright.targets import usable
from kernelwright.targets.target import Target

EXAMPLES = Path(__file__).parents[1] / "examples" / "applications"
ON_A_CPU = {
    "gpt-training": "1x32x96x32x4x2:fp32",
    "lennard-jones": "4x5x4",
    "sat": "4x20x86x4096",
    "bfs": "5000x30000",
    "sssp": "5000x30000",
    "pagerank": "5000x30000",
    "compression": "256x1024",
    "ntt": "16x1024",
    "msm": "64x2",
    "challenge-sat": "8x60x256x65536x300",
    "challenge-independent-set": "1000x6000x300",
    "challenge-compression": "128x512x300",
    "challenge-tour": "200x300",
}
"""Sizes for a CPU, and for the example answers anywhere; a GPU's rivals get the suite's own."""
SECONDS, ROUNDS = 2.0, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--minutes", type=float, default=12.0, help="start no further item after so many")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that a rival may say nothing (torch.compile)")
    parser.add_argument("--items", choices=("mistakes", "answer", "rivals"), action="append", help="only items of these kinds")
    parser.add_argument("--only", action="append", help="only these problems, by title")
    parser.add_argument("--rival", action="append", help="only these rivals (compiling a training step takes a minute or more)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    target, started = usable(args.target), time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "items.jsonl"
    items = read(path)
    done = {item["item"] for item in items}
    with Evaluator(target, rival_seconds=args.patience) as evaluator, path.open("a") as lines:
        environment = evaluator.environment
        for name, work in listed(target, evaluator, args.only, args.rival):
            if name in done or (args.items and name.partition(" ")[0] not in args.items):
                continue
            if time.monotonic() - started > 60 * args.minutes:
                print(f"time is up; left: {name} and what follows. The same command goes on.", flush=True)
                break
            begun = time.monotonic()
            try:
                found = work()
            except JudgeError as error:  # out of memory in a validator, say: the other items have results
                failed = {"outcome": "", "evidence": str(error), "us": {}, "ratios": {}, "scores": {}}
                found = {"ok": False, "figures": {"judge": failed}, "trials": []}
            item = {"item": name, **found, "seconds": round(time.monotonic() - begun, 1)}
            items.append(item)
            lines.write(json.dumps(item) + "\n")
            lines.flush()
            print(said(item), flush=True)
    write_trials(args.out, [Trial.from_json(text) for item in items for text in item["trials"]])
    bad = [item["item"] for item in items if not item["ok"]]
    untimed = [item["item"] for item in items if not item.get("timed", True)]
    figures = {"items": len(items), "ok": len(items) - len(bad), "not_ok": bad, "right_but_not_timed": untimed}
    results = [{k: v for k, v in item.items() if k != "trials"} for item in items]
    write_summary(args.out, command_line("applications.py"), environment, figures, results=results)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole; one that a killed process left half written is cut off, so that the next does not join it."""
    items = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            items.append(json.loads(line))
        except ValueError:
            continue
    if path.exists():
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return items


def listed(
    target: Target, evaluator: Evaluator, only: list[str] | None, wanted: list[str] | None
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Name and work of each item, the cheap and telling ones first, second sizes last."""
    problems = [p for p in (*APPLICATIONS, *CHALLENGES) if not only or p.title in only]
    for p in problems:
        yield f"mistakes {p.title}", lambda p=p: mistakes(p)
    for p in problems:
        for file in sorted(EXAMPLES.glob(f"{p.title.replace('-', '_')}.*")):
            if file.suffix == ".py" or file.suffix == (".cu" if target.kind == "cuda" else ".cpp"):
                w = resolve(f"{p.name}:{ON_A_CPU[p.title]}")
                yield f"answer {file.name} {w.name}", lambda w=w, file=file: answer(evaluator, target, w, file)
    sizes = [[p.workload(s) for s in p.full] if target.kind == "cuda" else [resolve(f"{p.name}:{ON_A_CPU[p.title]}")] for p in problems]
    for tier in range(max(map(len, sizes), default=0)):
        for w in (found[tier] for found in sizes if tier < len(found)):
            yield f"rivals {w.name}", lambda w=w: against(evaluator, target, w, wanted)


def mistakes(p: Application) -> dict[str, Any]:
    """Each wrong kernel, on the CPU: refused on one of the ladder's cases at least."""
    w, passed = p.workload(p.tiny[0]), []
    inputs = [p.generate(w, case, torch.Generator().manual_seed(1), "cpu") for case in p.cases(w)]
    for name, mistake in p.mistakes.items():
        outputs = [p.in_type(w, p.named(mistake(p, p.sizes(w), **x))) for x in inputs]
        if all(p.validate(w, x, y).passed for x, y in zip(inputs, outputs, strict=True)):
            passed.append(name)
    return {"ok": not passed, "mistakes": len(p.mistakes), "passed": passed, "trials": []}


def answer(evaluator: Evaluator, target: Target, w: Workload, file: Path) -> dict[str, Any]:
    python = file.suffix == ".py" and target.kind == "cuda"
    mode = "host-offline" if python else headline_mode(target.name)
    # every other shape would be a process of its own, with PyTorch and a context: 10 s each
    rungs = tuple(r for r in ALL_RUNGS if r != "shapes" or not python)
    job = Job(workload=w, rivals=("eager",), rungs=rungs, modes=(mode,), max_rounds=ROUNDS, seconds=SECONDS)
    return told([*evaluator.evaluate([load(file, w, target.name)], job, stage="verify", session="applications")])


def against(evaluator: Evaluator, target: Target, w: Workload, wanted: list[str] | None) -> dict[str, Any]:
    names = tuple(n for n in rivals.names_for(w, target.name) if not wanted or n in wanted)
    job = Job(workload=w, rivals=names, rungs=SCREEN_RUNGS, modes=(headline_mode(target.name),), max_rounds=ROUNDS, seconds=SECONDS)
    return told([*evaluator.evaluate_built([], job, stage="confirm", session="applications")])


def told(trials: list[Trial]) -> dict[str, Any]:
    figures = {
        t.candidate.label: {
            "outcome": t.verdict.outcome,
            "evidence": t.verdict.evidence,
            "us": {x.mode: x.median for x in t.timings},
            "ratios": {c.rival: c.ratio for c in t.comparisons},
            "scores": t.scores,
        }
        for t in trials
    }
    right = bool(trials) and all(t.verdict.outcome in (Outcome.OK, Outcome.NOISY) for t in trials)
    timed = all(t.timings for t in trials)
    return {"ok": right, "timed": timed, "figures": figures, "trials": [t.to_json() for t in trials]}


def said(item: dict[str, Any]) -> str:
    """One line."""
    parts = [
        f"{name} {f['outcome'] if f['us'] else f['evidence']} {f['us']} {f['ratios'] or ''} {f['scores'] or ''}"
        for name, f in item.get("figures", {}).items()
    ]
    return f"{'ok ' if item['ok'] else 'BAD'} {item['item']} ({item['seconds']} s): {'; '.join(parts) or item.get('passed')}"


if __name__ == "__main__":
    main()
