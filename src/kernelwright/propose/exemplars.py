"""Which earlier kernels a model sees beside its task: contrasting ones, with what they were measured at.

Buckets (CUDA-L1): kernels of one Workload are bucketed by score; N distinct buckets are drawn by a softmax over the buckets' mean scores,
and one kernel of each. Islands (as in FunSearch, Romera-Paredes et al. 2024): lineages are bred apart, each draws from its own kernels, and
from time to time the weaker half begins anew from the stronger half's best.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.learn.reward import reference, reward
from kernelwright.records import Outcome, Trial

COUNT = 2
"""CUDA-L1's N."""
WIDTH = 1.10
"""Ours: a bucket spans 10 % of speed. A screen tells 3 % apart, so neighbours within a bucket are nearly the same speed."""
TEMPERATURE = 1.0
"""Ours (CUDA-L1's is not published), in standard deviations of the buckets' means, so that it means the same at 1.1x and at 20x: a bucket
one deviation better is drawn 2.7 times as often."""
ISLANDS = 4
RESET = 24
"""Right kernels between two resets of the weaker islands."""
FAILURES = 3


def score(trial: Trial) -> float | None:
    """What kernels are bucketed by: the reward, of right kernels that were timed."""
    return reward(trial) if trial.verdict.ok and reference(trial) else None


def draw(trials: Sequence[Trial], rng: random.Random, count: int = COUNT) -> list[Trial]:
    """One kernel of each of up to `count` distinct buckets, slowest first; fewer where there are fewer buckets."""
    return draw_by(_newest(trials), _score, rng, count)


def buckets(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The right kernels, each once (its newest Trial), by score: slowest bucket first, no bucket empty."""
    return buckets_by(_newest(trials), _score)


WAYS = ("buckets", "islands", "random", "none")
"""How exemplars may be chosen. The last two are what the contrast is measured against, as in CUDA-L1's ablations."""


def choose(trials: Sequence[Trial], rng: random.Random, way: str = "buckets", island: int = 0, count: int = COUNT) -> list[Trial]:
    """Up to `count` kernels to show, slowest first, in one of the WAYS (`random`: whatever their speeds)."""
    if way == "none":
        return []
    if way == "random":
        right = [t for bucket in buckets(trials) for t in bucket]
        return sorted(rng.sample(right, min(count, len(right))), key=lambda t: score(t) or 0.0)
    pool = (islands(trials)[island % ISLANDS] or trials) if way == "islands" else trials
    return draw(pool, rng, count)


def islands(trials: Sequence[Trial], count: int = ISLANDS) -> list[list[Trial]]:
    """The right kernels by island, worked out anew from the Trials in their order, so that a resumed search has the same ones.

    A model's kernel lives where its prompt was made (`origin.config["island"]`), every other goes to the islands in turn.
    """
    right = [t for t in trials if score(t) is not None]
    return islands_by(right, _score, [int(t.candidate.origin.config.get("island", i)) for i, t in enumerate(right)], count)


def _newest(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in {t.candidate.id: t for t in trials}.values() if score(t) is not None]


def _score(trial: Trial) -> float:
    return score(trial) or 0.0


# ------------------------------------------------------------------------------------- the same of anything that has a score


def buckets_by(items: Sequence[Any], value: Callable[[Any], float]) -> list[list[Any]]:
    """Items of positive values, slowest bucket first, no bucket empty."""
    found: dict[int, list[Any]] = {}
    for item in items:
        found.setdefault(math.floor(math.log(value(item)) / math.log(WIDTH) + 1e-9), []).append(item)
    return [found[i] for i in sorted(found)]


def draw_by(items: Sequence[Any], value: Callable[[Any], float], rng: random.Random, count: int = COUNT) -> list[Any]:
    left = buckets_by(items, value)
    means = [statistics.fmean(map(value, bucket)) for bucket in left]
    centre, spread = (statistics.fmean(means), statistics.pstdev(means) or 1.0) if means else (0.0, 1.0)
    drawn: list[tuple[float, Any]] = []
    while left and len(drawn) < count:
        weights = [math.exp((mean - centre) / (TEMPERATURE * spread)) for mean in means]
        (i,) = rng.choices(range(len(left)), weights)
        drawn.append((means.pop(i), rng.choice(left.pop(i))))
    return [item for _, item in sorted(drawn, key=lambda pair: pair[0])]


def islands_by(items: Sequence[Any], value: Callable[[Any], float], homes: Sequence[int], count: int = ISLANDS) -> list[list[Any]]:
    """`homes`: each item's island, counted on past `count`."""
    found: list[list[Any]] = [[] for _ in range(count)]
    for i, (item, home) in enumerate(zip(items, homes, strict=True), 1):
        found[home % count].append(item)
        if i % RESET == 0:
            _reset(found, value)
    return found


def _reset(found: list[list[Any]], value: Callable[[Any], float]) -> None:
    """The weaker half keeps nothing; each gets the best of one of the stronger."""

    def best(island: list[Any]) -> float:
        return max(map(value, island), default=-math.inf)

    ranked = sorted(range(len(found)), key=lambda i: best(found[i]), reverse=True)
    strong, weak = ranked[: len(found) // 2], ranked[len(found) // 2 :]
    for to, origin in zip(weak, strong, strict=False):
        founder = max(found[origin], key=value, default=None)
        found[to] = [founder] if founder is not None else []


def failures(trials: Sequence[Trial], count: int = FAILURES) -> list[Trial]:
    """The newest that failed, one of each outcome."""
    newest: dict[Outcome, Trial] = {}
    for t in trials:
        if t.verdict.outcome not in (Outcome.OK, Outcome.NOISY):
            newest.pop(t.verdict.outcome, None)
            newest[t.verdict.outcome] = t
    return list(newest.values())[-count:]
