"""What was measured of a Pack's kernels: their time on every Workload on which they were tried, not only where they serve.

A predictor needs it: with the entries' evidence alone it knows each kernel where it wins, and expects it to win elsewhere (on held-out
halves of two suites of 1,000 products it lost to the vendor up to four times as often, docs/dispatch.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelwright.records import Record, Trial, Workload

FILE = "times.json"

Measured = tuple[tuple[int, float], ...]


class Times(Record, frozen=True, kw_only=True):
    """times.json of a Pack."""

    mode: str
    kernels: dict[str, Measured]
    """By Candidate id: (index of the entry whose Workload it is, microseconds in that mode)."""


def gather(
    workloads: Sequence[Workload], kernels: Iterable[str], mode: str, confirmed: Iterable[Trial], screened: Iterable[Trial]
) -> Times:
    """Confirmed times as they are. Screens are short and made in another minute: they count in units of the rivals that were measured
    both beside the screen and beside the confirmation, so that the clocks of the two do not matter."""
    index = {w: i for i, w in enumerate(workloads)}
    found: dict[str, dict[int, float]] = {k: {} for k in kernels}
    rivals: dict[int, dict[str, float]] = {}
    for t in confirmed:
        at = index.get(t.workload)
        if at is not None and t.verdict.ok and t.timing(mode):
            rivals.setdefault(at, {}).update({c.rival: c.rival_us for c in t.comparisons if c.mode == mode})
            if t.candidate.id in found:
                found[t.candidate.id][at] = t.median(mode)
    for t in screened:
        at = index.get(t.workload)
        if at is not None and t.candidate.id in found and at not in found[t.candidate.id] and t.verdict.ok and t.timing(mode):
            found[t.candidate.id][at] = _in_units(t, mode, rivals.get(at, {}))
    return Times(mode=mode, kernels={k: tuple(sorted((at, round(us, 4)) for at, us in seen.items())) for k, seen in found.items()})


def _in_units(t: Trial, mode: str, rivals: Mapping[str, float]) -> float:
    common = [c for c in t.comparisons if c.mode == mode and c.rival in rivals]
    return min((rivals[c.rival] / c.ratio for c in common), default=t.median(mode))
