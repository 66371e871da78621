"""The device of the fake target, and its scripted clock."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Sequence

import torch

import kernelwright
from kernelwright.problems import problem_of
from kernelwright.records import Build, Candidate, Environment, Workload
from kernelwright.targets.fake import fault, script_of
from kernelwright.targets.target import Bound, Contender, Device, Fresh, Peaks, Run

RIVAL_US = 20.0


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
        return _Scripted(script_of(candidate, "load"), w, sets)

    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> Contender:
        if setup is not None:
            setup()
        return _Trusted(runs)

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""


class _Clock(Contender):
    """Draws samples around a scripted time."""

    def __init__(self, us: float, jitter: float, cold_factor: float):
        self._us, self._jitter, self._cold = us, jitter, cold_factor
        self._rng = random.Random(f"{us} {jitter}")

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        us = self._us * (self._cold if mode == "device-cold" else 1.0)
        return us * max(0.1, self._rng.gauss(1.0, self._jitter)), 0


class _Scripted(_Clock):
    def __init__(self, script: dict, w: Workload, sets: Sequence[Bound]):
        super().__init__(script.get("us", 10.0), script.get("jitter", 0.01), script.get("cold_factor", 1.2))
        self._script, self._w, self._sets = script, w, sets

    def run(self, index: int = 0) -> None:
        script = self._script
        fault(script, "run")
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

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        fault(self._script, "time")
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
