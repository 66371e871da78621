"""What a Trial is worth: a pure function of the records, so that all can be worked out again from the Archive when the rule changes.

    reward = speed - ALPHA * error - BETA * length        of a right candidate, at least SLOWEST
    speed  = t_ref / t, paired in interleaved rounds; 1 for a tie; rounded to hundredths towards 1
    error  = the largest normalised error of its checks, as a share of what the check allows (0 to 1)
    length = characters of its source without comments and white space

The terms are those of CUDA-L2 (mean over runs of t_ref/t - alpha max|error|, minus beta times code length; its alpha and beta are not
published); rounding, smoothing, clipping and the rule for sudden jumps follow CUDA-L1. docs/learning.md gives the reason of every constant.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence

from kernelwright.records import Comparison, Outcome, Trial

ALPHA = 0.03
"""Ours: the whole of the allowed error is worth what a screen cannot tell apart (3 %), so accuracy decides between equals only."""
BETA = 1e-6
"""Ours: 30,000 characters, as long as the longest kernels here, are worth the same 3 %."""
SLOWEST = 0.01
"""Ours: however slow, a right kernel is worth more than a wrong one."""
FAILED = 0.0
"""CUDA-L1: no speed without a right result."""
CHEATED = -1.0
"""Ours: a cheat must be worse than giving up, or a policy goes on trying."""
CLIP = 1.5
"""CUDA-L1's k: normalised rewards beyond it are cut."""
JUMP = 2.0
"""CUDA-L1: a score above twice the best, or above 3, must be reproduced before it counts ..."""
UNPROVEN = 1.5
"""... which is twice this, for a Workload of which no fresh process has shown more. What lies below 3 is measured again as a finalist."""
REPRODUCED = 0.10
"""CUDA-L1: within 10 %."""


def reward(trial: Trial) -> float | None:
    """Of one Trial taken at its word (see `counted`); None where it says nothing: too noisy to time, or never timed beside a rival."""
    if trial.verdict.outcome is Outcome.NOISY:
        return None
    if not trial.verdict.ok:
        return CHEATED if trial.verdict.outcome is Outcome.CHEAT else FAILED
    compared = reference(trial)
    if compared is None:
        return None
    return max(SLOWEST, speed(compared) - ALPHA * error(trial) - BETA * length(trial.candidate.source))


def reference(trial: Trial) -> Comparison | None:
    """With the first rival, in the mode that was timed first: the one that a screen has."""
    return next((c for c in trial.comparisons if trial.timings and c.mode == trial.timings[0].mode), None)


def speed(compared: Comparison) -> float:
    """t_ref / t, conservatively: a gain that is not proved is 1, and hundredths are rounded towards 1 (1.118 is 1.11, 0.992 is 1.00).
    A loss is taken at its word: the interval of a screen's three rounds can hold 1 around a kernel of a tenth of the speed."""
    if compared.outcome == "tie" and compared.ratio > 1:
        return 1.0
    hundredths = round(compared.ratio * 100, 6)
    return (math.floor(hundredths) if hundredths > 100 else math.ceil(hundredths)) / 100


def error(trial: Trial) -> float:
    """Largest error of a check over what it allows, 0 to 1."""
    return min(1.0, max((c.error / c.bound for c in trial.verdict.checks if c.passed and c.bound > 0), default=0.0))


_SPACE = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/|\s+', re.DOTALL)


def length(source: str) -> int:
    """Characters without C's comments and white space; what stands in quotes counts. (Python's `#` comments count: they are few.)"""
    return len(_SPACE.sub(lambda found: found[1] or "", source))


# --------------------------------------------------------------------------------------------------------- sudden jumps


def ceiling(trials: Iterable[Trial]) -> float:
    """The highest t_ref/t that a screen may claim by itself: JUMP times the best that a fresh process has shown for this Workload."""
    fresh = (c.ratio for t in trials if _fresh(t) and (c := reference(t)))
    return JUMP * max(UNPROVEN, *fresh, 0.0)


def settle(screen: Trial, again: Trial) -> Trial:
    """Which of the two counts: the screen if the fresh process reproduced its ratio within REPRODUCED, else what that measured. A fresh
    measurement that was too noisy reproduces nothing."""
    claimed = reference(screen)
    if claimed is None or not again.verdict.ok:
        return again
    shown = next((c for c in again.comparisons if (c.rival, c.mode) == (claimed.rival, claimed.mode)), None)
    return screen if shown is not None and shown.ratio >= claimed.ratio * (1 - REPRODUCED) else again


def counted(trials: Sequence[Trial]) -> list[Trial]:
    """What counts of each screen of one Workload on one device, in order: itself or its newest measurement in a fresh process, as `settle`
    says; one above the `ceiling` nothing before there is one."""
    limit = ceiling(trials)
    fresh = {t.candidate.id: t for t in trials if _fresh(t)}
    found = []
    for t in trials:
        if t.stage != "screen":
            continue
        if (again := fresh.get(t.candidate.id)) is not None:
            found.append(settle(t, again))
        elif (claimed := reference(t)) is None or claimed.ratio <= limit:
            found.append(t)
    return found


def _fresh(trial: Trial) -> bool:
    """Measured by a process that had run no other candidate of the search."""
    return trial.stage in ("confirm", "replay") and trial.candidate.kind != "rival" and trial.verdict.outcome is not Outcome.NOISY


# ------------------------------------------------------------------------------------------------------------- training


def smoothed(rewards: Sequence[float]) -> list[float]:
    """A group's rewards as advantages: (r - mean) / standard deviation, cut at +-CLIP; zeros where all are equal (CUDA-L1, before GRPO)."""
    if len(rewards) < 2 or not (spread := statistics.pstdev(rewards)):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [max(-CLIP, min(CLIP, (r - mean) / spread)) for r in rewards]
