"""Few kernels for many Workloads: what of all that was measured is worth shipping.

Minimum set cover is NP-hard; the greedy choice is within ln(Workloads) of the smallest set (V. Chvatal, "A greedy heuristic for the
set-covering problem", Mathematics of Operations Research 4, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.records import Workload

Times = Mapping[str, float]
"""Kernel (Candidate id) to its time on one Workload, in any unit; only pairs that were measured are there."""


def cover(times: Mapping[Workload, Times], tolerance: float) -> list[str]:
    """Kernels such that every Workload has one within `tolerance` (0.01: 1 %) of the best measured there, the most useful first. None can
    be left out. Workloads without any time are passed over."""
    serves: dict[str, set[Workload]] = {}
    for w, measured in times.items():
        limit = min(measured.values(), default=0.0) * (1 + tolerance)
        for kernel, time in measured.items():
            if time <= limit:
                serves.setdefault(kernel, set()).add(w)
    chosen: list[str] = []
    left = {w for w, measured in times.items() if measured}
    while left:
        # of those that serve as many, the one that is nearest to the best; the name makes the choice the same in every run
        chosen.append(min(serves, key=lambda k: (-len(serves[k] & left), _loss(k, serves[k] & left, times), k)))
        left -= serves[chosen[-1]]
    needed = list(chosen)
    for kernel in reversed(chosen):
        others = set[Workload]().union(*(serves[k] for k in needed if k != kernel))
        if serves[kernel] <= others:
            needed.remove(kernel)
    return needed


def _loss(kernel: str, served: set[Workload], times: Mapping[Workload, Times]) -> float:
    return sum(times[w][kernel] / min(times[w].values()) for w in served)


def assign(times: Mapping[Workload, Times], kernels: list[str]) -> dict[Workload, str]:
    """The fastest of the chosen kernels for each Workload on which one of them was measured."""
    found = {w: min((k for k in kernels if k in measured), key=measured.__getitem__, default=None) for w, measured in times.items()}
    return {w: kernel for w, kernel in found.items() if kernel is not None}
