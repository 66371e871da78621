"""Which of the confirmed Trials a Pack ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelwright.records import Outcome, Trial, cannot_serve
from kernelwright.runtime.kernel_set import assign, cover
from kernelwright.runtime.pack_format import Entry, Evidence

_SUFFIX = {"cuda": ".cu", "cpu": ".cpp", "python": ".py"}


def file_of(candidate: str, kind: str) -> str:
    """Of a Pack, with what is a kernel's own of its source."""
    return f"sources/{candidate}{_SUFFIX.get(kind, '.txt')}"


def choose(trials: Sequence[Trial], tolerance: float = 0.0) -> dict[str, tuple[Trial, list[Trial]]]:
    """By Workload id: the fastest confirmed right Trial in the mode of its first timing, and all confirming Trials of the Workload. Of our
    own kernels only those of a small set count, such that each Workload has one within `tolerance` (0.01: 1 %) of its best.

    A Candidate that failed in any of the Trials otherwise than by noise is out."""
    failed = {(t.workload.id, t.candidate.id) for t in trials if t.verdict.outcome not in (Outcome.OK, Outcome.NOISY)}
    groups: dict[str, list[Trial]] = {}
    for t in trials:
        served = t.candidate.kind != "rival" or not cannot_serve(t.candidate.source)
        if served and t.stage in ("confirm", "replay") and t.verdict.ok and (t.workload.id, t.candidate.id) not in failed:
            groups.setdefault(t.workload.id, []).append(t)
    ranked = {key: _ranked(group) for key, group in groups.items()}
    times = {
        group[0].workload: {t.candidate.id: t.median(t.timings[0].mode) for t in reversed(group) if t.candidate.kind != "rival"}
        for group in ranked.values()
    }
    serving = assign(times, cover(times, tolerance))
    chosen = {}
    for key, group in ranked.items():
        best = next(t for t in group if t.candidate.kind == "rival" or t.candidate.id == serving[t.workload])
        chosen[key] = (best, group)
    return chosen


def _ranked(group: Sequence[Trial]) -> list[Trial]:
    """The fastest first, in the mode of the first one's headline."""
    mode = group[0].timings[0].mode
    return sorted((t for t in group if t.timing(mode)), key=lambda t: t.median(mode))


def entry_of(best: Trial, group: Sequence[Trial]) -> Entry:
    """What serves the Workload of these confirming Trials, of which `best` is the fastest: its kernel, or a rival that was faster."""
    mode, c = best.timings[0].mode, best.candidate
    evidence = Evidence(
        trials=tuple(dict.fromkeys((best.id, *(t.id for t in group)))),
        mode=mode,
        median=best.median(mode),
        outcome=best.verdict.outcome,
        comparisons=best.comparisons,
    )
    if c.kind == "rival":
        return Entry(workload=best.workload, rival=c.source, evidence=evidence)
    built = Path(best.build.artifact) if best.build and best.build.artifact else None
    own = Entry(
        workload=best.workload,
        candidate=c.id,
        kind=c.kind,
        sources=(file_of(c.id, c.kind),),
        artifact=f"builds/{best.build.key}{built.suffix}" if best.build and built else "",
        plan=c.plan,
        flags=c.flags,
        origin=c.origin,
        evidence=evidence,
    )
    if own.strongest and own.strongest.ratio < 1:
        return Entry(workload=best.workload, rival=own.strongest.rival, evidence=evidence)
    return own
