"""Statistics of timings: intervals of medians and ratios, and the aggregates of a report.

Medians, because disturbances only ever add time; intervals from order statistics, because timings follow no known distribution and the
percentile bootstrap, which many harnesses use, holds the true median of 7 rounds only 87.5 times of 100 (docs/statistics.md).
Interpolated order statistics: T. P. Hettmansperger and S. J. Sheather, "Confidence intervals based on interpolated order statistics",
Statistics and Probability Letters 4 (1986).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kernelwright.records import Comparison

Samples = Sequence[float] | np.ndarray

NOMINAL = 0.955
"""What a 95 % interval is computed for. Rounds end when the interval is narrow, which it is a little too often by luck: that costs up to
two points (docs/statistics.md), of which half a one is made up for here: a clock that counts in steps gives as much."""
LEAST_ROUNDS = 3
"""Fewer are no comparison."""
_WIDENED = {2: 14.1, 3: 4.75, 4: 1.755, 5: 1.161}
"""By number of samples: so few have no order statistics for that. Their extremes are moved away from the median by this factor, which gives
normal samples 95.5 %, and Student's t of 3 degrees of freedom or Laplace ones a little more."""


@lru_cache(maxsize=512)
def _place(n: int) -> tuple[int, float]:
    """(d, share): the interval ends at that share of the way from the d-th smallest sample to the next, and so from above."""
    below = 0
    held = [1.0]  # by the d-th smallest and the d-th largest: 1 - 2 P(Binomial(n, 1/2) < d)
    for d in range(1, n // 2 + 2):
        below += math.comb(n, d - 1)
        held.append(1 - 2 * below / 2**n)
        if held[-1] < NOMINAL:
            break
    d = len(held) - 2
    over = (held[d] - NOMINAL) / (held[d] - max(0.0, held[d + 1]))
    return d, (n - d) * over / (d + (n - 2 * d) * over)


def median_interval(samples: Samples) -> tuple[float, float, float]:
    """(median, low, high): the median and its 95 % interval.

    One sample gives (x, x, x), which says nothing of its spread: callers ask for more rounds. Raises ValueError when there is no sample, or
    one that is not finite.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64))
    if x.ndim != 1 or not x.size or not np.isfinite(x).all():
        raise ValueError("a median needs at least one sample, all of them finite numbers")
    median, n = float(np.median(x)), x.size
    if n == 1:
        return median, median, median
    if n in _WIDENED:
        factor = _WIDENED[n]
        return median, median - factor * (median - float(x[0])), median + factor * (float(x[-1]) - median)
    d, share = _place(n)
    low, high = x[d - 1] + share * (x[d] - x[d - 1]), x[n - d] + share * (x[n - d - 1] - x[n - d])
    return median, min(float(low), median), max(float(high), median)


def ratio_interval(per_round: Samples) -> tuple[float, float, float]:
    """(median, low, high) of rival time / candidate time over rounds, in which both were timed next to each other; or of any times.

    Computed on logarithms, so that exchanging rival and candidate gives exactly the reciprocal interval.
    """
    x = np.asarray(per_round, dtype=np.float64)
    if not x.size or not np.isfinite(x).all() or (x <= 0).any():
        raise ValueError("a ratio needs at least one round, all ratios finite and above zero")
    median, low, high = median_interval(np.log(x))
    median, low, high = (math.exp(max(-700.0, min(700.0, v))) for v in (median, low, high))  # two rounds may say next to nothing
    return median, low, high


def noise_floor(per_round: Samples) -> tuple[float, float]:
    """(low, high) of a contender over itself; (1, 1) with fewer rounds than LEAST_ROUNDS."""
    return ratio_interval(per_round)[1:] if len(per_round) >= LEAST_ROUNDS else (1.0, 1.0)


def comparison(rival: str, mode: str, per_round: Samples, rival_us: float, noise: tuple[float, float]) -> Comparison | None:
    """Of ratios as `ratio_interval` takes them, with the `noise_floor`; None with fewer rounds than LEAST_ROUNDS."""
    if len(per_round) < LEAST_ROUNDS:
        return None
    ratio, low, high = ratio_interval(per_round)
    return Comparison(
        rival=rival,
        mode=mode,
        ratio=ratio,
        low=low,
        high=high,
        rival_us=rival_us,
        noise_low=noise[0],
        noise_high=noise[1],
        rounds=len(per_round),
    )


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
