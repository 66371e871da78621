"""The suite `experts`, checked by itself and timed: what `results/GPU/suites` publishes.

    python benchmarks/experts.py --target cpu --checks only --minutes 20 --out results/h200/suites
    python benchmarks/experts.py --target cuda --checks none --minutes 10 --out results/h200/suites
    python benchmarks/experts.py --target cpu --suite experts-tiny --minutes 5 --out /tmp/suites

The checks: every problem on small sizes, its reference against a second implementation, lint, eager (on a CPU the experts too) up the
ladder, wrong kernels that must be rejected. They need no GPU. The timings: eager and the experts on every workload of the suite, verified
and timed side by side, the first size of every problem before the second, and those that compile last among each. Each result is a line of
`checks.jsonl`, `trials.jsonl` or `failed.jsonl` when it is there, and the same command goes on after the last; `--minutes` ends it. Whoever
hangs is killed after `--patience` seconds and loses its turn alone.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from published import command_line, write_summary, write_trials

from kernelwright import rivals
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.evaluate.jobs import SCREEN_RUNGS, Job
from kernelwright.loop import headline_mode
from kernelwright.problems import problem_of
from kernelwright.problems.experts import EXPERTS, Expert
from kernelwright.problems.suites import suite
from kernelwright.records import Environment, Trial, Workload
from kernelwright.rivals.experts import RIVALS, experts_of
from kernelwright.targets import usable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--suite", default="experts")
    parser.add_argument("--only", action="append", help="problems by title; the default is all")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--checks", choices=("first", "only", "none"), default="first", help="first: before the timings")
    parser.add_argument("--mode", action="append", help="timing modes; the default is the target's headline mode")
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile, default mode, rides along (10 to 60 s more for each workload)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="most rounds of a mode")
    parser.add_argument("--seconds", type=float, default=1.5, help="most seconds of a mode")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds without a sign of life, after which a contender is killed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print the table of docs/experts.md, and do nothing else")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    if args.out is None:
        parser.error("name a folder for the results with --out")

    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    target = usable(args.target)
    device = "cuda" if target.name.startswith("cuda") else "cpu"
    wanted = [p for p in EXPERTS if not args.only or p.title in args.only]
    modes = tuple(args.mode or (headline_mode(target.name),))
    if args.checks != "none":
        checked = {c["problem"] for c in lines(args.out / "checks.jsonl")}
        for check in checks([p.title for p in wanted if p.title not in checked], device, args.patience, end):
            add(args.out / "checks.jsonl", json.dumps(check))
            print(f"check {check['problem']}: {told(check)}", flush=True)
    if args.checks == "only":
        return
    with Evaluator(target, rival_seconds=args.patience) as evaluator:
        environment = evaluator.environment
        publish = partial(write, args.out, environment, target.name, modes[0])
        done = {t.workload.name for t in trials(args.out)} | {f["workload"] for f in lines(args.out / "failed.jsonl")}
        names = {p.name for p in wanted}
        left = [w for w in first_ones_first(suite(args.suite)) if w.problem in names and w.name not in done]
        for index, w in enumerate(left, 1):
            if time.monotonic() > end:
                print(f"time is up: {len(left) - index + 1} workloads left, from {w.name}; the same command goes on", flush=True)
                break
            problem = problem_of(w)
            assert isinstance(problem, Expert)
            if why := problem.unfit(w, target.facts().sm, memory(environment)):
                add(args.out / "failed.jsonl", json.dumps({"workload": w.name, "why": why}))
                print(f"[{index}/{len(left)}] skipped: {why}", flush=True)
                continue
            started = time.monotonic()
            contenders = ("eager", *(["compile"] if args.compile else []), *rivals.experts_for(w, target.name))
            job = Job(workload=w, rivals=contenders, rungs=SCREEN_RUNGS, modes=modes, max_rounds=args.rounds, seconds=args.seconds)
            try:
                found = list(evaluator.evaluate_built([], job, stage="confirm", session=uuid.uuid4().hex[:12]))
            except JudgeError as error:  # out of memory in a reference, say: this workload has no result, the others do
                add(args.out / "failed.jsonl", json.dumps({"workload": w.name, "why": str(error)}))
                print(f"[{index}/{len(left)}] {w.name}: {error}", flush=True)
                continue
            for t in found:
                add(args.out / "trials.jsonl", t.to_json())
            print(f"[{index}/{len(left)}] {row(w, found, modes[0])}  ({time.monotonic() - started:.1f} s)", flush=True)
            if index % 10 == 0:
                publish()
        publish()
        write_trials(args.out, trials(args.out))


def memory(environment: Environment) -> float:
    """Bytes of the device."""
    found = environment.facts.get("memory GB")
    return 1e9 * float(found) if found is not None else float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def first_ones_first(workloads: tuple[Workload, ...]) -> list[Workload]:
    """The first shape of every problem, then the second ones: time that runs out costs shapes, not problems. Of each, those whose experts
    compile (10 to 60 s) come last."""
    seen: dict[str, int] = {}
    order = []
    for w in workloads:
        seen[w.problem] = seen.get(w.problem, 0) + 1
        compiles = any(r.compiled or r.name == "flex" for r in experts_of(w))
        order.append((seen[w.problem], compiles, len(order), w))
    return [w for *_, w in sorted(order, key=lambda x: x[:3])]


# ---------------------------------------------------------------------------------------------------------------- checks


def checks(titles: list[str], device: str, patience: float, end: float) -> Iterator[dict[str, Any]]:
    """One a problem, from a process that is started again when it hangs or dies."""
    context = multiprocessing.get_context("spawn")
    process, pipe = None, None
    for title in titles:
        if time.monotonic() > end:
            break
        if process is None:
            pipe, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(theirs, device), daemon=True)
            process.start()
            theirs.close()
        assert pipe is not None
        try:
            pipe.send(title)
            if not pipe.poll(patience):
                raise EOFError
            yield pipe.recv()
        except (EOFError, OSError):
            assert process.pid is not None
            alive = process.is_alive()
            if alive:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
            pipe.close()
            yield {
                "problem": title,
                "fault": f"no answer within {patience:.0f} s" if alive else f"the process ended with {process.exitcode}",
            }
            process = None
    if process is not None and pipe is not None:
        pipe.close()
        process.join(10)
        if process.is_alive():
            process.kill()


def _worker(pipe: Connection, device: str) -> None:
    import torch

    from kernelwright.targets.python_module import match_precision

    match_precision()  # as in the judge
    torch.set_num_threads(1)  # of the CPU's half: tensors of a few hundred elements
    while True:
        try:
            title = pipe.recv()
        except EOFError:
            return
        problem = next(p for p in EXPERTS if p.title == title)
        try:
            pipe.send(check_of(problem, device))
        except Exception as error:  # a fault of the suite's own: to be published, and the others go on
            pipe.send({"problem": title, "fault": f"{type(error).__name__}: {error}"})


def check_of(problem: Expert, device: str) -> dict[str, Any]:
    """All four checks of one problem."""
    from kernelwright.evaluate.suite_check import climb, disagreement, rival, survivors
    from kernelwright.problems.lint import lint

    w = problem.workload(problem.tiny[0])
    differs = [text for sizes in problem.tiny if (text := disagreement(problem, problem.workload(sizes)))]
    findings = [f"{f.severity}: {f.text}" for f in lint(problem.workload(problem.full[0])) if f.severity != "note"]
    # on a GPU libraries do not take every small size: there the experts are verified at the suite's own
    names = ("eager", *(rivals.experts_for(w, device) if device == "cpu" else ()))
    wrong = {name: why for name in names if (why := climb(problem, w, partial(rival, name), device=device))}
    return {
        "problem": problem.title,
        "device": device,
        "reference_differs": differs,
        "lint": findings,
        "contenders": list(names),
        "wrong": wrong,
        **survivors(problem, w, device=device),
    }


def told(check: dict[str, Any]) -> str:
    if "fault" in check:
        return check["fault"]
    bad = [*check["reference_differs"], *check["lint"], *(f"{k}: {v}" for k, v in check["wrong"].items()), *check["passed"]]
    return f"{check['mutants']} mutants, {', '.join(check['contenders'])}: {'; '.join(bad) or 'all as it should be'}"


# --------------------------------------------------------------------------------------------------------------- results


def lines(path: Path) -> list[dict[str, Any]]:
    """What is whole of a file of JSON lines: a process that was killed may have left half of the last."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def table() -> str:
    """Markdown: every problem of the suite, by kind."""
    parts = []
    for kind in ("kernel", "module"):
        rows = ["| problem | computes | sizes | experts | tolerance | memory |", "|---|---|---|---|---|---|"]
        for p in EXPERTS:
            if p.kind != kind:
                continue
            sizes = "; ".join(
                f"{' x '.join(p.axes)} = {'x'.join(map(str, s))}" if s is p.full[0] else "x".join(map(str, s)) for s in p.full
            )
            who = "; ".join(f"`{r.name}`: {r.library}{' (GPU only)' if r.cuda_only else ''}" for r in RIVALS[p.title])
            memory = max(p.memory(p.workload(s)) for s in p.full) / 2**30
            formula = p.formula.replace("|", "\\|")
            rows.append(f"| `{p.title}` {p.dtypes[0]} | {formula} | {sizes} | {who} | {p.tolerance} | {memory:.1f} GiB |")
        parts.append("\n".join(rows))
    return f"## Kernels\n\n{parts[0]}\n\n## Modules\n\n{parts[1]}"


def trials(out: Path) -> list[Trial]:
    return [Trial.from_json(json.dumps(x)) for x in lines(out / "trials.jsonl")]


def add(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()


def row(w: Workload, found: list[Trial], mode: str) -> str:
    parts = []
    for t in found:
        timing = t.timing(mode)
        parts.append(f"{t.candidate.source} {timing.median:.1f} us" if timing else f"{t.candidate.source} {t.verdict.outcome}")
    return f"{w.name}: {', '.join(parts) or 'nothing'}"


def write(out: Path, environment: Any, target: str, mode: str) -> None:
    """summary.json. Figures of others in the same file stay."""
    table: dict[str, dict[str, Any]] = {}
    for t in trials(out):
        w, problem = t.workload, problem_of(t.workload)
        assert isinstance(problem, Expert)
        empty = {"workload": w.name, "kind": problem.kind, "domain": problem.domain, "us": {}, "wrong": {}, "expert": "", "seconds": 0.0}
        line = table.setdefault(w.name, empty)
        line["seconds"] = round(t.seconds, 1)  # of all contenders together
        name = t.candidate.source
        if not t.verdict.ok:
            line["wrong"][name] = f"{t.verdict.outcome}: {t.verdict.evidence}"
            continue
        us = line["us"][name] = {x.mode: round(x.median, 3) for x in t.timings}
        fastest = line["us"].get(line["expert"], {}).get(mode, math.inf)
        if name in rivals.experts_for(w, target) and us.get(mode, math.inf) < fastest:
            line["expert"] = name
    found = [c for c in lines(out / "checks.jsonl") if "fault" not in c]
    figures = {
        "experts_problems": len(EXPERTS),
        "experts_kernels": sum(p.kind == "kernel" for p in EXPERTS),
        "experts_modules": sum(p.kind == "module" for p in EXPERTS),
        "experts_checked": len(found),
        "experts_reference_agrees": sum(not c["reference_differs"] for c in found),
        "experts_lint_clean": sum(not c["lint"] for c in found),
        "experts_contenders_right": sum(len(c["contenders"]) - len(c["wrong"]) for c in found),
        "experts_contenders": sum(len(c["contenders"]) for c in found),
        "experts_mutants_rejected": sum(c["mutants"] - len(c["passed"]) for c in found),
        "experts_mutants": sum(c["mutants"] for c in found),
        "experts_workloads": len(table),
        "experts_seconds": round(sum(line["seconds"] for line in table.values()), 1),
        "experts_workloads_with_a_right_expert": sum(bool(line["expert"]) for line in table.values()),
    }
    earlier = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else {}
    kept = {
        k: v for k, v in earlier.items() if k not in ("command", "date", "environment", "figures", "mode", "results", "checks", "failed")
    }
    figures = {k: v for k, v in earlier.get("figures", {}).items() if not k.startswith("experts_")} | figures
    more = {"mode": mode, "results": list(table.values()), "checks": lines(out / "checks.jsonl"), "failed": lines(out / "failed.jsonl")}
    write_summary(out, command_line("experts.py"), environment, figures, **kept, **more)


if __name__ == "__main__":
    main()
