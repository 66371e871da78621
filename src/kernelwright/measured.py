"""What was measured on a suite's Workloads with this device and these versions: read from the archive, then kept up as Trials are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.archive import Archive
from kernelwright.problems import LAYOUTS
from kernelwright.propose import score
from kernelwright.propose.neighbours import Knowledge
from kernelwright.records import Candidate, Environment, Outcome, Trial, Workload


class Measured:
    """`mode` is the headline's; `counts` says of a right confirming Trial whether it covers what the run asks for."""

    def __init__(
        self, workloads: Sequence[Workload], archive: Archive, environment: Environment, mode: str, counts: Callable[[Trial], bool]
    ):
        self.workloads, self._archive, self._mode, self._counts = workloads, archive, mode, counts
        self.candidates: dict[str, Candidate] = {}
        """Each once: tens of thousands of Trials share some hundreds of sources."""
        self.screens: dict[Workload, list[Trial]] = {w: [] for w in workloads}
        self.confirms: dict[Workload, list[Trial]] = {w: [] for w in workloads}
        self.knowledge = Knowledge()
        for w in workloads:
            for t in archive.trials(workload=w):
                if t.environment.comparable(environment):
                    self._take(t)
        # what the same products showed in other layouts
        other_layouts = {w.replace(layout=other) for w in workloads if w.layout for other in LAYOUTS} - set(workloads)
        for w in sorted(other_layouts, key=lambda w: w.name):
            for t in archive.trials(workload=w):
                if t.environment.comparable(environment):
                    self._learn(t)

    def record(self, trial: Trial) -> Trial:
        self._archive.append(trial)
        return self._take(trial)

    def _take(self, trial: Trial) -> Trial:
        trial = trial.replace(candidate=self.candidates.setdefault(trial.candidate.id, trial.candidate))
        if trial.stage == "screen":
            self.screens[trial.workload].append(trial)
        elif trial.stage == "confirm":
            self.confirms[trial.workload].append(trial)
        self._learn(trial)
        return trial

    def _learn(self, trial: Trial) -> None:
        if trial.verdict.outcome is not Outcome.NOISY and (trial.stage == "screen" or not trial.verdict.ok):
            self.knowledge.learn(
                trial.workload, trial.candidate, score(trial), trial.median(self._mode) if trial.timing(self._mode) else 0.0
            )

    def seconds(self, session: str) -> float:
        """Of the device, in the sessions whose names begin so. A rival's Trial shares its Job's time with the candidates'."""
        trials = (t for w in self.workloads for t in (*self.screens[w], *self.confirms[w]))
        return sum(t.seconds for t in trials if t.session.startswith(session) and t.candidate.kind != "rival")

    def times(self, w: Workload) -> dict[str, float]:
        """Screened time by Candidate, in units of the anchor's time in the same rounds. What failed in any stage is out."""
        failed = {t.candidate.id for t in (*self.screens[w], *self.confirms[w]) if t.verdict.outcome not in (Outcome.OK, Outcome.NOISY)}
        return {t.candidate.id: 1 / score(t) for t in self.screens[w] if t.candidate.id not in failed and score(t) > 0}

    def confirmed_times(self, w: Workload) -> dict[str, float]:
        """Microseconds in the headline's mode by Candidate, of those that passed every confirmation."""
        able = self.times(w)
        return {
            t.candidate.id: t.median(self._mode) for t in self.confirms[w] if t.candidate.id in able and t.verdict.ok and self._counts(t)
        }

    def unconfirmed(self) -> list[Workload]:
        return [w for w in self.workloads if not self.confirmed_times(w)]
