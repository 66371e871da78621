"""What a Target is: where a Candidate is compiled, loaded, launched and clocked.

Two halves. `Target` compiles and knows facts; it works without the device (a cubin needs no GPU). `Device` is the opened device:
it lives in a judge process of its own (`evaluate.judge`), never in the user's, because a candidate may take it down.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kernelwright.families.family import DeviceFacts
from kernelwright.records import COLD_MODES, Build, Candidate, Environment, Outcome, Workload

if TYPE_CHECKING:
    from kernelwright.problems.problem import Cost


class CandidateFault(Exception):
    """A candidate's fault, on its way to becoming a Verdict. Never leaves evaluate/."""

    def __init__(self, outcome: Outcome, evidence: str):
        super().__init__(evidence)
        self.outcome = outcome
        self.evidence = evidence


class DeviceLost(CandidateFault):
    """A fault after which this process can no longer use the device (illegal address, say): the judge must be started afresh."""


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

    def floor(self, cost: Cost, mode: str) -> tuple[float, str]:
        """Microseconds that no implementation can beat in a timing mode, and which limit says so: `memory` or `arithmetic`."""
        bandwidth = self.bandwidth_cold if mode in COLD_MODES else self.bandwidth_warm
        flops = self.flops.get(cost.unit, max(self.flops.values()))
        seconds, limit = max((cost.bytes / bandwidth, "memory"), (cost.flops / flops, "arithmetic"))
        return 1e6 * seconds, limit


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
    fences: tuple[int, ...] = ()
    """Addresses of pages of 4 KiB behind tensors that a contender shall not be able to read, where its device can see to that."""


class Fresh(ABC):
    """What a sample needs so that no timed launch meets inputs that its contender has met before."""

    @abstractmethod
    def renew(self) -> None:
        """Other inputs in all sets, poison in all outputs: before a sample, and before one is taken again."""

    @abstractmethod
    def touch(self, sets: int) -> None:
        """Reads the first so many sets: brings them into the caches."""


@dataclass(frozen=True)
class Run:
    """One execution of a rival on one set of buffers."""

    call: Callable[[], Any]
    """Enqueues it (CUDA) or performs it (CPU); this is what is clocked."""
    store: Callable[[Any], None]
    """Copies what `call` returned into the set's outputs; does nothing for a rival that writes in place."""
    prepare: Callable[[], Any] | None = None
    """Before each sample (on a CPU, each launch), outside the clock: storing the inputs in another layout, say."""


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
    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> Contender:
        """A rival: `runs[i]` executes it on set i with PyTorch or a vendor library. `setup` (compiling, say) runs once first.
        `sets` are what the runs work on, where the caches are to be made ready for them."""

    @abstractmethod
    def synchronize(self) -> None: ...

    def cold_sets(self, set_bytes: int) -> int:
        """How many sets of buffers make the cold modes cold, given the bytes of one. The caches are flushed before a sample, and each of
        its launches uses a set of its own."""
        return 4

    def sets(self, set_bytes: int, modes: Collection[str]) -> int:
        """How many sets of buffers a Job with these timing modes needs, given the bytes of one."""
        return 1 if set(COLD_MODES).isdisjoint(modes) else self.cold_sets(set_bytes)

    def sensors(self) -> dict[str, float]:
        """Clock, power, temperature, throttle state, where there are such sensors."""
        return {}

    def close(self) -> None:
        """Frees what the device holds."""


class Contender(ABC):
    """Something loaded that can be run on its sets of buffers and clocked."""

    @functools.cached_property
    def _of_a_sample(self) -> dict[str, int]:
        return {}

    in_place: bool = True
    """Whether a clocked launch leaves its result in the set's outputs. A rival's, and a Python candidate's, has to be run once more for
    that."""
    dependent: bool = False
    """Whether its launches may overlap with their predecessors (programmatic dependent launch); if not, device-chain is device-cold."""
    apart: bool = False
    """On a CPU: whether each launch of a sample is a request of its own, behind one that does not count. So are a Python candidate's, and
    those of rivals in rounds of Python candidates: asked otherwise, the very same module came to 0.54 to 1.21 of eager."""
    spread: bool = False
    """Whether every launch of a sample has a set of its own in all modes, not the cold ones alone."""
    cold_launches: int = 4
    """Sets of buffers: the most launches of one cold sample, each on a set that nothing has touched since the flush."""

    @abstractmethod
    def run(self, index: int = 0) -> None:
        """Runs once on set `index` and waits for the end. Raises CandidateFault on a fault that the process survives."""

    def run_dependent(self, inputs: Mapping[str, Any], index: int = 0) -> None:
        """Runs on set `index` right behind a kernel that it may overlap with, and that writes `inputs` into the set and poison into its
        outputs as late as it can; then once more behind itself; waits for the end. Only where `dependent`."""
        raise NotImplementedError

    @abstractmethod
    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        """One sample in a timing mode: (microseconds per launch, disturbed launches dropped). Launch i uses set i % len(sets).
        A sample in which every launch was disturbed is (nan, launches). Without `fresh` it is an estimate: launches may meet the same
        inputs again."""

    def covers(self, mode: str, launches: int) -> int:
        """How many sets, the first ones, so many launches use."""
        return launches if self.spread or mode in COLD_MODES else 1

    def estimate(self, mode: str) -> float:
        """Roughly the microseconds of one launch, to choose how many a sample takes; NaN if that could not be told."""
        return self.sample(mode, 1)[0]

    def launches_of(self, mode: str) -> int:
        """Launches of a sample: long enough for the clock, short enough for many rounds. Found out once, so that a rival keeps it from
        candidate to candidate."""
        if mode not in self._of_a_sample:
            once = min((v for v in (self.estimate(mode) for _ in range(2)) if not math.isnan(v)), default=1e6)
            self._of_a_sample[mode] = self.launches_for(mode, once)
        return self._of_a_sample[mode]

    def launches_for(self, mode: str, once_us: float) -> int:
        """Launches of one sample, given that one launch takes `once_us`: 2 ms of work, but at most 20 launches (as many as a set of cold
        buffers
        is worth), and few where each waits for its arrival (host-server)."""
        launches = 5 if mode == "host-server" else max(1, min(20, int(2000 / max(once_us, 0.1))))
        return min(launches, self.cold_launches) if self.spread or mode in COLD_MODES else launches

    def disturbed(self) -> str | None:
        """Names a guard of the workspace that was written; None if all are intact."""
        return None

    def close(self) -> None:
        """Frees it; a process of its own ends."""
