"""What a Target is: where a Candidate is compiled, loaded, launched and clocked.

Two halves. `Target` compiles and knows facts; it works without the device (a cubin needs no GPU). `Device` is the opened device:
it lives in a judge process of its own (`evaluate.judge`), never in the user's, because a candidate may take it down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from kernelwright.families.family import DeviceFacts
from kernelwright.records import Build, Candidate, Environment, Outcome, Workload


class CandidateFault(Exception):
    """A candidate's fault, on its way to becoming a Verdict. Never leaves evaluate/."""

    def __init__(self, outcome: Outcome, evidence: str):
        super().__init__(evidence)
        self.outcome = outcome
        self.evidence = evidence


class TargetUnavailable(RuntimeError):
    """The target cannot be used on this machine; the message says why and what to do."""


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Physical limits of a device: the roofline. FLOP/s by unit (fp16, bf16, fp32, vector), bytes/s for cold and warm data."""

    flops: dict[str, float]
    bandwidth_cold: float
    bandwidth_warm: float
    measured_flops: dict[str, float] = {}
    """What a large library product reached, for `percent of peak` in reports."""
    measured_bandwidth: float = 0.0


class Target(ABC):
    name: ClassVar[str]
    kind: ClassVar[str]
    """The kind of Candidate it compiles."""

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this machine cannot run it, with the fix, as one sentence; None when it can."""

    @abstractmethod
    def facts(self) -> DeviceFacts: ...

    @abstractmethod
    def build_key(self, candidate: Candidate) -> str:
        """Hash of all that the artifact depends on: source, headers, flags, compiler version, architecture."""

    @abstractmethod
    def compile(self, candidate: Candidate, directory: Path) -> Build:
        """Writes the artifact into `directory` and returns its Build, with `artifact` the file's path there.
        Raises CandidateFault(COMPILE_ERROR) with the compiler's own words (line numbers kept, at most 4,000 characters)."""

    @abstractmethod
    def open(self) -> Device:
        """Opens the device in this process. Raises TargetUnavailable."""


@dataclass(frozen=True)
class Bound:
    """One set of buffers: tensors by name as they are stored (row stride may exceed the last axis), on the Device's torch device."""

    tensors: Mapping[str, Any]
    names: Mapping[str, int]
    """Values for plan expressions: axes, ld_X, numel_X, align_X, sms."""


Run = Callable[[], None]
"""Enqueues one execution (CUDA) or performs it (CPU)."""


class Device(ABC):
    """An opened device, inside the judge process."""

    torch_device: ClassVar[str]

    @abstractmethod
    def environment(self) -> Environment: ...

    @abstractmethod
    def peaks(self) -> Peaks: ...

    @abstractmethod
    def allocate(self, size: int) -> Any:
        """A flat uint8 torch tensor of `size` bytes, 256-byte aligned, that candidates can reach."""

    @abstractmethod
    def load(self, candidate: Candidate, build: Build | None, w: Workload, sets: Sequence[Bound]) -> Contender:
        """Makes a candidate ready to run on each of the sets. Raises CandidateFault (LAUNCH_ERROR, REFUSED, CRASH ...)."""

    @abstractmethod
    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None) -> Contender:
        """A rival: `runs[i]` executes it on set i with PyTorch or a vendor library."""

    @abstractmethod
    def synchronize(self) -> None: ...

    def sensors(self) -> dict[str, float]:
        """Clock, power, temperature, throttle state, where there are such sensors."""
        return {}

    def close(self) -> None:
        """Frees what the device holds."""


class Contender(ABC):
    """Something loaded that can be run on its sets of buffers and clocked."""

    @abstractmethod
    def run(self, index: int = 0) -> None:
        """Runs once on set `index` and waits for the end. Raises CandidateFault on a fault that the process survives."""

    @abstractmethod
    def sample(self, mode: str, launches: int) -> tuple[float, int]:
        """One sample in a timing mode: (microseconds per launch, disturbed launches dropped). Launch i uses set i % len(sets).
        A sample in which every launch was disturbed is (nan, launches)."""

    def close(self) -> None:
        """Frees it; a process of its own ends."""
