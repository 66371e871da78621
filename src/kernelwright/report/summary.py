"""What the Trials of a run say: the winner of each Workload, its ratio to each rival, and the aggregates over Workloads.

Both the HTML report and the terminal tables read this, so that they can never disagree. Nothing here draws or formats a table.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernelwright.records import MODES, Check, Comparison, Environment, Outcome, Trial, Verdict, Workload

Standing = Literal["win", "tie", "loss", "alone", "failed"]
"""Against the strongest rival; `alone`: verified and timed, but no rival could be compared; `failed`: nothing verified."""

RUNGS = ("exact", "normal", "adversarial", "memory", "repeat", "chain", "shapes", "after-timing")
"""Of the correctness ladder, in the order in which a reader wants them."""

STAGE_ORDER = {"replay": 0, "confirm": 0, "screen": 1, "verify": 2}


def is_rival(trial: Trial) -> bool:
    return trial.candidate.kind == "rival"


def main_mode(trials: Iterable[Trial]) -> str:
    """The mode that headlines are stated in: the one that most of our Trials were timed in, because a search screens in one mode only;
    among equals the one that a Trial lists first."""
    counted = Counter(t.mode for trial in trials if not is_rival(trial) for t in trial.timings)
    return counted.most_common(1)[0][0] if counted else MODES[0]


def winner(trials: Iterable[Trial], mode: str | None = None) -> Trial | None:
    """The best of our own verified candidates for one Workload, None when there is none.

    The fastest of many screened candidates owes part of its lead to luck (the winner's curse), so a run that measured its finalists
    again in a fresh process has its winner among these. One that failed in any of its Trials cannot win.
    """
    trials = list(trials)
    mode = mode or main_mode(trials)
    caught = {t.candidate.id for t in trials if not t.verdict.ok and t.verdict.outcome is not Outcome.NOISY}
    own = [t for t in trials if not is_rival(t)]
    # where finalists were measured again, only that measurement counts, even if none of them passed
    finalists = [t for t in own if t.stage in ("confirm", "replay")] or own
    right = [t for t in finalists if t.verdict.ok and t.timing(mode) and t.candidate.id not in caught]
    return min(right, key=lambda t: rank(t, mode), default=None)


def rank(trial: Trial, mode: str) -> tuple[int, int, float]:
    """Sort key, best first: verified before failed, confirmed before screened, then the median time."""
    timing = trial.timing(mode)
    return (not trial.verdict.ok, STAGE_ORDER[trial.stage], timing.median if timing else math.inf)


@dataclass(frozen=True)
class WorkloadSummary:
    """All Trials of one Workload in one run."""

    workload: Workload
    trials: tuple[Trial, ...]
    mode: str

    @cached_property
    def own(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if not is_rival(t))

    @cached_property
    def rival_trials(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if is_rival(t))

    @cached_property
    def winner(self) -> Trial | None:
        return winner(self.trials, self.mode)

    @cached_property
    def confirmed(self) -> bool:
        return self.winner is not None and self.winner.stage in ("confirm", "replay")

    @cached_property
    def modes(self) -> tuple[str, ...]:
        timed = {t.mode for t in self.winner.timings} if self.winner else set()
        return tuple(m for m in MODES if m in timed)

    def comparisons(self, mode: str | None = None) -> tuple[Comparison, ...]:
        """Of the winner, strongest rival first."""
        if self.winner is None:
            return ()
        mode = mode or self.mode
        return tuple(sorted((c for c in self.winner.comparisons if c.mode == mode), key=lambda c: c.ratio))

    @property
    def strongest(self) -> Comparison | None:
        """Against the rival that is fastest in the main mode."""
        return next(iter(self.comparisons()), None)

    @property
    def chained(self) -> Comparison | None:
        """Against the rival that is fastest in mode device-chain."""
        return next(iter(self.comparisons("device-chain")), None)

    @property
    def reference(self) -> Comparison | None:
        """Against the rival every user knows, torch eager; the strongest where eager was not measured."""
        eager = [c for c in self.comparisons() if c.rival == "eager"]
        return eager[0] if eager else self.strongest

    @property
    def standing(self) -> Standing:
        if self.winner is None:
            return "failed"
        return self.strongest.outcome if self.strongest else "alone"

    @cached_property
    def failed_rivals(self) -> dict[str, Verdict]:
        """Rivals that were wrong or did not run: from the winner's round and from rival Trials."""
        found = {t.candidate.label: t.verdict for t in self.rival_trials if not t.verdict.ok}
        for trial in self.own if self.winner is None else (self.winner,):
            found.update({name: v for name, v in trial.rivals.items() if not v.ok})
        return found

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Every check that the winning candidate went through, over all its Trials; of a case that was repeated, the largest error."""
        if self.winner is None:
            return ()
        seen: dict[tuple[str, str], Check] = {}
        for trial in self.own:
            if trial.candidate.id == self.winner.candidate.id:
                for check in trial.verdict.checks:
                    key = (check.rung, check.case)
                    if key not in seen or check.error > seen[key].error:
                        seen[key] = check
        return tuple(sorted(seen.values(), key=lambda c: RUNGS.index(c.rung) if c.rung in RUNGS else len(RUNGS)))

    @cached_property
    def rival_times(self) -> dict[str, float]:
        """Microseconds in the main mode: from the winner's own rounds, else from the rival's Trial."""
        times = {}
        for trial in self.rival_trials:
            if timing := trial.timing(self.mode):
                times[trial.candidate.label] = timing.median
        times.update({c.rival: c.rival_us for c in self.comparisons()})
        return times


@dataclass(frozen=True)
class Aggregate:
    """One rival over all Workloads on which both it and a candidate of ours were right and timed."""

    rival: str
    compared: dict[str, Comparison]
    """By Workload name."""
    missing: int
    """Workloads without a figure: no verified candidate, or the rival failed."""

    @property
    def ratios(self) -> list[float]:
        return [c.ratio for c in self.compared.values()]

    @property
    def geomean(self) -> float:
        return statistics.geometric_mean(self.ratios)

    @property
    def geomean_dispatched(self) -> float:
        """With the rival itself used wherever it was measured faster, as a Pack does with vendor kernels."""
        return statistics.geometric_mean([max(1.0, r) for r in self.ratios])

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def count(self, outcome: str) -> int:
        return sum(c.outcome == outcome for c in self.compared.values())

    @property
    def worst(self) -> tuple[str, Comparison]:
        return min(self.compared.items(), key=lambda item: item[1].ratio)

    @property
    def best(self) -> tuple[str, Comparison]:
        return max(self.compared.items(), key=lambda item: item[1].ratio)


STRONGEST = "strongest rival"


@dataclass(frozen=True)
class RunSummary:
    """All Trials of one run, in the order in which they were made."""

    trials: tuple[Trial, ...]
    mode: str
    workloads: tuple[WorkloadSummary, ...]
    elsewhere: tuple[tuple[str, int], ...] = ()
    """Other devices and how many Trials of theirs are left out."""

    @cached_property
    def environments(self) -> tuple[Environment, ...]:
        """Distinct ones, the most frequent first."""
        counted = Counter(t.environment for t in self.trials)
        return tuple(environment for environment, _ in counted.most_common())

    @cached_property
    def rivals(self) -> tuple[str, ...]:
        """Names of every rival compared in the main mode, eager first."""
        names = {c.rival: None for s in self.workloads for c in s.comparisons()}
        return tuple(sorted(names, key=lambda name: (name != "eager", list(names).index(name))))

    @cached_property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """Against the strongest rival of each Workload first, then against each rival."""
        rows = [self._aggregate(STRONGEST, {s.workload.name: s.strongest for s in self.workloads if s.strongest})]
        for rival in self.rivals:
            found = {s.workload.name: c for s in self.workloads for c in s.comparisons() if c.rival == rival}
            rows.append(self._aggregate(rival, found))
        return tuple(row for row in rows if row.compared)

    def _aggregate(self, rival: str, compared: dict[str, Comparison]) -> Aggregate:
        return Aggregate(rival=rival, compared=compared, missing=len(self.workloads) - len(compared))

    def standing(self, *wanted: Standing) -> tuple[WorkloadSummary, ...]:
        return tuple(s for s in self.workloads if s.standing in wanted)

    @cached_property
    def outcomes(self) -> Counter[str]:
        """Verdicts of our own candidates, most frequent first."""
        return Counter(t.verdict.outcome.value for t in self.trials if not is_rival(t))


def summarise(trials: Sequence[Trial], mode: str | None = None) -> RunSummary:
    """Groups the Trials by Workload, in the order of their first appearance. `mode` is that of the headlines, `main_mode` by default.

    Times of two machines must not be compared, so where there are several only the one with the most Trials is summarised.
    """
    places = Counter(_place(t.environment) for t in trials)
    here = places.most_common(1)[0][0] if places else None
    # stable: Trials without a date keep their order
    kept = tuple(sorted((t for t in trials if _place(t.environment) == here), key=lambda t: t.created))
    mode = mode or main_mode(kept)
    groups: dict[Workload, list[Trial]] = {}
    for trial in kept:
        groups.setdefault(trial.workload, []).append(trial)
    workloads = tuple(WorkloadSummary(workload=w, trials=tuple(group), mode=mode) for w, group in groups.items())
    elsewhere = tuple((f"{target} {device}", n) for (target, device, _), n in places.most_common()[1:])
    return RunSummary(trials=kept, mode=mode, workloads=workloads, elsewhere=elsewhere)


def _place(e: Environment) -> tuple[str, str, str]:
    return e.target, e.device, str(e.facts.get("threads", ""))
