"""The scores of an entrant: pure functions of rows, one a task.

fast_p is KernelBench's metric (A. Ouyang et al., 2025), strict: the share of tasks whose answer is right and *more* than p times as fast as
a rival. What is wrong, missing or not compiled counts as not fast; what could not run here (architecture, memory, a missing dependency)
is left out of the share and counted apart. pass@k is the unbiased estimator of M. Chen et al., "Evaluating Large Language Models Trained on
Code" (2021).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelwright.bench.results import Facts, Result, Status
from kernelwright.evaluate import stats
from kernelwright.records import Comparison

STRONGEST, EXPERT = "strongest", "expert"
"""In place of a rival's name: on each task the one that was fastest there; of those that are no PyTorch program, the libraries' own."""
PYTORCH = ("eager", "compile", "compile-max", "compile-reduce", "graph", "channels-last", "cudnn-benchmark", "tf32")
THRESHOLDS = (0.0, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Row:
    """One task with the answer of one entrant."""

    task: str
    status: Status
    ratios: Mapping[str, Comparison] = field(default_factory=dict)
    """By rival, in the headline's mode; empty unless it is correct."""
    level: str = ""
    group: str = ""
    domain: str = ""
    degenerate: bool = False
    work: str = ""
    skipped: str = ""

    def versus(self, rival: str) -> Comparison | None:
        """The Comparison with a rival; of STRONGEST and EXPERT the one with the lowest ratio."""
        if self.status != "correct":
            return None
        if rival in (STRONGEST, EXPERT):
            found = (c for c in self.ratios.values() if rival == STRONGEST or c.rival not in PYTORCH)
            return min(found, key=lambda c: c.ratio, default=None)
        return self.ratios.get(rival)


@dataclass(frozen=True)
class Score:
    """Of some tasks, against one rival."""

    rival: str
    tasks: int
    """That could run here: the denominator of every share."""
    answered: int
    compiled: int
    correct: int
    compared: int
    """Correct ones that were timed beside the rival."""
    fast: Mapping[float, float]
    """fast_p by p; NaN without tasks."""
    geomean: float
    """Of the ratios of correct answers; NaN when there is none."""
    geomean_faster: float
    """Of those above 1."""
    median: float
    worst: float
    best: float
    share: float
    """Geometric mean of min(ratio, 1): the share of the rival's speed that was reached."""
    wins: int
    ties: int
    losses: int
    skipped: Mapping[str, int]
    """By reason."""

    @property
    def compile_rate(self) -> float:
        return self.compiled / self.tasks if self.tasks else math.nan

    @property
    def correct_rate(self) -> float:
        return self.correct / self.tasks if self.tasks else math.nan


def score(rows: Iterable[Row], rival: str = STRONGEST) -> Score:
    """Each task at most once: raises ValueError for two rows of one task, which would count it twice."""
    rows = list(rows)
    if twice := [task for task, n in Counter(r.task for r in rows).items() if n > 1]:
        raise ValueError(f"{twice[0]} has two rows; a score has one answer a task")
    counted = [r for r in rows if r.status != "skipped"]
    correct = [r for r in counted if r.status == "correct"]
    found = [c for r in correct if (c := r.versus(rival)) is not None]
    ratios = [c.ratio for c in found]
    outcomes = Counter(c.outcome for c in found)
    fast = {}
    for p in THRESHOLDS:
        # fast_0 is correctness: it needs no rival
        fast[p] = stats.fast_p([_speed(r, rival, p) for r in counted], p)
    return Score(
        rival=rival,
        tasks=len(counted),
        answered=sum(r.status != "no answer" for r in counted),
        compiled=sum(r.status in ("correct", "wrong") for r in counted),
        correct=len(correct),
        compared=len(found),
        fast=fast,
        geomean=stats.geomean(ratios),
        geomean_faster=stats.geomean([x for x in ratios if x > 1]),
        median=float(np.median(ratios)) if ratios else math.nan,
        worst=min(ratios, default=math.nan),
        best=max(ratios, default=math.nan),
        share=stats.geomean([min(x, 1.0) for x in ratios]),
        wins=outcomes["win"],
        ties=outcomes["tie"],
        losses=outcomes["loss"],
        skipped=dict(Counter(r.skipped or "unknown" for r in rows if r.status == "skipped")),
    )


def _speed(row: Row, rival: str, p: float) -> float | None:
    if row.status != "correct":
        return None
    if p == 0:
        return math.inf
    found = row.versus(rival)
    return found.ratio if found is not None else None


def own_work(rows: Iterable[Row]) -> list[Row]:
    """The same, with answers that only change flags of the framework, or wrap its own operators, counted as no answer."""
    empty = ("flags only", "wraps the library")
    return [replace(r, status="no answer", ratios={}) if r.work in empty and r.status == "correct" else r for r in rows]


def by(rows: Iterable[Row], attribute: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by level, class or domain, in the order of their names."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(attribute(row), []).append(row)
    return dict(sorted(groups.items()))


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that at least one of k samples, drawn without putting back from those that were made, is right. NaN with fewer than k."""
    if not 0 <= right <= samples or k < 1:
        raise ValueError(f"{right} right of {samples} samples, and k = {k}, make no sense")
    if samples < k:
        return math.nan
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(rights: Mapping[str, Sequence[bool]], k: int) -> tuple[float, int]:
    """(mean over tasks that have at least k samples, their number)."""
    found = [pass_at_k(len(r), sum(r), k) for r in rights.values() if len(r) >= k]
    return (sum(found) / len(found), len(found)) if found else (math.nan, 0)


# ------------------------------------------------------------------------------------------------------------ from results


def row_of(result: Result, facts: Facts | None) -> Row:
    task = facts.task if facts else None
    return Row(
        task=result.task,
        status=result.status,
        ratios={c.rival: c for c in result.comparisons if c.mode == result.mode},
        level=task.level if task else "",
        group=task.group if task else "",
        domain=task.domain if task else "",
        degenerate=facts.degenerate if facts else False,
        work=result.work,
        skipped=result.skipped,
    )


def best_of(results: Iterable[Result]) -> list[Result]:
    """Of several samples of each task the best: a correct one with the largest ratio to the strongest rival."""

    def rank(r: Result) -> tuple[int, float]:
        order = ("skipped", "no answer", "not compiled", "wrong", "correct").index(r.status)
        return order, min((c.ratio for c in r.comparisons if c.mode == r.mode), default=0.0)

    found: dict[str, Result] = {}
    for r in results:
        if r.task not in found or rank(r) > rank(found[r.task]):
            found[r.task] = r
    return list(found.values())
