"""`mix`: models at an endpoint, our own kernel model and search over Families share the trials; each gets as many as what it has earned is
worth (`bandit`). Without an endpoint the others share them.

While models think, the search goes on: nobody waits for an answer as long as something else can be tried.
"""

from __future__ import annotations

import math
from typing import Any

from kernelwright.propose.bandit import Bandit, earned
from kernelwright.propose.evolve import Evolve
from kernelwright.propose.llm import Llm, LlmUnavailable
from kernelwright.propose.policy import PolicyProposer
from kernelwright.propose.proposer import Proposer
from kernelwright.records import Candidate, Trial
from kernelwright.settings import settings

SHARE = 4
"""Most candidates from one proposer before the next choice."""


class Mix(Proposer):
    name = "mix"
    needs_families = False
    reads_counters = True

    def _set_up(self, seed: int) -> None:
        given = (self.workload, self.families, self.device, seed, (), self.context)
        self.parts: dict[str, Proposer] = {}
        if settings().llm.url or not self.families:
            self.parts["llm"] = Llm(*given)  # without either it says what to set
        if PolicyProposer.writes(self.families):
            self.parts["policy"] = PolicyProposer(*given)
        if self.families:
            self.parts["evolve"] = Evolve(*given)
        self.bandit = Bandit(list(self.parts))
        self._proposed: dict[str, str] = {}
        """Candidate id to who proposed it."""
        self._over: dict[str, str] = {}
        """Who has no more, and why."""

    def propose(self, n: int) -> list[Candidate]:
        while self.bandit.arms:
            try:
                ranked = self.bandit.ranked()
                # all are asked, so that models begin; then the best bet of those that need not be waited for
                name = ([one for one in ranked if self.parts[one].ready()] or ranked)[0]
                found = self.parts[name].propose(min(n, SHARE))
            except LlmUnavailable as error:
                if len(self.parts) == 1:
                    raise
                name, found = "llm", []
                self._over[name] = str(error)
            if not found:
                self.bandit.remove(name)
                self._over.setdefault(name, "nothing left to propose")
                continue
            fresh = [c for c in found if c.id not in self.tried]
            self.tried |= {c.id for c in fresh}
            self._proposed |= {c.id: name for c in fresh}
            self.bandit.started(name, len(fresh))
            if fresh:
                return fresh
        return []

    def learn(self, trial: Trial) -> None:
        best = max(self.scores.values(), default=-math.inf)
        known = trial.candidate.id in self.scores
        super().learn(trial)
        for part in self.parts.values():
            part.learn(trial)
        # by who proposed it in this run; of an earlier run's, by what its origin says
        name = self._proposed.pop(trial.candidate.id, trial.candidate.origin.proposer)
        if trial.candidate.id in self.scores and not known:
            self.bandit.credit(name, earned(self.scores[trial.candidate.id], best))
        elif name in self.parts:
            self.bandit.withdraw(name)

    def summary(self) -> dict[str, Any]:
        """Of all; and what each earned a try."""
        found: dict[str, Any] = {}
        for part in self.parts.values():
            found |= part.summary()
        found["earned by proposers"] = self.bandit.means()
        if self._over:
            found["ended"] = self._over
        return found

    def close(self) -> None:
        for part in self.parts.values():
            part.close()
