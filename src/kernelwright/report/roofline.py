"""What a measured time means physically: the rate, and the share of the device's ceiling (Williams, Waterman, Patterson 2009).

A candidate's ceiling is the lower of the compute peak and bandwidth x intensity. Measured ceilings (a copy, a large library product)
are used where they are known, because a data sheet's are out of reach for any kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernelwright.records import COLD_MODES, Workload
from kernelwright.report.numbers import percent, sig3
from kernelwright.report.svg import visible


class Work(Protocol):
    """`problems.problem.Cost`: the least that any implementation must do."""

    @property
    def flops(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    @property
    def unit(self) -> str: ...


@dataclass(frozen=True)
class Ceilings:
    """`targets.target.Peaks` as a dict, with the choice of measured over data-sheet figures made once. FLOP/s and bytes/s."""

    flops: Mapping[str, float]
    measured_flops: Mapping[str, float]
    bandwidth_cold: float
    bandwidth_warm: float
    measured_bandwidth: float

    @classmethod
    def from_dict(cls, peaks: Mapping[str, Any] | None) -> Ceilings | None:
        """Raises ValueError for anything but the fields of Peaks."""
        if peaks is None:
            return None
        try:
            return cls(
                flops={str(k): float(v) for k, v in peaks["flops"].items()},
                measured_flops={str(k): float(v) for k, v in peaks.get("measured_flops", {}).items()},
                bandwidth_cold=float(peaks["bandwidth_cold"]),
                bandwidth_warm=float(peaks["bandwidth_warm"]),
                measured_bandwidth=float(peaks.get("measured_bandwidth", 0.0)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"target_peaks must have the fields of targets.target.Peaks: {error!r}") from None

    def compute(self, unit: str) -> tuple[float, str] | None:
        """(FLOP/s, `measured` or `data sheet`) of the unit."""
        if value := self.measured_flops.get(unit):
            return value, "measured"
        if value := self.flops.get(unit):
            return value, "data sheet"
        return None

    def bandwidth(self, mode: str) -> tuple[float, str]:
        """(bytes/s, where it comes from). The measured one is a copy through memory: warm data, in a cache, may well exceed it."""
        if self.measured_bandwidth:
            return self.measured_bandwidth, "measured"
        if mode == "device-warm":
            return self.bandwidth_warm, "warm"
        return self.bandwidth_cold, "data sheet"


CACHED = "cached"


@dataclass(frozen=True)
class Rate:
    """What a time amounts to, in the quantity that limits the Workload."""

    value: float
    unit: str
    fraction: float | None
    """Of the ceiling; None when the ceilings are not known."""
    ceiling: str = ""

    def __str__(self) -> str:
        return f"{sig3(self.value)} {self.unit}"

    @property
    def share(self) -> str:
        """`74 %`; `cached` where data came from a cache faster than the memory whose bandwidth is known."""
        return CACHED if self.ceiling == CACHED else percent(self.fraction)


def rate(work: Work, us: float, mode: str, ceilings: Ceilings | None) -> Rate | None:
    """GFLOP/s where compute limits the Workload, GB/s where memory does. Without ceilings, element-wise work counts as memory-bound.
    None for a Workload that does nothing (an axis of size 0)."""
    if work.flops <= 0 and work.bytes <= 0:
        return None
    gflops, gbytes = work.flops / us * 1e-3, work.bytes / us * 1e-3
    compute = ceilings.compute(work.unit) if ceilings else None
    if ceilings is None or compute is None:
        return Rate(gbytes, "GB/s", None) if work.unit == "vector" else Rate(gflops, "GFLOP/s", None)
    peak, source = compute
    bandwidth, kind = ceilings.bandwidth(mode)
    if work.flops / peak >= work.bytes / bandwidth:
        return Rate(gflops, "GFLOP/s", gflops * 1e9 / peak, f"{source} {visible(work.unit)} peak")
    if kind != "warm" and mode not in COLD_MODES and gbytes * 1e9 > bandwidth:
        return Rate(gbytes, "GB/s", None, CACHED)
    ceiling = "cache bandwidth" if kind == "warm" else f"{kind} memory bandwidth"
    return Rate(gbytes, "GB/s", gbytes * 1e9 / bandwidth, ceiling)


def works(workloads: Iterable[Workload]) -> dict[str, Work]:
    """`Problem.cost` by `Workload.name`, of those whose Problem is one of ours. Files are left out: asking one would run its code."""
    from kernelwright.problems import ProblemError, problem_of  # imports torch

    found: dict[str, Work] = {}
    for w in workloads:
        if w.source:
            continue
        try:
            found[w.name] = problem_of(w).cost(w)
        except (ProblemError, KeyError):
            continue  # a Problem, or axes of it, that this version does not know: its Trials still have times
    return found
