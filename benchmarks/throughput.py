"""How many candidates a second: compiled, and verified and timed once they are built.

python benchmarks/throughput.py chain:new-gelu:64x1024 --target cpu --out results/cpu/throughput
python benchmarks/throughput.py gemm:1024x1024x1024:fp16 --target cuda --out results/h200/throughput
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from published import command_line, write_summary

from kernelwright import propose
from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import Job
from kernelwright.families import families_for
from kernelwright.loop import screen_job
from kernelwright.problems import resolve
from kernelwright.targets import target as target_of
from kernelwright.targets import usable
from kernelwright.targets.cpu import cpu_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--count", type=int, default=40, help="candidates for each problem")
    parser.add_argument("--jobs", type=int, default=1, help="compiling processes: 1 gives the rate of a core")
    parser.add_argument("--compile-only", action="store_true", help="for an architecture that is not here: cuda:sm_90")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    target = target_of(args.target) if args.compile_only else usable(args.target)
    facts, rows, environment = target.facts(), [], {"target": target.name, "compiled on": cpu_name()}
    with Evaluator(target, builder=Builder(target, args.jobs)) as evaluator:
        for text in args.problems:
            w = resolve(text)
            families, _ = families_for(w, facts)
            first, *candidates = propose.make("random", w, families, facts, seed=1).propose(args.count + 1)
            list(evaluator.builder.builds([first]))  # starts the pool
            started = time.perf_counter()
            built = list(evaluator.builder.builds(candidates))
            row = {"workload": w.name, "candidates": len(built), "compiled_per_second": len(built) / (time.perf_counter() - started)}
            if not args.compile_only:
                environment = evaluator.environment
                row |= judged(evaluator, built, screen_job(w, target.name, ("eager",)))
            rows.append(row)
            print(row, flush=True)
    write_summary(args.out, command_line("throughput.py"), environment, {"jobs": args.jobs, "rows": rows})


def judged(evaluator: Evaluator, built: list, job: Job) -> dict:
    """Rate of verifying and timing what is built already."""
    list(evaluator.evaluate_built(built[:1], job, stage="screen", session="warm"))  # opens the device, prepares the rival
    started, outcomes = time.perf_counter(), []
    for one in built:
        (trial,) = evaluator.evaluate_built([one], job, stage="screen", session="throughput")
        outcomes.append(trial.verdict.outcome)
    rate = len(built) / (time.perf_counter() - started)
    return {"verified_ok": outcomes.count("OK"), "verified_and_timed_per_second": rate}


if __name__ == "__main__":
    main()
