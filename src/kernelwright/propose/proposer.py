"""What a Proposer is: it writes Candidates, and is told how each fared. It never compiles, runs or times anything.

The loop: `propose(n)`, evaluate, `learn(trial)` for each. A batch may be asked for before the last one is learnt. A new
proposer subclasses `Proposer`, or `ConfigProposer` when it chooses among Family configs, and is listed in `propose/__init__`.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kernelwright.families.family import DeviceFacts, Family
from kernelwright.learn.reward import reference
from kernelwright.records import Candidate, Outcome, Trial, Workload

if TYPE_CHECKING:
    from kernelwright.archive import Archive
    from kernelwright.targets.target import Peaks


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def score(trial: Trial) -> float:
    """How well a Candidate did, higher is better: its ratio to the anchor rival. -inf for a Candidate that failed or has no ratio."""
    compared = reference(trial)
    return compared.ratio if compared else -math.inf


@dataclass(frozen=True)
class Context:
    """What a proposer may know beside the Workload, the device and the history."""

    archive: Archive | None = None
    """For kernels of other Workloads."""
    peaks: Peaks | None = None
    """The device's roofline."""
    deadline: float = math.inf
    """When the search ends, of `time.monotonic`: nothing is waited for any longer."""


class Proposer(ABC):
    """Writes Candidates for one Workload on one device. The same seed and history (and answers of models) give the same Candidates."""

    name: ClassVar[str]
    needs_families: ClassVar[bool] = True
    """Whether it has nothing to propose without a Family."""
    reads_counters: ClassVar[bool] = False
    """Whether hardware counters of the best kernels are worth a profiler's run to it."""

    def __init__(
        self,
        workload: Workload,
        families: Sequence[Family],
        device: DeviceFacts,
        seed: int = 0,
        history: Iterable[Trial] = (),
        context: Context | None = None,
    ):
        """`history`: earlier Trials, in the order they were made; those of other Workloads and targets are passed over."""
        self.workload = workload
        self.context = context or Context()
        self.families = list(families)
        self.device = device
        self.rng = random.Random(seed)
        self.tried: set[str] = set()
        """Ids of all Candidates proposed or learnt."""
        self.scores: dict[str, float] = {}
        """Candidate id to score."""
        self._set_up(seed)
        for trial in history:
            self.learn(trial)

    def _set_up(self, seed: int) -> None:
        """For subclasses: runs before the history is learnt."""

    @abstractmethod
    def propose(self, n: int) -> list[Candidate]:
        """Up to n new Candidates, never one that was tried before; an empty list when there is nothing left to propose."""

    def ready(self) -> bool:
        """Whether `propose` would return at once; begins what takes long, so that something else can be done meanwhile."""
        return True

    def summary(self) -> dict[str, Any]:
        """What a user would like to know of it at the end: what it asked for, what that cost."""
        return {}

    def close(self) -> None:
        """Ends what it has under way."""

    def learn(self, trial: Trial) -> None:
        """Takes in how a Candidate fared, whoever proposed it."""
        if trial.workload != self.workload or trial.environment.target != self.device.target:
            return
        key = trial.candidate.id
        self.tried.add(key)
        if trial.verdict.outcome is Outcome.NOISY:
            return  # it says nothing of the candidate
        new = score(trial)
        # A later stage compares with other rivals, so its ratio is no better measure; but a candidate that fails there is out.
        if trial.stage == "screen" or key not in self.scores or not trial.verdict.ok:
            self.scores[key] = new
            self._learned(trial, new)

    def _learned(self, trial: Trial, new: float) -> None:
        """For subclasses: a Candidate has a new score."""
