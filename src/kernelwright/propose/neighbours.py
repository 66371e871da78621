"""`Neighbours`: the search of one Workload of a suite, led by what was measured on the Workloads near it.

Neighbours are Workloads of one kind (problem, types), and near where their axes differ by few doublings; nearest is the same product
stored in another layout. A config's prior is its mean speed on the nearest of them, each as a share of the best speed seen there: ratios
against a rival would favour configs that were tried where the rival is weak. Where Families estimate times, the share is changed as the
estimates say it changes on the way from the neighbour: a tile that filled the device there may leave half of it idle here. Configs that no
neighbour knows come from the Families' seeds and the tile model, then from mutating the best. They are ranked by the Families' estimates,
each Family's corrected by how far off they were here and nearby: a model that promises too much would keep the other Families out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import geometric_mean

from kernelwright.families.family import Config, DeviceFacts, Family
from kernelwright.propose.configs import Point, SearchSpace
from kernelwright.propose.evolve import ATTEMPTS, Evolve
from kernelwright.records import Candidate, Trial, Workload

NEAR = 6
"""Neighbours asked: as many as a point inside a grid of three axes has."""
WINNERS = 3
"""The winners of so many nearest neighbours are tried before anything else."""
UNTRIED = 0.9
"""Prior of a seed that no neighbour tried: after what did well there, before what did not. Less for one that the models put behind the best
seed."""
HOPELESS = 0.7
"""What was slower than this on the neighbours is not tried; mutation may still come back to it."""
PARENTS = 4
"""Mutations start from so many of the best."""

Key = tuple[str, frozenset]
"""A config as learnt: Family and choices."""


def key_of(family: str, config: Config | dict) -> Key:
    return family, frozenset(config.items())


LAYOUT = 0.35
"""Doublings that an operand stored the other way counts for: less than any neighbour in the axes."""


def distance(a: Workload, b: Workload) -> float:
    """Doublings between the axes, Euclidean; infinity between Workloads of different kinds."""
    if _kind(a) != _kind(b):
        return math.inf
    return math.dist(_place(a), _place(b))


def _kind(w: Workload) -> tuple[object, ...]:
    return w.problem, tuple(w.axes), w.dtype, w.accumulate, w.source, w.epilogue


def _doublings(w: Workload) -> tuple[float, ...]:
    return tuple(math.log2(max(n, 1)) for n in w.axes.values())


def _place(w: Workload) -> tuple[float, ...]:
    return (*_doublings(w), *(LAYOUT * (letter == "t") for letter in w.layout.ljust(2)))


def in_order(workloads: Iterable[Workload]) -> list[Workload]:
    """Kind after kind and layout after layout, small to large (the product of the axes, which the FLOP follow, in classes of a factor of
    two), and inside a class each next to its nearest: a path through the neighbours, on which each meets what those before showed."""
    classes: dict[tuple[object, ...], dict[int, list[Workload]]] = {}
    for w in dict.fromkeys(workloads):
        classes.setdefault((_kind(w), w.layout), {}).setdefault(round(sum(_doublings(w))), []).append(w)
    path: list[Workload] = []
    for sizes in classes.values():
        for _, left in sorted(sizes.items()):
            while left:
                last = path[-1] if path else left[0]
                path.append(left.pop(min(range(len(left)), key=lambda i: distance(last, left[i]))))
    return path


class Knowledge:
    """How each config fared on each Workload of the suite."""

    def __init__(self) -> None:
        self._scores: dict[Workload, dict[Key, float]] = {}
        self._right: dict[tuple[object, ...], dict[Workload, tuple[float, ...]]] = {}
        """By kind: the places of Workloads on which something was right."""
        self._estimates: dict[tuple[Key, Workload], float | None] = {}
        """What Families said, for all searches: an estimate takes 0.1 ms, and each config is asked about by every neighbour."""
        self._times: dict[Workload, dict[Key, float]] = {}

    def learn(self, w: Workload, candidate: Candidate, score: float, microseconds: float = 0.0) -> None:
        """`score`: the higher the faster, -inf for a failure. `microseconds`: 0 where there are none."""
        origin = candidate.origin
        if origin.kind == "family":
            key = key_of(origin.name, origin.config)
            self._scores.setdefault(w, {})[key] = max(score, 0.0)
            if score > 0:
                self._right.setdefault(_kind(w), {})[w] = _place(w)
                if microseconds > 0:
                    self._times.setdefault(w, {})[key] = microseconds

    def near(self, w: Workload, count: int = NEAR) -> list[Workload]:
        """The nearest other Workloads on which something was right, nearest first."""
        here = _place(w)
        others = self._right.get(_kind(w), {})
        found = heapq.nsmallest(count + 1, ((math.dist(here, place), i, other) for i, (other, place) in enumerate(others.items())))
        return [other for _, _, other in found if other != w][:count]

    def winners(self, w: Workload) -> list[Key]:
        """The best configs of the nearest neighbours, the nearest one's first."""
        return list(dict.fromkeys(max(s, key=s.__getitem__) for s in (self._scores[other] for other in self.near(w, WINNERS))))

    def priors(self, space: SearchSpace) -> dict[Point, float]:
        """Of every config of `space` that the nearest neighbours of its Workload tried."""
        shares: dict[Point, list[float]] = {}
        for other in self.near(space.workload):
            scores = {p: (key, score) for key, score in self._scores[other].items() if (p := point_of(space, key))}
            best = max(self._scores[other].values())
            # both shares of the estimates are among the same configs: those that the neighbour tried
            here, there = ({p: self.estimate(space, key, w) for p, (key, _) in scores.items()} for w in (space.workload, other))
            for p, (_, score) in scores.items():
                shares.setdefault(p, []).append(score / best * worth(p, here) / worth(p, there))
        return {p: sum(found) / len(found) for p, found in shares.items()}

    def bias(self, space: SearchSpace, family: str) -> float:
        """Times of a Family's fastest configs over its estimates: on the Workload itself if it was measured there, else on the neighbours;
        1 where nothing is known."""
        for group in ([space.workload], self.near(space.workload)):
            off = []
            for other in group:
                mine = [(us, key) for key, us in self._times.get(other, {}).items() if key[0] == family]
                fastest = heapq.nsmallest(WINNERS, mine, key=itemgetter(0))
                off += [us / estimate for us, key in fastest if (estimate := self.estimate(space, key, other))]
            if off:
                return geometric_mean(off)
        return 1.0

    def estimate(self, space: SearchSpace, key: Key, w: Workload) -> float | None:
        if (key, w) not in self._estimates:
            family, config = key
            self._estimates[key, w] = space.families[family].estimate(dict(config), w, space.device)
        return self._estimates[key, w]


def point_of(space: SearchSpace, key: Key) -> Point | None:
    """The config in another Workload's space; None where it is not legal."""
    family, config = key
    point = space.point(family, dict(config))
    return point if point is not None and space.legal(point) else None


def worth(p: Point, estimates: Mapping[Point, float | None]) -> float:
    """What the estimates say of it, as a share of the best of them; 1 without."""
    mine = estimates[p]
    return min(us for us in estimates.values() if us) / mine if mine else 1.0


class Neighbours(Evolve):
    """Made by the loop over a suite, which shares one Knowledge among the searches of all its Workloads."""

    name = "neighbours"

    def __init__(
        self,
        workload: Workload,
        families: Sequence[Family],
        device: DeviceFacts,
        knowledge: Knowledge,
        seed: int = 0,
        history: Iterable[Trial] = (),
    ):
        self.knowledge = knowledge
        super().__init__(workload, families, device, seed, history)

    def _set_up(self, seed: int) -> None:
        super()._set_up(seed)
        self._guesses = tuple(self._seeds)

    def propose(self, n: int) -> list[Candidate]:
        self._seeds = self._ranked()  # neighbours may have learnt since the last batch
        return super().propose(n)

    def _ranked(self) -> list[Point]:
        """Winners of the nearest neighbours, then what neighbours know and the seeds, by prior; none that is hopeless."""
        guesses = {p: self.knowledge.estimate(self.space, key_of(p.family, self.space.config(p)), self.workload) for p in self._guesses}
        bias = {family: self.knowledge.bias(self.space, family) for family in self.space.families}
        corrected = {p: us and us * bias[p.family] for p, us in guesses.items()}
        priors = {p: UNTRIED * worth(p, corrected) for p in guesses} | self.knowledge.priors(self.space)
        winners = [p for key in self.knowledge.winners(self.workload) if (p := point_of(self.space, key))]
        ranked = (*winners, *sorted(priors, key=priors.__getitem__, reverse=True))
        return [p for p in dict.fromkeys(ranked) if p not in self.visited and priors[p] >= HOPELESS]

    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        """Children of the best from the start: where neighbours have spoken, the uniform draws that found a population are wasted."""
        pool = sorted(self._era, key=self._era.__getitem__, reverse=True)[:PARENTS]
        for _ in range(ATTEMPTS if pool else 0):
            child, parents = self._child(pool)
            if self._fresh(child):
                return child, tuple(self.candidates[p] for p in parents)
        return self._any(), ()
