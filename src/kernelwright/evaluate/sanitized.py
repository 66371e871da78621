"""Kernels under NVIDIA's compute-sanitizer: memcheck (accesses outside an allocation), racecheck (hazards in shared memory).

The tool watches a process of its own, `python -m kernelwright.evaluate.sanitized REQUEST.json`, which runs each kernel once on each of its
few shapes. There every tensor is an allocation of its own and of its exact size: within the ladder's one large buffer, memcheck would take
an access beyond a tensor for a right one. The tool slows a kernel down by 10 to 100 times, so shapes are small.

Starting Python, PyTorch and CUDA under the tool takes most of the 8 s that one kernel takes, so a process runs many. That one passed counts
only if the process came to a clean end. Which kernel the tool's report is about cannot be told for sure: after a finding, a crash or a
time-out each kernel runs again in a process of its own. Warnings of racecheck that hazards.py explains are no finding.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.evaluate import hazards
from kernelwright.evaluate.hazards import Warned
from kernelwright.evaluate.watched import SAID, Request, Watched, watch
from kernelwright.records import DTYPES, Outcome, Record, Verdict
from kernelwright.targets.target import Bound, CandidateFault, Device, DeviceLost, TargetUnavailable

if TYPE_CHECKING:
    import torch

TOOLS = {"memcheck": Outcome.OUT_OF_BOUNDS, "racecheck": Outcome.NONDETERMINISTIC}
"""What a finding of each is."""
PROCESSES = max(1, min(12, (os.cpu_count() or 2) // 2 - 1))
"""Under a tool at one time."""
FOUND = 77
"""Exit code that the tool is told to end with when it has found something."""
SECONDS = 600.0
"""For each kernel, the first with the start of the process: so long nothing was reported, and it hangs."""


class Said(Record, frozen=True, kw_only=True):
    """The child's word on one kernel."""

    index: int
    """In the Request."""
    verdict: Verdict


def sanitizer_version(path: str) -> str:
    """Raises OSError when the tool does not start."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        raise OSError(f"{path} --version did not end") from None
    found = re.search(r"[Vv]ersion\s+([\w.]+)", done.stdout)
    return found[1] if found else "unknown"


@dataclass(frozen=True)
class _Run:
    """One process under a tool."""

    said: Sequence[Verdict | None]
    """What it says of each kernel."""
    trouble: Verdict | None
    """What went wrong with it as a whole: then its OKs prove nothing. If nothing did, every kernel has its Verdict."""
    warned: frozenset[Warned] = frozenset()
    """What racecheck warned of, if it found nothing else."""


class Sanitizer:
    """The tool at `path`, at most PROCESSES of it at one time. `stop` ends all early, for those who wait in threads that Ctrl-C does not
    reach. `seconds` as SECONDS."""

    def __init__(self, path: str, stop: threading.Event | None = None, seconds: float = SECONDS):
        self.path, self.stop, self.seconds = path, stop or threading.Event(), seconds
        self._slots = threading.Semaphore(PROCESSES)

    def run(self, tool: str, request: Request) -> list[Verdict]:
        """The tool's Verdict on each kernel of the Request, in its order; OK only if the kernel ran to its end, in a process that ended
        cleanly and in which the tool found nothing. Raises OSError when the tool cannot be started."""
        together = self._watch(tool, request)
        if together.trouble is None:
            return [verdict for verdict in together.said if verdict is not None]
        if len(together.said) == 1 or self.stop.is_set():
            return [together.trouble] * len(together.said)
        with ThreadPoolExecutor(PROCESSES) as threads:
            alone = list(threads.map(lambda kernel: self._watch(tool, request.replace(kernels=(kernel,))), request.kernels))
        verdicts = []
        for before, run in zip(together.said, alone, strict=True):
            verdict = next(verdict for verdict in (run.trouble, *run.said) if verdict is not None)
            # a wrong result is one, though it may be right the next time
            verdicts.append(before if verdict.ok and before is not None and not before.ok else verdict)
        trouble, no_hazards = together.trouble, frozenset[Warned]().union(*(run.warned for run in alone if run.trouble is None))
        explained = any(verdict.outcome is trouble.outcome for verdict in verdicts) or (together.warned and together.warned <= no_hazards)
        if trouble.outcome is not TOOLS[tool] or explained:
            return verdicts
        evidence = f"{trouble.evidence} (in one process with {len(verdicts)} kernels, though in none of them alone)"
        return [trouble.replace(evidence=evidence) if verdict.ok else verdict for verdict in verdicts]

    def _watch(self, tool: str, request: Request) -> _Run:
        options = ["--tool", tool, "--report-api-errors", "no", "--error-exitcode", str(FOUND)]
        names = {launch.kernel for kernel in request.kernels if (plan := kernel.candidate.plan) for launch in plan.launches}
        if len(names) == 1:  # PyTorch's own kernels, which fill the buffers, need not be watched
            options += ["--kernel-regex", f"kns={next(iter(names))}"]
        # a block of PyTorch's caching allocator is larger than the tensor in it: the tool would not see its end
        apart = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        with self._slots:
            code, output = watch([self.path, *options], "kernelwright.evaluate.sanitized", request, self.seconds, self.stop, apart)
        said: list[Verdict | None] = [None] * len(request.kernels)
        for line in output.splitlines():
            if line.startswith(SAID):
                with suppress(ValueError, IndexError):  # cut by another's output: then it was not said
                    word = Said.from_json(line.removeprefix(SAID))
                    said[word.index] = word.verdict
        if code is None:
            return _Run(said, Verdict(outcome=Outcome.TIMEOUT, evidence=f"{tool}: nothing was reported for {self.seconds:.0f} s"))
        if code == FOUND:
            warned = hazards.warnings(output) if tool == "racecheck" else frozenset()
            if warned and None not in said and _no_hazard(request, warned):
                note = "racecheck warns about an mbarrier's own instructions, which is no hazard"
                return _Run([v.replace(evidence=f"{v.evidence}; {note}") if v and v.ok else v for v in said], None, warned)
            return _Run(said, Verdict(outcome=TOOLS[tool], evidence=f"{tool}: {_finding(output)}"), warned)
        if code != 0 or None in said:
            tail = output.strip()[-400:] or "no output"
            return _Run(said, Verdict(outcome=Outcome.CRASH, evidence=f"{tool}: the process ended with code {code}: {tail}"))
        return _Run(said, None)


def _no_hazard(request: Request, warned: frozenset[Warned]) -> bool:
    """As hazards.no_hazard: which of many kernels a report is about cannot be told, and without a disassembler it stands."""
    try:
        return len(request.kernels) == 1 and hazards.no_hazard(warned, request.kernels[0].build.artifact)
    except (TargetUnavailable, ValueError):
        return False


def _finding(output: str) -> str:
    """The first thing that the tool reports, without its frame of `=`."""
    lines = [line.strip("= ").strip() for line in output.splitlines() if line.startswith("=====")]
    told = [line for line in lines if re.search(r"invalid|error|race|hazard|misaligned", line, re.IGNORECASE) and "SUMMARY" not in line]
    return (told or lines or ["no report"])[0][:300]


# ----------------------------------------------------------------------------------------------------------- the child


def main(request: Request) -> None:
    """Runs every kernel on its shapes, compares what it wrote and reports it. Ends with the first that takes the device along."""
    import torch

    from kernelwright.targets import usable

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // PROCESSES))  # for the references: others run beside this one
    target = usable(request.target)
    device, sms = target.open(), target.facts().sms
    rng = torch.Generator().manual_seed(0)
    try:
        for index, kernel in enumerate(request.kernels):
            signal.alarm(int(SECONDS))  # should the parent be killed, which watches the time
            try:
                verdict = _run_kernel(device, kernel, sms, rng)
                lost = False
            except CandidateFault as fault:
                verdict, lost = Verdict(outcome=fault.outcome, evidence=fault.evidence), isinstance(fault, DeviceLost)
            print(SAID + Said(index=index, verdict=verdict).to_json(), flush=True)
            if lost:
                break
    finally:
        device.close()


def _run_kernel(device: Device, kernel: Watched, sms: int, rng: torch.Generator) -> Verdict:
    """References are made on the CPU: the tool slows the device down. Raises CandidateFault."""
    from kernelwright.evaluate.verify import compare, expect
    from kernelwright.problems import problem_of
    from kernelwright.problems.problem import TORCH_DTYPES

    for w in kernel.workloads:
        problem = problem_of(w)
        case = next((c for c in problem.cases(w) if c.rung == "exact"), None) or next(c for c in problem.cases(w) if c.rung == "normal")
        inputs = problem.generate(w, case, rng, "cpu")
        tensors = {}
        for spec in problem.tensors(w):
            flat = device.allocate(spec.numel * DTYPES[spec.dtype])
            tensors[spec.name] = flat.view(TORCH_DTYPES[spec.dtype]).view(spec.shape)
            if spec.name in inputs:
                tensors[spec.name].copy_(inputs[spec.name])
            else:
                flat.fill_(0xFF)
        contender = device.load(kernel.candidate, kernel.build, w, [Bound(tensors=tensors, names=problem.names(w, sms))])
        try:
            contender.run(0)
            outputs = {spec.name: tensors[spec.name].cpu() for spec in problem.tensors(w) if spec.role == "out"}
        finally:
            contender.close()
        judged = compare(problem, w, expect(problem, w, inputs, exact=case.rung == "exact"), outputs)
        if not judged.passed:
            return Verdict(outcome=Outcome.WRONG_RESULT, evidence=f"{w.name}: {judged.note}")
    return Verdict(outcome=Outcome.OK, evidence=f"{len(kernel.workloads)} shapes")


if __name__ == "__main__":
    main(Request.from_json(Path(sys.argv[1]).read_text()))
