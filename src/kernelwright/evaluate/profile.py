"""A CUDA kernel's hardware counters, read by NVIDIA's Nsight Compute (`ncu`) where it is installed and the driver allows it.

The tool watches a process of its own, `python -m kernelwright.evaluate.profile REQUEST.json`, which runs the kernel once on random inputs.
It repeats each launch with flushed caches for as many passes as the counters need: what it says is about cold data. Counters explain a
time, they are none: clocks are left alone, and no time from here is ever recorded.
"""

from __future__ import annotations

import csv
import signal
import sys
import threading
from pathlib import Path

from kernelwright.evaluate.watched import Request, Watched, find_tool, watch
from kernelwright.records import Trial

COUNTERS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory throughput, % of peak",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput, % of peak",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy, %",
    "l1tex__t_sector_hit_rate.pct": "L1 hits, %",
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
}
"""Those that CUDA-L2's prompts have: memory throughput, compute utilisation, occupancy, cache hit rates. Present on sm_80 and sm_90."""
_DURATION = "gpu__time_duration.sum"
"""Weighs the launches of a plan with several kernels."""
SECONDS = 120.0


class Profiler:
    """Counters of one target's kernels. `why` says why there are none, once that is known; then nothing is tried again."""

    def __init__(self, target: str):
        self._target = target
        self._tool = find_tool("ncu")
        self.why = ""
        if not target.startswith("cuda"):
            self.why = f"there are no counters on target {target}"
        elif self._tool is None:
            self.why = "Nsight Compute (ncu) is not installed"

    def counters(self, trial: Trial) -> dict[str, float]:
        """By name, for `Trial.sensors`; empty where there are none."""
        plan = trial.candidate.plan
        if self.why or self._tool is None or trial.build is None or plan is None:
            return {}
        watched = Watched(candidate=trial.candidate, build=trial.build, workloads=(trial.workload,))
        request = Request(target=self._target, kernels=(watched,))
        kernels = "|".join(sorted({launch.kernel for launch in plan.launches}))
        options = ["--csv", "--clock-control", "none", "--kernel-name", f"regex:^({kernels})$"]
        options += ["--metrics", ",".join([*COUNTERS, _DURATION])]
        try:
            code, output = watch([self._tool, *options], "kernelwright.evaluate.profile", request, SECONDS, threading.Event(), {})
        except OSError as error:
            code, output = -1, str(error)
        found = parse(output)
        if not found:
            self.why = f"ncu read none (exit code {code}): {' '.join(output.split())[-300:]}"
        return found


def parse(output: str) -> dict[str, float]:
    """What `ncu --csv` printed: one row for each launch and metric, among lines of its own. Means over launches, by their durations."""
    rows = csv.DictReader(line for line in output.splitlines() if line.startswith('"'))
    launches: dict[str, dict[str, float]] = {}
    for row in rows:
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:  # `n/a`, where a chip has no such counter
            continue
        launches.setdefault(row.get("ID") or "", {})[row.get("Metric Name") or ""] = value
    found = {}
    for metric, name in COUNTERS.items():
        weighed = [(one.get(_DURATION, 1.0), one[metric]) for one in launches.values() if metric in one]
        if total := sum(weight for weight, _ in weighed):
            found[name] = round(sum(weight * value for weight, value in weighed) / total, 1)
    return found


# ----------------------------------------------------------------------------------------------------------- the child


def run(request: Request) -> None:
    """Runs the kernel once on the first Workload."""
    import torch

    from kernelwright.evaluate.buffers import Buffers
    from kernelwright.problems import problem_of
    from kernelwright.targets import usable

    target = usable(request.target)
    (kernel,) = request.kernels
    device, w = target.open(), kernel.workloads[0]
    problem = problem_of(w)
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    rng = torch.Generator(device.torch_device).manual_seed(0)
    buffers = Buffers(device, problem, w, sms=target.facts().sms)
    buffers.fill(problem.generate(w, case, rng, device.torch_device))
    contender = device.load(kernel.candidate, kernel.build, w, buffers.bounds)
    contender.run(0)
    contender.close()
    device.close()


if __name__ == "__main__":
    signal.alarm(int(SECONDS))  # should the parent be killed, which watches the time
    run(Request.from_json(Path(sys.argv[1]).read_text()))
