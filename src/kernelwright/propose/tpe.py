"""`tpe`: search guided by a surrogate, Optuna's tree-structured Parzen estimator. It models where good and where bad configs
lie and asks for the config with the best ratio of the two.

J. Bergstra et al., "Algorithms for hyper-parameter optimization", NeurIPS 2011.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from kernelwright.families.family import Value
from kernelwright.propose.configs import ConfigProposer, Point
from kernelwright.propose.proposer import MissingExtra

if TYPE_CHECKING:
    import optuna

ATTEMPTS = 5
"""Suggestions (20 to 50 ms each) that are illegal or known before a neighbour of one takes their place."""
FAMILY = "family"


class Tpe(ConfigProposer):
    name = "tpe"

    def _set_up(self, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtra('the proposer tpe needs Optuna; install it with `pip install "kernelwright[search]"`') from None
        super()._set_up(seed)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # both options are experimental in Optuna 4
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: dict[Point, optuna.Trial] = {}

    def _distributions(self, family: str) -> dict[str, optuna.distributions.BaseDistribution]:
        """What `_suggest` draws from, for a trial that it did not draw."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        result: dict[str, optuna.distributions.BaseDistribution] = {FAMILY: CategoricalDistribution(list(self.space.spaces))}
        for name, values in self.space.spaces[family].items():
            last = len(values) - 1
            result[f"{family}.{name}"] = IntDistribution(0, last) if _ordered(values) else CategoricalDistribution(range(last + 1))
        return result

    def _suggest(self, asked: optuna.Trial, family: str) -> tuple[int, ...]:
        places = []
        for name, values in self.space.spaces[family].items():
            key, last = f"{family}.{name}", len(values) - 1
            places.append(asked.suggest_int(key, 0, last) if _ordered(values) else asked.suggest_categorical(key, range(last + 1)))
        return tuple(places)

    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        from optuna.trial import TrialState

        near: list[Point] = []
        for _ in range(ATTEMPTS if self.space.combinations else 0):
            asked = self._study.ask()
            family = asked.suggest_categorical(FAMILY, list(self.space.spaces))
            point = Point(family, self._suggest(asked, family))
            if point in self.visited:
                self._study.tell(asked, state=TrialState.FAIL)
            elif not self.space.legal(point):
                self._study.tell(asked, state=TrialState.PRUNED)  # the sampler counts it among the bad
            else:
                self._asked[point] = asked
                return point, ()
            near += self.space.neighbours(point)
        self.rng.shuffle(near)
        return next(filter(self._fresh, near), None) or self._any(), ()

    def _learned_point(self, point: Point, new: float) -> None:
        import optuna
        from optuna.trial import TrialState

        failed = new == -math.inf
        state, value = (TrialState.PRUNED, None) if failed else (TrialState.COMPLETE, math.log(new))
        if asked := self._asked.pop(point, None):
            self._study.tell(asked, value, state=state)
            return
        distributions = self._distributions(point.family)
        params = dict(zip(distributions, (point.family, *point.places), strict=True))
        self._study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=value, state=state))


def _ordered(values: tuple[Value, ...]) -> bool:
    """Numbers keep their order (the Space puts similar ones next to each other); words and switches have none."""
    return all(type(v) is int for v in values)
