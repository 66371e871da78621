"""The fake target: a scripted device with a scripted clock, so that every layer is testable without hardware.

A candidate's source is a JSON script, all keys optional:
    us       time of one launch (default 10)
    jitter   relative spread of the samples (default 0.01)
    result   `right` (default), `zeros`, `partial` (last element unwritten), `noise` (other bits each run)
    writes   `input` (changes an input), `beyond` (writes past an output)
    fault    {"compile" | "load" | "run" | "time": OUTCOME}: raised there
    dies     true: the judge process exits in the run, as after an illegal address
    kills    true: the compiling process is killed, as when memory runs out
    hangs    true: the run never ends
    cold_factor   device-cold takes this many times `us` (default 1.2)
Rivals take 20 us each.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import kernelwright
from kernelwright.families.family import DeviceFacts
from kernelwright.problems import problem_of
from kernelwright.records import Build, Candidate, Environment, Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Contender, Device, Peaks, Run, Target

RIVAL_US = 20.0


class FakeTarget(Target):
    name = "fake"
    kind = "fake"

    def unavailable(self) -> str | None:
        return None

    def facts(self) -> DeviceFacts:
        return DeviceFacts(target="fake", name="scripted device", sms=4, smem_per_block=64 << 10)

    def build_key(self, candidate: Candidate) -> str:
        return hashlib.sha256(candidate.source.encode()).hexdigest()[:32]

    def compile(self, candidate: Candidate, directory: Path) -> Build:
        if _script(candidate, "compile").get("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        artifact = directory / "script.json"
        artifact.write_text(candidate.source)
        return Build(key=self.build_key(candidate), artifact=str(artifact), compiler="script", arch="fake")

    def open(self) -> Device:
        return FakeDevice()


class FakeDevice(Device):
    torch_device = "cpu"

    def environment(self) -> Environment:
        versions = {
            "kernelwright": kernelwright.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        }
        return Environment(target="fake", device="scripted device", versions=versions, host="scripted host")

    def peaks(self) -> Peaks:
        return Peaks(flops={"fp32": 1e15, "fp16": 1e15, "bf16": 1e15, "vector": 1e15}, bandwidth_cold=1e13, bandwidth_warm=1e13)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def load(self, candidate: Candidate, build: Build | None, w: Workload, sets: Sequence[Bound]) -> Contender:
        return _Scripted(_script(candidate, "load"), w, sets)

    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> Contender:
        if setup is not None:
            setup()
        return _Trusted(runs)

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""


def _script(candidate: Candidate, stage: str) -> dict:
    try:
        script = json.loads(candidate.source)
    except ValueError as error:
        raise CandidateFault(Outcome.COMPILE_ERROR, f"the script is not JSON: {error}") from None
    _fault(script, stage)
    return script


def _fault(script: dict, stage: str) -> None:
    if stage in script.get("fault", {}):
        raise CandidateFault(Outcome(script["fault"][stage]), f"scripted at {stage}")


class _Clock(Contender):
    """Draws samples around a scripted time."""

    def __init__(self, us: float, jitter: float, cold_factor: float):
        self._us, self._jitter, self._cold = us, jitter, cold_factor
        self._rng = random.Random(f"{us} {jitter}")

    def sample(self, mode: str, launches: int) -> tuple[float, int]:
        us = self._us * (self._cold if mode == "device-cold" else 1.0)
        return us * max(0.1, self._rng.gauss(1.0, self._jitter)), 0


class _Scripted(_Clock):
    def __init__(self, script: dict, w: Workload, sets: Sequence[Bound]):
        super().__init__(script.get("us", 10.0), script.get("jitter", 0.01), script.get("cold_factor", 1.2))
        self._script, self._w, self._sets = script, w, sets

    def run(self, index: int = 0) -> None:
        script = self._script
        _fault(script, "run")
        if script.get("dies"):
            os._exit(139)
        while script.get("hangs"):
            time.sleep(1)
        problem, tensors = problem_of(self._w), self._sets[index].tensors
        inputs = {s.name: tensors[s.name] for s in problem.tensors(self._w) if s.role == "in"}
        outputs = {s.name: tensors[s.name] for s in problem.tensors(self._w) if s.role == "out"}
        result = problem.reference(self._w, {k: v.contiguous() for k, v in inputs.items()})
        for name, out in outputs.items():
            if not out.numel():
                continue
            last = out[tuple(n - 1 for n in out.shape)].clone()
            match script.get("result", "right"):
                case "right":
                    out.copy_(result[name])
                case "zeros":
                    out.zero_()
                case "partial":
                    out.copy_(result[name])
                    out[tuple(n - 1 for n in out.shape)] = last
                case "noise":
                    out.copy_(result[name] * (1 + 3e-8 * torch.randn_like(result[name])))
        if script.get("writes") == "input":
            next(t for t in inputs.values() if t.numel()).view(-1)[0] += 1
        if script.get("writes") == "beyond":
            out = next(iter(outputs.values()))
            torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel())[0] = 0

    def sample(self, mode: str, launches: int) -> tuple[float, int]:
        _fault(self._script, "time")
        for index in range(len(self._sets)):
            self.run(index)
        return super().sample(mode, launches)


class _Trusted(_Clock):
    in_place = False

    def __init__(self, runs: Sequence[Run]):
        super().__init__(RIVAL_US, 0.01, 1.0)
        self._runs = runs

    def run(self, index: int = 0) -> None:
        self._runs[index].store(self._runs[index].call())
