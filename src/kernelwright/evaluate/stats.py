"""Statistics of timings: intervals of medians and ratios, and the aggregates of a report.

Medians, because disturbances only ever add time; bootstrap intervals, because timings follow no known distribution. The
percentile bootstrap: B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright.records import Comparison

Samples = Sequence[float] | np.ndarray

CONFIDENCE = 0.95
RESAMPLES = 2000
"""Between seeds the end points then move by 1 to 6 % of the interval's width (100 log-normal samples). It takes 1.3 ms for 20
samples, 5 ms for 100, 50 ms for 1,000."""


def bootstrap_median(samples: Samples, rng: np.random.Generator, n: int = RESAMPLES) -> tuple[float, float, float]:
    """(median, low, high): the median and its 95 % percentile-bootstrap interval from `n` resamples.

    One sample gives (x, x, x), which says nothing of its spread: callers ask for more rounds. Raises ValueError when there is
    no sample, or one that is not finite.
    """
    x = np.asarray(samples, dtype=np.float64)
    if x.ndim != 1 or not x.size or not np.isfinite(x).all():
        raise ValueError("a median needs at least one sample, all of them finite numbers")
    medians = np.median(x[rng.integers(0, x.size, size=(n, x.size))], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(medians, (tail, 100 - tail))
    return float(np.median(x)), float(low), float(high)


def ratio_interval(per_round: Samples, rng: np.random.Generator, n: int = RESAMPLES) -> tuple[float, float, float]:
    """(median, low, high) of rival time / candidate time over rounds, in which both were timed next to each other.

    Computed on logarithms, so that exchanging rival and candidate gives exactly the reciprocal interval.
    """
    x = np.asarray(per_round, dtype=np.float64)
    if not x.size or not np.isfinite(x).all() or (x <= 0).any():
        raise ValueError("a ratio needs at least one round, all ratios finite and above zero")
    median, low, high = bootstrap_median(np.log(x), rng, n)
    return math.exp(median), math.exp(low), math.exp(high)


def converged(low: float, high: float, median: float, tol: float = 0.01) -> bool:
    """Whether an interval is narrower than `tol` of the median: time to stop sampling."""
    return high - low <= tol * abs(median)


def geomean(ratios: Iterable[float]) -> float:
    """Geometric mean of ratios; NaN when there is none. The mean that does not depend on which side is the numerator."""
    x = np.fromiter(ratios, dtype=np.float64)
    if not x.size:
        return math.nan
    if not np.isfinite(x).all() or (x <= 0).any():
        raise ValueError("a geometric mean needs finite ratios above zero")
    return float(np.exp(np.log(x).mean()))


def fast_p(ratios: Iterable[float | None], p: float = 1.0) -> float:
    """Share of problems that are right and more than `p` times faster (strictly: equal does not count); None stands for a
    failed one. The metric of KernelBench (A. Ouyang et al., 2025). NaN when there is no problem."""
    x = list(ratios)
    return sum(r is not None and r > p for r in x) / len(x) if x else math.nan


@dataclass(frozen=True)
class Summary:
    """Many Comparisons with one rival in one mode. Ratios are rival time / candidate time."""

    wins: int
    ties: int
    losses: int
    geomean: float
    median: float
    worst: float
    best: float

    @property
    def count(self) -> int:
        return self.wins + self.ties + self.losses


def summarise(comparisons: Iterable[Comparison]) -> Summary:
    """Raises ValueError when there is none, or when they mix rivals or modes: such a mean has no meaning."""
    rows = list(comparisons)
    if not rows:
        raise ValueError("there is no comparison to summarise")
    if len(kinds := {(c.rival, c.mode) for c in rows}) > 1:
        names = ", ".join(f"{rival} {mode}" for rival, mode in sorted(kinds))
        raise ValueError(f"comparisons with different rivals or modes cannot be summarised together: {names}")
    outcomes = [c.outcome for c in rows]
    ratios = [c.ratio for c in rows]
    return Summary(
        wins=outcomes.count("win"),
        ties=outcomes.count("tie"),
        losses=outcomes.count("loss"),
        geomean=geomean(ratios),
        median=float(np.median(ratios)),
        worst=min(ratios),
        best=max(ratios),
    )
