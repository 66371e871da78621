"""Published speed-ups beside ours: where they differ, and what of it we can show.

A claim is reproduced when our 95 % interval, widened by the noise floor, holds the published ratio. Otherwise the reasons are listed that
this run has evidence for: a verdict, a finding of the lint, the same operators as the reference, a rival at another precision. Another GPU
or another version of PyTorch is a reason as well, and one that this run cannot weigh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.bench.answers import Entrant
from kernelwright.bench.results import Facts, Result
from kernelwright.evaluate import stats
from kernelwright.records import Comparison

NEAR = 0.1
"""A measured ratio within this share of the published one is called the same, whatever its interval: other GPUs and versions move it
more."""


@dataclass(frozen=True)
class Difference:
    """One published ratio."""

    task: str
    entrant: str
    sample: int
    rival: str
    claimed: float
    measured: Comparison | None
    verdict: str
    """`reproduced`, `smaller`, `larger`, `refused`, `not measured`."""
    reasons: tuple[str, ...] = ()

    @property
    def factor(self) -> float | None:
        """Published over measured."""
        return self.claimed / self.measured.ratio if self.measured else None


@dataclass(frozen=True)
class ClaimSummary:
    """Of one entrant's claims against one rival."""

    entrant: str
    rival: str
    claims: int
    both: int
    """Published and measured."""
    claimed: float
    """Geometric mean of those that were measured as well; NaN without any."""
    measured: float
    claimed_all: float
    """Geometric mean of all that were published, as published."""
    arithmetic: float
    """Their arithmetic mean, which is what CUDA-L1 publishes."""
    counts: Mapping[str, int]


def differences(results: Iterable[Result], facts: Mapping[str, Facts]) -> list[Difference]:
    """Every published ratio of answers that were judged; `facts` by workload."""
    found = []
    for r in results:
        if r.claim is None:
            continue
        if not r.claim.speedups and r.claim.correct and r.status != "correct":
            found.append(Difference(r.task, r.entrant, r.sample, "", 1.0, None, _verdict(r), _reasons(r, facts.get(r.workload), None, "")))
        for rival, claimed in r.claim.speedups.items():
            measured = next((c for c in r.comparisons if c.mode == r.mode and c.rival == rival), None) if r.status == "correct" else None
            verdict = _verdict(r) if measured is None else _compared(claimed, measured)
            reasons = () if verdict == "reproduced" else _reasons(r, facts.get(r.workload), measured, rival)
            found.append(Difference(r.task, r.entrant, r.sample, rival, claimed, measured, verdict, reasons))
    return found


def _verdict(r: Result) -> str:
    return "refused" if r.status in ("wrong", "not compiled") else "not measured"


def _compared(claimed: float, c: Comparison) -> str:
    low, high = c.low * min(1.0, c.noise_low), c.high * max(1.0, c.noise_high)
    if low <= claimed <= high or abs(claimed / c.ratio - 1) <= NEAR:
        return "reproduced"
    return "smaller" if c.ratio < claimed else "larger"


def _reasons(r: Result, facts: Facts | None, measured: Comparison | None, rival: str) -> tuple[str, ...]:
    reasons = []
    if r.status in ("wrong", "not compiled"):
        reasons.append(f"{r.outcome}: {r.evidence}")
        if r.outcome == "WRONG_RESULT" and "normalised error" in r.evidence:
            reasons.append(
                "the published check was torch.allclose with 1e-2 (CUDA-L1) or 1e-4 (KernelBench) on the file's own inputs; ours is "
                "relative to what rounding explains, on several distributions"
            )
    if r.status == "skipped":
        reasons.append(f"not run here ({r.skipped}): {r.evidence}")
    if facts is not None and facts.degenerate:
        rules = ", ".join(sorted({f.rule for f in facts.faults if f.severity in ("error", "warning")}))
        reasons.append(f"the problem itself lets wrong kernels pass ({rules})")
    if r.work == "flags only":
        reasons.append(f"no kernel of its own: {r.work_why}")
    if r.status == "correct" and measured is None and rival:
        why = r.rivals.get(rival)
        reasons.append(f"{rival} could not be compared: {why}" if why else f"{rival} is no rival here")
    if r.claim is not None and r.claim.note:
        reasons.append(r.claim.note)
    if measured is not None and rival in ("eager", "compile") and r.mode == "host-offline":
        reasons.append(
            "ours is host time of single calls on other inputs each; published times are CUDA events around calls on the same ones"
        )
    if measured is not None and rival in ("graph", "cudnn-benchmark"):
        reasons.append(
            "the published baseline is a program that a model wrote; ours is the reference itself, captured or under that setting"
        )
    if measured is not None and not reasons:
        reasons.append("another GPU, version of PyTorch, or precision of the baseline (fp32 here is without TF32)")
    return tuple(reasons)


def summaries(found: Sequence[Difference], entrants: Sequence[Entrant] = ()) -> list[ClaimSummary]:
    """By entrant and rival. With the entrants, claims of answers that were not judged (no code was released) count among the published."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for d in found:
        if d.rival:
            groups.setdefault((d.entrant, d.rival), []).append(d)
    rows = []
    for (entrant, rival), group in sorted(groups.items()):
        both = [d for d in group if d.measured is not None]
        published = [d.claimed for d in group]
        judged = {d.task for d in group}
        for e in entrants:
            if e.name == entrant:
                published += [c.speedups[rival] for task, c in e.claims.items() if rival in c.speedups and task not in judged]
        counts: dict[str, int] = {}
        for d in group:
            counts[d.verdict] = counts.get(d.verdict, 0) + 1
        rows.append(
            ClaimSummary(
                entrant=entrant,
                rival=rival,
                claims=len(published),
                both=len(both),
                claimed=stats.geomean([d.claimed for d in both]),
                measured=stats.geomean([d.measured.ratio for d in both if d.measured]),
                claimed_all=stats.geomean(published),
                arithmetic=sum(published) / len(published),
                counts=counts,
            )
        )
    return rows
