"""What a Target is: where a Candidate is compiled, loaded, launched and clocked.

Two halves. `Target` compiles and knows facts; it works without the device (a cubin needs no GPU). `Device` is the opened device:
it lives in a judge process of its own (`evaluate.judge`), never in the user's, because a candidate may take it down.
"""

from __future__ import annotations

import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from kernelwright.families.family import DeviceFacts
from kernelwright.records import COLD_MODES, Build, Candidate, Environment, Outcome, Workload


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
    alterable: tuple[Any, ...] = ()
    """Inputs whose values may change places, as integers of shape (rows, row length): what `alter` works on."""


def alter(views: Sequence[Any], rng: random.Random) -> None:
    """Rotates one random column of each of the matrices (..., rows, row length) by a row; the whole row of those that have but one.

    Results of the inputs as they were are then wrong in every row, and in one column of a product: what was kept of an earlier run is of no
    use, unless the candidate reads all inputs to find out, which is what it wanted to save. The values, and so their distribution, stay the
    same, and it costs microseconds where drawing anew costs milliseconds.
    """
    for view in views:
        rows, length = view.shape[-2:]
        if rows > 1:
            column = view[..., rng.randrange(length)]
            column.copy_(column.roll(1, dims=-1))
        else:
            view.copy_(view.roll(1, dims=-1))


class Fresh(ABC):
    """What a sample needs so that no timed launch meets inputs that its contender has met before."""

    @abstractmethod
    def renew(self) -> None:
        """Other inputs in all sets, poison in all outputs: before a sample, and before one is taken again."""

    @abstractmethod
    def touch(self, sets: int) -> None:
        """Reads the first so many sets: brings them into the caches."""

    @abstractmethod
    def altered(self, seed: int, times: int) -> None:
        """Set 0 has been altered so many times in the contender's process, by `random.Random(seed)`."""


@dataclass(frozen=True)
class Run:
    """One execution of a rival on one set of buffers."""

    call: Callable[[], Any]
    """Enqueues it (CUDA) or performs it (CPU); this is what is clocked."""
    store: Callable[[Any], None]
    """Copies what `call` returned into the set's outputs; does nothing for a rival that writes in place."""
    prepare: Callable[[], Any] | None = None
    """Enqueued before each sample, outside the clock: storing the inputs in another layout, say. CUDA only."""


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
        """A rival: `runs[i]` executes it on set i with PyTorch or a vendor library. `setup` (compiling, say) runs once first."""

    @abstractmethod
    def synchronize(self) -> None: ...

    sets_for: ClassVar[tuple[str, ...]] = COLD_MODES
    """Modes in which each launch of a sample uses a set of buffers of its own."""

    def cold_sets(self, set_bytes: int) -> int:
        """How many sets of buffers those modes get, given the bytes of one. The caches are flushed before a cold sample."""
        return 4

    def sensors(self) -> dict[str, float]:
        """Clock, power, temperature, throttle state, where there are such sensors."""
        return {}

    def close(self) -> None:
        """Frees what the device holds."""


class Contender(ABC):
    """Something loaded that can be run on its sets of buffers and clocked."""

    @functools.cached_property
    def launches(self) -> dict[str, int]:
        """Launches of a sample by timing mode, once that was found out: a rival keeps it from candidate to candidate."""
        return {}

    in_place: bool = True
    """Whether a clocked launch leaves its result in the set's outputs. A rival's, and a Python candidate's, has to be run once more for
    that."""
    dependent: bool = False
    """Whether its launches may overlap with their predecessors (programmatic dependent launch); if not, device-chain is device-cold."""
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
        return launches if mode in COLD_MODES else 1

    def estimate(self, mode: str) -> float:
        """Roughly the microseconds of one launch, to choose how many a sample takes; NaN if that could not be told."""
        return self.sample(mode, 1)[0]

    def launches_for(self, mode: str, once_us: float) -> int:
        """Launches of one sample, given that one launch takes `once_us`: 2 ms of work, but at most 20 launches, at most one for each set of
        cold buffers, and few where each waits for its arrival (host-server)."""
        most = 5 if mode == "host-server" else int(2000 / max(once_us, 0.1))
        return max(1, min(20, most, self.most_launches(mode)))

    def most_launches(self, mode: str) -> int:
        """Of one sample, so that each meets inputs of its own."""
        return self.cold_launches if mode in COLD_MODES else 20

    def disturbed(self) -> str | None:
        """Names a guard of the workspace that was written; None if all are intact."""
        return None

    def close(self) -> None:
        """Frees it; a process of its own ends."""
