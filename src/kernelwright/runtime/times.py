"""What was measured of a Pack's kernels: their time on every Workload on which they were tried, not only where they serve.

A predictor needs it: with the entries' evidence alone it knows each kernel where it wins, and expects it to win elsewhere (on held-out
halves of two suites of 1,000 products it lost to the vendor up to four times as often, docs/dispatch.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelwright.records import Record, Trial, Workload

FILE = "times.json"

Measured = tuple[tuple[int, float], ...]


CALLABLE = ("eager", "cublas", "cublaslt")
"""Rivals whose time a program has that calls PyTorch or the library; `cublaslt-auto` is an algorithm that was found by timing all."""


class Times(Record, frozen=True, kw_only=True):
    """times.json of a Pack."""

    mode: str
    kernels: dict[str, Measured]
    """By Candidate id: (index of the entry whose Workload it is, microseconds in that mode)."""
    rivals: dict[str, Measured] = {}
    """Of CALLABLE, by name, beside the confirmed kernels: where a rival serves that no program can call, what can be called instead."""

    def added(self, new: Times) -> Times:
        """These, and what `new` knows, which goes before."""

        def both(old: Mapping[str, Measured], new: Mapping[str, Measured]) -> dict[str, Measured]:
            return {k: tuple(sorted({**dict(old.get(k, ())), **dict(new.get(k, ()))}.items())) for k in dict.fromkeys((*old, *new))}

        return self.replace(kernels=both(self.kernels, new.kernels), rivals=both(self.rivals, new.rivals))

    def callable_us(self) -> dict[int, float]:
        """By entry, the fastest of CALLABLE."""
        found: dict[int, float] = {}
        for seen in self.rivals.values():
            for at, us in seen:
                found[at] = min(us, found.get(at, us))
        return found


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
    beside = {name: {at: seen[name] for at, seen in rivals.items() if name in seen} for name in CALLABLE}
    return Times(mode=mode, kernels=_sorted(found), rivals=_sorted({name: seen for name, seen in beside.items() if seen}))


def _sorted(found: Mapping[str, Mapping[int, float]]) -> dict[str, Measured]:
    return {k: tuple(sorted((at, round(us, 4)) for at, us in seen.items())) for k, seen in found.items()}


def _in_units(t: Trial, mode: str, rivals: Mapping[str, float]) -> float:
    common = [c for c in t.comparisons if c.mode == mode and c.rival in rivals]
    return min((rivals[c.rival] / c.ratio for c in common), default=t.median(mode))
