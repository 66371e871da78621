"""Search over Family configs: the joint space of several Families, and what the proposers that walk it have in common."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, Protocol, runtime_checkable

from kernelwright.families.family import Config, DeviceFacts, Family, Space, Value
from kernelwright.propose.heuristics import tile_configs
from kernelwright.propose.proposer import Proposer
from kernelwright.records import Candidate, Trial, Workload

ENUMERABLE = 20_000
"""Spaces up to so many combinations are listed whole: then the end of the search is known exactly."""

DRAWS = 20_000
"""In larger ones, so many draws without a new legal config count as the end."""


class Point(NamedTuple):
    """One config of one Family: the position of each choice's value in the order of the Space."""

    family: str
    places: tuple[int, ...]


@runtime_checkable
class IsListed(Protocol):
    """A Family whose legal configs are few and known, as those of a table of measurements."""

    def listed(self, w: Workload, device: DeviceFacts) -> list[Config]: ...


class SearchSpace:
    """The configs of several Families as Points."""

    def __init__(self, workload: Workload, families: Sequence[Family], device: DeviceFacts):
        self.workload, self.device = workload, device
        self.families = {f.name: f for f in families}
        self.spaces: dict[str, Space] = {f.name: f.space(workload, device) for f in families}
        self.listed: dict[str, list[Point]] = {
            f.name: [p for c in f.listed(workload, device) if (p := self.point(f.name, c))] for f in families if isinstance(f, IsListed)
        }
        """The legal points of Families that are a list of configs: nothing else is worth drawing."""
        sizes = {name: math.prod(len(v) for v in space.values()) for name, space in self.spaces.items()}
        self.sizes = sizes | {name: len(points) for name, points in self.listed.items()}
        self.combinations = sum(self.sizes.values())

    def config(self, point: Point) -> Config:
        space = self.spaces[point.family]
        return {name: values[i] for (name, values), i in zip(space.items(), point.places, strict=True)}

    def point(self, family: str, config: dict) -> Point | None:
        """None when the config is not one of the space: of an older version of the Family, say."""
        space = self.spaces.get(family)
        if space is None or set(space) != set(config):
            return None
        places = [_place(values, config[name]) for name, values in space.items()]
        return Point(family, tuple(p for p in places if p is not None)) if None not in places else None

    def legal(self, point: Point) -> bool:
        return self.families[point.family].illegal(self.config(point), self.workload, self.device) is None

    def estimate(self, point: Point) -> float | None:
        """Microseconds, of a legal point whose Family has a model."""
        return self.families[point.family].estimate(self.config(point), self.workload, self.device)

    def draw(self, rng: random.Random) -> Point:
        """Uniform over all combinations of all Families, legal or not."""
        (family,) = rng.choices(list(self.sizes), weights=list(self.sizes.values()))
        if family in self.listed:
            return rng.choice(self.listed[family])
        return Point(family, tuple(rng.randrange(len(v)) for v in self.spaces[family].values()))

    def neighbours(self, point: Point) -> list[Point]:
        """One step away in one choice, legal or not."""
        found = []
        for i, values in enumerate(self.spaces[point.family].values()):
            for step in (point.places[i] - 1, point.places[i] + 1):
                if 0 <= step < len(values):
                    found.append(Point(point.family, (*point.places[:i], step, *point.places[i + 1 :])))
        return found

    def points(self) -> Iterator[Point]:
        """Every legal one."""
        for family, space in self.spaces.items():
            if family in self.listed:
                yield from self.listed[family]
                continue
            for places in product(*(range(len(values)) for values in space.values())):
                point = Point(family, places)
                if self.legal(point):
                    yield point


def _place(values: tuple[Value, ...], value: object) -> int | None:
    """Index of a value of the same type (True is not 1 here)."""
    return next((i for i, v in enumerate(values) if v == value and type(v) is type(value)), None)


class ConfigProposer(Proposer):
    """Base of the proposers that choose among configs: seeds first, never a config twice, an exact end in small spaces."""

    def _set_up(self, seed: int) -> None:
        self.space = SearchSpace(self.workload, self.families, self.device)
        self.visited: set[Point] = set()
        self.candidates: dict[Point, str] = {}
        """Ids of the Candidates of points seen."""
        self._seeds = self._seed_points()
        self._rest: list[Point] | None = None

    def _seed_points(self) -> list[Point]:
        """Those of the analytical tile model and the Families' own, Families in turn; by estimated time where Families have an estimate."""
        queues = []
        for family in self.families:
            configs = [*tile_configs(family, self.workload, self.device), *family.seeds(self.workload, self.device)]
            queues.append([p for c in configs if (p := self.space.point(family.name, c)) and self.space.legal(p)])
        longest = max(map(len, queues), default=0)
        in_turn = dict.fromkeys(q[i] for i in range(longest) for q in queues if i < len(q))
        return sorted(in_turn, key=lambda p: self.space.estimate(p) or 0.0)

    def propose(self, n: int) -> list[Candidate]:
        batch: list[Candidate] = []
        while len(batch) < n:
            point, parents = self._next_seed(), ()
            if point is None:
                point, parents = self._choose()
            if point is None:
                break
            self.visited.add(point)
            family, config = self.space.families[point.family], self.space.config(point)
            candidate = family.render(config, self.workload, self.device)
            self.candidates[point] = candidate.id
            if candidate.id not in self.tried:  # two configs may render to the same kernel
                self.tried.add(candidate.id)
                batch.append(candidate.replace(origin=family.origin(config, self.name, parents)))
        return batch

    def _next_seed(self) -> Point | None:
        while self._seeds:
            if (point := self._seeds.pop(0)) not in self.visited:
                return point
        return None

    @abstractmethod
    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        """A legal point not yet visited, and the ids of its parents; (None, ()) at the end."""

    def _fresh(self, point: Point) -> bool:
        return point not in self.visited and self.space.legal(point)

    def _any(self) -> Point | None:
        """A uniform draw from the legal points not yet visited; None when there is none, or none was found."""
        if self.space.combinations > ENUMERABLE:
            return next((p for _ in range(DRAWS) if self._fresh(p := self.space.draw(self.rng))), None)
        if self._rest is None:
            self._rest = list(self.space.points())
            self.rng.shuffle(self._rest)
        while self._rest:
            if (point := self._rest.pop()) not in self.visited:
                return point
        return None

    def _learned(self, trial: Trial, new: float) -> None:
        origin = trial.candidate.origin
        point = self.space.point(origin.name, origin.config) if origin.kind == "family" else None
        if point is not None:
            self.visited.add(point)
            self.candidates[point] = trial.candidate.id
            self._learned_point(point, new)

    def _learned_point(self, point: Point, new: float) -> None:
        """For subclasses: a point has a new score."""
