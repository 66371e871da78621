"""How many candidates a second: compiled, and verified and timed once they are built.

python benchmarks/throughput.py chain:new-gelu:64x1024 --target cpu --out results/cpu/throughput
python benchmarks/throughput.py gemm:1024x1024x1024:fp16 --target cuda --out results/h200/throughput
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from pathlib import Path

from kernelwright import propose
from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.families import families_for
from kernelwright.loop import screen_job
from kernelwright.problems import resolve
from kernelwright.targets import usable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--count", type=int, default=40, help="candidates for each problem")
    parser.add_argument("--jobs", type=int, default=1, help="compiling processes: 1 gives the rate of a core")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    target, rows = usable(args.target), []
    with Evaluator(target, builder=Builder(target, args.jobs)) as evaluator:
        environment = evaluator.environment
        for text in args.problems:
            w = resolve(text)
            families, _ = families_for(w, target.facts())
            candidates = propose.make("random", w, families, target.facts(), seed=1).propose(args.count)
            started = time.perf_counter()
            built = list(evaluator.builder.builds(candidates))
            compiled = time.perf_counter() - started
            job = screen_job(w, target.name, ("eager",))
            list(evaluator.evaluate_built(built[:1], job, stage="screen", session="warm"))  # opens the device, prepares the rival
            started, outcomes = time.perf_counter(), []
            for one in built:
                (trial,) = evaluator.evaluate_built([one], job, stage="screen", session="throughput")
                outcomes.append(trial.verdict.outcome)
            judged = time.perf_counter() - started
            rows.append(
                {
                    "workload": w.name,
                    "candidates": len(built),
                    "verified_ok": outcomes.count("OK"),
                    "compiled_per_second": len(built) / compiled,
                    "verified_and_timed_per_second": len(built) / judged,
                }
            )
            print(rows[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    summary = {
        "command": "python " + shlex.join(["benchmarks/throughput.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": json.loads(environment.to_json()),
        "figures": {"jobs": args.jobs, "rows": rows},
    }
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
