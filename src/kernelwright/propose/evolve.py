"""`evolve`: a steady-state genetic search. Seeds, a few random configs, then children of good ones: crossover and a step to a
neighbouring value. Tournaments, newcomers and never repeating a config keep it diverse; when it is stuck it starts a new era.

Tournament selection: D. Goldberg and K. Deb, "A comparative analysis of selection schemes", FOGA 1991.
"""

from __future__ import annotations

import math

from kernelwright.propose.configs import ConfigProposer, Point

FOUNDERS = 8
"""Right candidates before the first children."""
POOL = 10
"""The best of the era, from which parents come. On the tests' unimodal toy (4,056 configs, 20 seeds) pools of 8, 12 and 20 found the
optimum within 80 trials 18, 16 and 5 times."""
TOURNAMENT = 3
NEWCOMERS = 0.1
"""Share of uniform draws."""
CROSSOVER = 0.5
STEP = 0.8
"""Of a mutated choice: the share of steps to a neighbour in the Space's order; the others jump anywhere."""
STUCK = 40
"""Trials without a better candidate until a new era."""
ATTEMPTS = 50
"""At a new child before a uniform draw takes its place."""


class Evolve(ConfigProposer):
    name = "evolve"

    def _set_up(self, seed: int) -> None:
        super()._set_up(seed)
        self._start_era()

    def _start_era(self) -> None:
        self._era: dict[Point, float] = {}
        self._best = -math.inf
        self._since_best = 0

    def _learned_point(self, point: Point, new: float) -> None:
        if new == -math.inf:
            self._era.pop(point, None)
        else:
            self._era[point] = new
        self._since_best += 1
        if new > self._best:
            self._best, self._since_best = new, 0
        elif self._since_best >= STUCK:
            self._start_era()

    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        if len(self._era) >= FOUNDERS and self.rng.random() >= NEWCOMERS:
            pool = sorted(self._era, key=self._era.__getitem__, reverse=True)[:POOL]
            for _ in range(ATTEMPTS):
                child, parents = self._child(pool)
                if self._fresh(child):
                    return child, tuple(self.candidates[p] for p in parents)
        return self._any(), ()

    def _child(self, pool: list[Point]) -> tuple[Point, tuple[Point, ...]]:
        mother = self._tournament(pool)
        places, parents = list(mother.places), (mother,)
        mates = [p for p in pool if p.family == mother.family and p != mother]
        crossed = bool(mates) and self.rng.random() < CROSSOVER
        if crossed:
            father = self._tournament(mates)
            places = [self.rng.choice(pair) for pair in zip(mother.places, father.places, strict=True)]
            parents = (mother, father)
        lengths = [len(values) for values in self.space.spaces[mother.family].values()]
        free = [i for i, length in enumerate(lengths) if length > 1]
        # one change on average, and at least one where crossover made none
        changes = self.rng.choice((0, 1, 2)) if crossed else self.rng.choice((1, 1, 2))
        for i in self.rng.sample(free, min(changes, len(free))):
            if self.rng.random() < STEP:
                places[i] += self.rng.choice([d for d in (-1, 1) if 0 <= places[i] + d < lengths[i]])
            else:
                places[i] = self.rng.randrange(lengths[i])
        return Point(mother.family, tuple(places)), parents

    def _tournament(self, pool: list[Point]) -> Point:
        return max(self.rng.sample(pool, min(TOURNAMENT, len(pool))), key=self._era.__getitem__)
