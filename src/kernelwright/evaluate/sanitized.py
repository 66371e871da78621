"""One kernel under NVIDIA's compute-sanitizer: memcheck (accesses outside an allocation), racecheck (hazards in shared memory).

The tool watches a process of its own, `python -m kernelwright.evaluate.sanitized REQUEST.json`, which runs the kernel once on each of a few
shapes. There every tensor is an allocation of its own and of its exact size: within the ladder's one large buffer, memcheck would take an
access beyond a tensor for a right one. The tool slows a kernel down by 10 to 100 times, so shapes are small.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from kernelwright.evaluate.drawn import contiguous_names
from kernelwright.records import DTYPES, Build, Candidate, Outcome, Record, Verdict, Workload
from kernelwright.settings import child_environment

TOOLS = {"memcheck": Outcome.OUT_OF_BOUNDS, "racecheck": Outcome.NONDETERMINISTIC}
"""What a finding of each is."""
FOUND = 77
"""Exit code that the tool is told to end with when it has found something."""
SECONDS = 600.0
SAID = "kernelwright-sanitized "
"""Before the child's one line of result: without it the kernel has not run to its end, whatever the exit code says."""


class Request(Record, frozen=True, kw_only=True):
    """What the child runs."""

    target: str
    candidate: Candidate
    build: Build
    workloads: tuple[Workload, ...]


def sanitizer() -> str | None:
    """Path of compute-sanitizer: on PATH, or where the CUDA toolkit puts it."""
    from kernelwright.targets.nvrtc import toolkit_folders

    return shutil.which("compute-sanitizer") or next(
        (str(tool) for folder in toolkit_folders() if (tool := folder / "bin" / "compute-sanitizer").is_file()), None
    )


def sanitizer_version(path: str) -> str:
    """Raises OSError when the tool does not start."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        raise OSError(f"{path} --version did not end") from None
    found = re.search(r"[Vv]ersion\s+([\w.]+)", done.stdout)
    return found[1] if found else "unknown"


def sanitize(path: str, tool: str, request: Request, seconds: float = SECONDS, stop: threading.Event | None = None) -> Verdict:
    """The tool's Verdict on one kernel; OK only if the child ran to its end and the tool found nothing. `stop` ends the child early, for
    those who wait for it in a thread that Ctrl-C does not reach. Raises OSError when the tool cannot be started."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.json"
        file.write_text(request.to_json())
        command = [path, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", str(FOUND)]
        kernels = {launch.kernel for launch in request.candidate.plan.launches} if request.candidate.plan else set()
        if len(kernels) == 1:  # PyTorch's own kernels, which fill the buffers, need not be watched
            command += ["--kernel-regex", f"kns={next(iter(kernels))}"]
        command += [sys.executable, "-m", "kernelwright.evaluate.sanitized", str(file)]
        # a block of PyTorch's caching allocator is larger than the tensor in it: the tool would not see its end
        env = child_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
        code, output = run_tool(command, env, seconds, stop or threading.Event())
    if code is None:
        return Verdict(outcome=Outcome.TIMEOUT, evidence=f"{tool}: not done after {seconds:.0f} s")
    if code == FOUND:
        return Verdict(outcome=TOOLS[tool], evidence=f"{tool}: {_finding(output)}")
    said = next((line.removeprefix(SAID) for line in output.splitlines() if line.startswith(SAID)), None)
    if code != 0 or said is None:
        return Verdict(
            outcome=Outcome.CRASH, evidence=f"{tool}: the process ended with code {code}: {output.strip()[-400:] or 'no output'}"
        )
    return msgspec.json.decode(said, type=Verdict)


def run_tool(command: list[str], env: dict[str, str], seconds: float, stop: threading.Event) -> tuple[int | None, str]:
    """Exit code, None if it was ended before its time, and all output."""
    from kernelwright.targets.processes import kill_group

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=min(0.5, seconds))
                return process.returncode, output
        return None, ""
    finally:  # also on Ctrl-C: the tool and what it watches end with us
        if process.poll() is None:
            kill_group(process.pid)
            process.communicate()


def _finding(output: str) -> str:
    """The first thing that the tool reports, without its frame of `=`."""
    lines = [line.strip("= ").strip() for line in output.splitlines() if line.startswith("=====")]
    told = [line for line in lines if re.search(r"invalid|error|hazard|misaligned", line, re.IGNORECASE) and "SUMMARY" not in line]
    return (told or lines or ["no report"])[0][:300]


# ----------------------------------------------------------------------------------------------------------- the child


def run(request: Request) -> Verdict:
    """Runs the kernel on every shape and compares what it wrote. References are made on the CPU: the tool slows the device down."""
    import torch

    from kernelwright.evaluate.verify import compare, expect
    from kernelwright.problems import problem_of
    from kernelwright.problems.problem import TORCH_DTYPES
    from kernelwright.targets import usable
    from kernelwright.targets.target import Bound, CandidateFault

    target = usable(request.target)
    device, sms = target.open(), target.facts().sms
    rng = torch.Generator().manual_seed(0)
    try:
        for w in request.workloads:
            problem = problem_of(w)
            case = next((c for c in problem.cases(w) if c.rung == "exact"), None) or next(c for c in problem.cases(w) if c.rung == "normal")
            inputs = problem.generate(w, case, rng, "cpu")
            tensors = {}
            for spec in problem.tensors(w):
                flat = device.allocate(spec.numel * DTYPES[spec.dtype])
                flat.fill_(0xFF)
                tensors[spec.name] = flat.view(TORCH_DTYPES[spec.dtype]).view(spec.shape)
                if spec.name in inputs:
                    tensors[spec.name].copy_(inputs[spec.name])
            contender = device.load(request.candidate, request.build, w, [Bound(tensors=tensors, names=contiguous_names(w, sms))])
            try:
                contender.run(0)
                outputs = {spec.name: tensors[spec.name].cpu() for spec in problem.tensors(w) if spec.role == "out"}
            finally:
                contender.close()
            judged = compare(problem, w, expect(problem, w, inputs, exact=case.rung == "exact"), outputs)
            if not judged.passed:
                return Verdict(outcome=Outcome.WRONG_RESULT, evidence=f"{w.name}: {judged.note}")
    except CandidateFault as fault:
        return Verdict(outcome=fault.outcome, evidence=fault.evidence)
    finally:
        device.close()
    return Verdict(outcome=Outcome.OK, evidence=f"{len(request.workloads)} shapes")


if __name__ == "__main__":
    signal.alarm(int(SECONDS))  # should the parent be killed, which watches the time
    print(SAID + run(Request.from_json(Path(sys.argv[1]).read_text())).to_json(), flush=True)
