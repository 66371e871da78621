"""Whether known cheats are caught, honest kernels pass, and what that costs: `results/trust/summary.json`.

    python benchmarks/trust.py --target cpu --out results/trust [--seconds 300] [--only cost]

The audit is what `kernelwright audit` runs. Its findings are added to `audit-TARGET.jsonl` one by one; `--resume` judges what is not among
them, kernels whose source has changed too. The cost is what the same Jobs take in one judge with and without what protects the figures, in
turns: inputs drawn for every round and altered for every sample, poison, guard bands, checks of timed launches, launches that are looked at
alone, and on a CPU the confinement and the stopping of a candidate's process.
Comparing with the references (the ladder) is in both: without it nothing is measured. `of_all` is the share of compiling, on one core, and
judging; `of_the_judge` leaves compiling out. Each target's part is written by itself, into what the other left; coverage and the number of
malformed inputs are read from their own results.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
WORKLOADS = {
    "cpu": ("gemm:256x256x256:fp32", "gemm:512x1024x512:fp32", "chain:softmax:1024x1024", "chain:layernorm:4096x1024"),
    "cuda": (
        "gemm:64x64x64:fp16",
        "gemm:1024x1024x1024:fp16",
        "gemm:4096x4096x4096:fp16",
        "gemm:64x12288x12288:fp16",
        "chain:softmax:4096x4096",
    ),
}
BATCH = 4
"""Kernels of a Job, as a search measures several of one Workload together."""
COMPILERS = 4
"""At a time: few enough that what one takes is what it takes alone."""


def earlier(file: Path) -> list[Any]:
    """The findings of a run that the time cut short; its last line may be a part of one."""
    from kernelwright.evaluate.corpus import Finding

    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            said.pop("right")
            found.append(Finding(**said | {"expected": tuple(said["expected"])}))
    return found


def _line(finding: Any) -> str:
    line = json.dumps(dataclasses.asdict(finding) | {"right": finding.right}) + "\n"
    # where the interpreter lies says something of the machine alone
    return line.replace(sys.prefix, "PYTHON").replace(sys.base_prefix, "PYTHON")


def audit(target_name: str, out: Path, seconds: float, honest: int, resume: bool) -> dict[str, Any]:
    from kernelwright.evaluate.corpus import HONEST, audit_of, auditor, summary, suspects
    from kernelwright.evaluate.evaluator import JudgeError
    from kernelwright.targets import usable

    target, until = usable(target_name), time.monotonic() + seconds
    cheats, kernels = suspects(ROOT / "tests" / "cheats", target, honest)
    every = {(one.name, one.candidate.id): one for one in (*cheats, *kernels)}
    file = out / f"audit-{target_name}.jsonl"
    before = {key: f for f in earlier(file) if (key := (f.name, f.candidate)) in every} if resume else {}
    found = list(before.values())
    file.write_text("".join(map(_line, found)))
    with auditor(target) as evaluator, file.open("a") as raw:
        environment = json.loads(evaluator.environment.to_json())
        environment["host"] = environment["host"].rpartition(", ")[0]  # without its name
        try:
            for finding in audit_of(evaluator, [one for key, one in every.items() if key not in before]):
                found.append(finding)
                raw.write(_line(finding))
                raw.flush()
                if not finding.right:
                    print(f"{finding.what}: {finding.name}: {finding.outcome}: {finding.evidence}", file=sys.stderr)
                if time.monotonic() > until:
                    break
        except JudgeError as error:  # again and again: what there is is published
            print(error, file=sys.stderr)
    said = summary(found)
    return {
        "cheats_caught": said["caught"],
        "cheats_total": said["cheats"] - said["harmless"],
        "harmless": said["harmless"],
        "kinds": len({f.kind for f in found} - {HONEST}),
        "passed": said["passed"],
        "honest": said["honest"],
        "false_alarms": len(said["false_alarms"]),
        "refused": said["false_alarms"],
        "noisy": said["noisy"],
        "left_out": len(every) - len(found),
        "environment": environment,
    }


@contextlib.contextmanager
def unprotected(kind: str) -> Iterator[None]:
    """In this process a judge believes every candidate after the ladder, and keeps no guard around it."""
    from kernelwright.evaluate import timing
    from kernelwright.evaluate.buffers import Buffers
    from kernelwright.evaluate.verify import Judged, Ladder

    def nothing(*_: Any, **__: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        change = lambda where, name, to: stack.enter_context(mock.patch.object(where, name, to))  # noqa: E731
        for name in ("renew", "check_alone"):
            change(timing._Spot, name, nothing)
        change(timing._Spot, "check", lambda *_: Judged(True, 0.0, 0.0, None))
        change(timing, "refill", nothing)  # the judge has filled the buffers once for each mode
        for name in ("poison", "disturbed"):
            change(Buffers, name, nothing)
        change(Ladder, "_memory", nothing)
        if kind == "cpu":
            from kernelwright.targets import cpu_device, sandbox

            made, layers = cpu_device.ContenderProcess, sandbox.probe()
            change(cpu_device, "ContenderProcess", lambda *a, stops, **k: made(*a, stops=False, **k))
            change(cpu_device, "_enter", lambda *_: layers)
            for name in ("_hold", "_hold_at_once"):
                change(cpu_device.CpuContender, name, nothing)
        yield


def cost(target_name: str, seconds: float) -> dict[str, Any]:
    from kernelwright.evaluate import timing
    from kernelwright.evaluate.build import Builder
    from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Entry, Job
    from kernelwright.evaluate.judge import Judge
    from kernelwright.families import families_for
    from kernelwright.loop import headline_mode
    from kernelwright.problems import resolve
    from kernelwright.records import Verdict
    from kernelwright.targets import usable

    target = usable(target_name)
    builder, device, facts = Builder(target, jobs=COMPILERS), target.open(), target.facts()
    judge, mode, rounds = Judge(device, facts.sms, lambda _: None), headline_mode(target.name), 5
    timing.PATIENCE = 1  # as many rounds with as without, disturbed ones or not
    every: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    for share, text in enumerate(WORKLOADS[target.kind], start=1):
        w = resolve(text)
        rendered = [family.render(seed, w, facts) for family in families_for(w, facts)[0] for seed in family.seeds(w, facts)]
        some = list({c.id: c for c in rendered}.values())[:BATCH]
        entries = tuple(Entry(candidate=c, build=b) for c, b in builder.builds(some) if not isinstance(b, Verdict))
        limits = {"min_rounds": rounds, "max_rounds": rounds, "seconds": 60.0, "tolerance": 0.0}
        jobs = {
            "screen": Job(workload=w, entries=entries, rivals=("eager",), rungs=SCREEN_RUNGS, modes=(mode,), **limits),
            "confirm": Job(workload=w, entries=entries, rivals=("eager",), rungs=ALL_RUNGS, modes=(mode,), noise=True, **limits),
        }
        took: dict[tuple[str, bool], list[float]] = {(job, safe): [] for job in jobs for safe in (True, False)}
        turn = until - (len(WORKLOADS[target.kind]) - share) * seconds / len(WORKLOADS[target.kind])
        judge.run(jobs["screen"])  # loads what is loaded once
        while min(map(len, took.values())) < 3 or time.monotonic() < turn:
            for job, safe in random.sample(list(took), len(took)):
                with contextlib.nullcontext() if safe else unprotected(target.kind):
                    started = time.monotonic()
                    reply = judge.run(jobs[job])
                    took[job, safe].append(time.monotonic() - started)
                if bad := [r.verdict.evidence for r in reply.results if not r.verdict.ok and r.verdict.outcome != "NOISY"]:
                    raise SystemExit(f"{text}: an honest kernel was refused: {bad[0]}")
            if time.monotonic() > until + seconds:
                break
        for job in jobs:
            safe, bare = median(took[job, True]), median(took[job, False])
            compiled = sum(e.build.seconds for e in entries if e.build is not None)
            every.append(
                {"workload": w.name, "job": job, "seconds": safe, "unprotected": bare, "compiling": compiled, "turns": len(took[job, True])}
            )
            print(f"{w.name} {job}: {1e3 * safe:.1f} ms, unprotected {1e3 * bare:.1f} ms", file=sys.stderr)
    builder.__exit__()
    shares = {}
    for job in ("screen", "confirm"):
        safe, bare, compiled = (sum(one[key] for one in every if one["job"] == job) for key in ("seconds", "unprotected", "compiling"))
        shares[job] = {"of_the_judge": round((safe - bare) / safe, 4), "of_all": round((safe - bare) / (safe + compiled), 4)}
    environment = json.loads(device.environment().to_json())
    environment["host"] = environment["host"].rpartition(", ")[0]
    return {"cost_share": shares, "kernels_a_job": BATCH, "rounds": rounds, "cost": every, "cost_environment": environment}


def publish(out: Path, target: str, name: str, part: dict[str, Any]) -> None:
    """This target's part (`name`: audit or cost) beside what else there is, and what all come to."""
    path = out / "summary.json"
    targets = {"cpu": None, "cuda": None} | (json.loads(path.read_text())["targets"] if path.exists() else {})
    before = targets[target] or {}
    ran, earlier_run = {"command": _said(sys.argv), "date": datetime.date.today().isoformat()}, before.get("ran", {}).get(name)
    if "--resume" in sys.argv and earlier_run:
        ran["command"] = f"{earlier_run['command']}; {ran['command']}"
    targets[target] = before | part | {"ran": before.get("ran", {}) | {name: ran}}
    measured = [t for t in targets.values() if t and "cheats_total" in t]
    coverage = json.loads((RESULTS / "statistics" / "summary.json").read_text())["ci_coverage"]
    summary = {
        **{key: sum(t[key] for t in measured) for key in ("cheats_caught", "cheats_total", "false_alarms", "honest")},
        "ci_coverage": {key: coverage[key] for key in ("lowest", "highest", "mean")},
        "fuzz_inputs": json.loads((RESULTS / "fuzz" / "summary.json").read_text())["inputs"],
        "audit_cost_share": {name: t["cost_share"] for name, t in targets.items() if t and "cost_share" in t},
        "targets": targets,
    }
    path.write_text(json.dumps(summary, indent=1) + "\n")


def _said(words: list[str]) -> str:
    """The command, without where it wrote to."""
    words = [w for i, w in enumerate(words) if w != "--out" and words[i - 1] != "--out"]
    return " ".join(["python", "benchmarks/trust.py", *words[1:]])


def main() -> None:
    from kernelwright.targets import usable
    from kernelwright.targets.target import TargetUnavailable

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "trust")
    parser.add_argument("--seconds", type=float, default=1500.0, help="limit of the audit")
    parser.add_argument("--cost-seconds", type=float, default=120.0, help="time of measuring the cost")
    parser.add_argument("--honest", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="judge what an earlier run left no finding of in --out")
    parser.add_argument("--only", choices=("audit", "cost"))
    asked = parser.parse_args()
    try:
        usable(asked.target)
    except TargetUnavailable as error:
        sys.exit(str(error))
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.only != "cost":
        publish(asked.out, asked.target, "audit", audit(asked.target, asked.out, asked.seconds, asked.honest, asked.resume))
    if asked.only != "audit":
        publish(asked.out, asked.target, "cost", cost(asked.target, asked.cost_seconds))


if __name__ == "__main__":
    main()
