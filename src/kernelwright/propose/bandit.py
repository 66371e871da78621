"""Who gets the next try: a bandit over arms (models, proposers) whose worth changes as the search goes on.

Discounted UCB: A. Garivier and E. Moulines, "On Upper-Confidence Bound Policies for Switching Bandit Problems", ALT 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

DISCOUNT = 0.97
"""Of everything earlier, at each credit: gains come early in a search, so what an arm earned 50 tries ago says little (0.97^50 = 0.2)."""
EXPLORE = 0.5
"""Width of the confidence bound. Credits lie between 0 and 1, most below 0.3."""
RIGHT = 0.1
"""Credit of a kernel that is right and no gain: more than of one that fails."""
DOUBLED = 2.0
"""A gain of this factor over the best so far earns the full credit."""


def earned(score: float, best: float) -> float:
    """Credit of a candidate, 0 to 1, given the best score before it: 0 if it failed, RIGHT if it is right, more as it beats the best."""
    if score == -math.inf:
        return 0.0
    gain = math.log(score / best) / math.log(DOUBLED) if 0 < best < score else (1.0 if best <= 0 else 0.0)
    return RIGHT + (1 - RIGHT) * min(1.0, gain)


class Bandit:
    """Arms by name."""

    def __init__(self, arms: Sequence[str]):
        self.arms = list(arms)
        self._count = dict.fromkeys(arms, 0.0)
        self._sum = dict.fromkeys(arms, 0.0)
        self._pending = dict.fromkeys(arms, 0)

    def ranked(self) -> list[str]:
        """The arms, best bet first. Tries whose credit is still to come count as tries: several may be asked for at one time."""
        total = sum(self._count.values()) + sum(self._pending.values())

        def index(arm: str) -> float:
            tries = self._count[arm] + self._pending[arm]
            if not tries:
                return math.inf
            mean = self._sum[arm] / self._count[arm] if self._count[arm] else 0.5
            return mean + EXPLORE * math.sqrt(math.log(max(math.e, total)) / tries)

        return sorted(self.arms, key=lambda arm: -index(arm))

    def started(self, arm: str, tries: int = 1) -> None:
        self._pending[arm] += tries

    def credit(self, arm: str, value: float) -> None:
        """The outcome of a try; also of one that another run had started. Unknown arms, of earlier runs, are passed over."""
        if arm not in self._count:
            return
        for other in self._count:
            self._count[other] *= DISCOUNT
            self._sum[other] *= DISCOUNT
        self._count[arm] += 1
        self._sum[arm] += value
        self._pending[arm] = max(0, self._pending[arm] - 1)

    def withdraw(self, arm: str) -> None:
        """A started try that will have no outcome."""
        self._pending[arm] = max(0, self._pending[arm] - 1)

    def remove(self, arm: str) -> None:
        self.arms.remove(arm)

    def means(self) -> dict[str, float]:
        """What each arm earned a try, of late."""
        return {arm: round(self._sum[arm] / self._count[arm], 3) for arm in self._count if self._count[arm]}
