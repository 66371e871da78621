"""`policy`: our own kernel model writes configs, with no network. It sees what the Families' models guess and contrasting measured configs.

From one prompt DRAWS designs are drawn, all legal. Those that were not tried are proposed in the order of their likelihoods times the
Families' estimated speeds (a product of experts: G. Hinton 1999). What was measured meanwhile is in the next prompt.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kernelwright.families.family import DeviceFacts, Family
from kernelwright.learn.policy_vocabulary import Choice, Prompt, Vocabulary
from kernelwright.propose import exemplars
from kernelwright.propose.configs import ConfigProposer, Point
from kernelwright.propose.proposer import MissingExtra
from kernelwright.records import Candidate, Workload
from kernelwright.settings import settings

if TYPE_CHECKING:
    from kernelwright.learn.policy_model import Policy

SHIPPED = Path(__file__).parents[1] / "learn" / "weights" / "policy.safetensors"
DRAWS = 32
"""Designs a prompt: 90 ms on a core of a 2-core Xeon for 2 M parameters, 11 ms for each of a batch of 8 proposals."""
HOTTER = 1.5
"""Temperature of a second draw where the first brought nothing new."""
GUESSES = 2
"""Of each Family those that its model puts first."""
CONFIDENCE = 20.0
"""In the Families' estimates beside the model's likelihoods: 5 % of time are worth a factor of e. Chosen of 0, 2, 5, 10, 20, 40, 80 on the
screens that tuning `hgemm-1000` left, by the first proposals on training shapes that were only watched: 97.6 % of the best, 96.6 % by the
likelihoods alone, 97.2 % by the estimates alone. Those screens are of what a search chose, which favours whatever chose it: to be chosen
again on complete tables (benchmarks/learning_table.py)."""


class PolicyProposer(ConfigProposer):
    name = "policy"
    contrast: ClassVar[str] = "buckets"
    """Which measured configs a prompt shows: one of `exemplars.WAYS`."""
    confidence: ClassVar[float] = CONFIDENCE

    def _set_up(self, seed: int) -> None:
        super()._set_up(seed)
        import torch

        from kernelwright.learn.policy_legal import Legal

        self._seeds = []  # they are in the prompt
        self._policy = self.model()
        known = [f for f in self.families if f.name in self._policy.vocabulary.spaces]
        self._guesses = guesses(known, self.workload, self.device)
        self._legal = Legal(self._policy.vocabulary, known, self.workload, self.device)
        self._generator = torch.Generator().manual_seed(seed)
        self._ratios: dict[Point, float] = {}
        self._queue: list[Point] = []
        self._excluded: set[Point] = set()
        self._barren = False
        self._parents: tuple[str, ...] = ()
        self._asked = 0

    @classmethod
    def model(cls) -> Policy:
        """Raises PolicyError, MissingExtra."""
        return weights(settings().policy or SHIPPED)

    @classmethod
    def writes(cls, families: Sequence[Family]) -> bool:
        """Whether there is a kernel model, and it knows one of the Families."""
        try:
            return any(f.name in cls.model().vocabulary.spaces for f in families)
        except (MissingExtra, ValueError):  # PolicyError is a ValueError
            return False

    def propose(self, n: int) -> list[Candidate]:
        self._queue = []  # what was learnt since the last batch belongs in the prompt
        self._barren = not self._policy.vocabulary.spaces.keys() & self.space.spaces.keys()
        return super().propose(n)

    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        for temperature in () if self._barren else (1.0, HOTTER):
            self._queue = self._queue or self._draw(temperature)
            while self._queue:
                if self._fresh(point := self._queue.pop(0)):
                    return point, self._parents
        self._barren = True  # for this batch: nothing that the model writes is new
        return self._any(), ()

    def _draw(self, temperature: float) -> list[Point]:
        shown = contrasting([(p, r) for p, r in self._ratios.items() if r > 0], self._ratio, self.rng, self.contrast, self._asked)
        self._asked += 1
        self._parents = tuple(self.candidates[p] for p, _ in shown)
        prompt = prompt_of(
            self._policy.vocabulary,
            self.workload,
            self.device,
            self._guesses,
            [(*self._whole(p), r) for p, r in shown],
            self._ratios.values(),
        )
        self._exclude()
        with one_thread():
            likely = self._likely(prompt, temperature)
        points = {p: logp for words, logp in likely.items() if (p := self._point(words)) is not None}
        return sorted(points, key=lambda p: self.confidence * math.log(self.space.estimate(p) or 1.0) - points[p])

    def _exclude(self) -> None:
        """What was tried is not drawn again: a trained model draws little else after a while, seven prompts for a batch instead of one."""
        for point in self.visited - self._excluded:
            if not self.space.listed and (design := self._policy.vocabulary.design(*self._whole(point))):
                self._legal.exclude(tuple(design))
        self._excluded |= self.visited

    def _likely(self, prompt: Prompt, temperature: float) -> dict[tuple[int, ...], float]:
        """Designs with the logarithms of their likelihoods: DRAWS drawn ones; of a list that is no longer than that all."""
        from kernelwright.learn.policy_legal import Listed
        from kernelwright.learn.policy_sample import likelihoods, sample

        vocabulary, constraint = self._policy.vocabulary, self._legal
        if self.space.listed:
            left = [p for points in self.space.listed.values() for p in points if p not in self.visited]
            designs = [tuple(d) for p in left if (d := vocabulary.design(*self._whole(p)))]
            constraint = Listed(designs)
            if len(designs) <= DRAWS:
                return likelihoods(self._policy, prompt, constraint, designs)
        (drawn,) = sample(self._policy, [prompt], [constraint], DRAWS, self._generator, temperature)
        return {s.words: s.logp for s in drawn}

    def _whole(self, point: Point) -> tuple[str, dict]:
        """The config with what a measured list fixes by a rule."""
        config = self.space.config(point)
        complete = getattr(self.space.families[point.family], "completed", None)
        return point.family, complete(config) if complete else config

    def _point(self, words: Sequence[int]) -> Point | None:
        family, config = self._policy.vocabulary.config(words)
        return self.space.point(family, {key: config[key] for key in self.space.spaces[family]})

    def _ratio(self, item: tuple[Point, float]) -> float:
        return item[1]

    def _learned_point(self, point: Point, new: float) -> None:
        self._ratios[point] = max(0.0, new)

    def summary(self) -> dict[str, Any]:
        return {"policy": {"prompts": self._asked, "parameters": self._policy.parameters_in_all}}


@cache
def weights(path: Path) -> Policy:
    """Read once. Raises PolicyError, and MissingExtra where safetensors is not installed."""
    try:
        from kernelwright.learn.policy_model import load

        return load(path)[0]
    except ImportError:
        raise MissingExtra("the proposer policy needs safetensors; install it with `pip install safetensors`") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """The model's matrices are too small for several: a second thread makes a batch no faster on an idle machine, and on a busy one, where
    threads wait for each other, 50 times slower (measured on 2 cores)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --------------------------------------------------------------------------------------------- prompts, also those of training


def guesses(families: Iterable[Family], w: Workload, device: DeviceFacts) -> list[Choice]:
    """What Families with a model would start with, each with log2 of its estimated speed over the best one's."""
    return as_choices(estimated(tuple(getattr(family, "whole", family) for family in families), w, device))


def as_choices(estimated: Iterable[tuple[str, dict, float]]) -> list[Choice]:
    """Of (Family, config, microseconds)."""
    found = list(estimated)
    fastest = min((us for *_, us in found), default=1.0)
    return [Choice(family, config, math.log2(fastest / us)) for family, config, us in found]


@lru_cache(maxsize=1024)
def estimated(families: tuple[Family, ...], w: Workload, device: DeviceFacts) -> list[tuple[str, dict, float]]:
    """A list of measured configs may lack what its Family's model suggests (`whole` above): it is told all the same."""
    pairs = [(f, config) for f in families for config in f.seeds(w, device)[:GUESSES]]
    return [(f.name, config, us) for f, config in pairs if (us := f.estimate(config, w, device))]


def contrasting(items: Sequence[Any], ratio: Any, rng: random.Random, contrast: str, turn: int = 0) -> list[Any]:
    """Of right items, in the order they were measured, those that a prompt shows, slowest first. `turn`: counts prompts."""
    if contrast == "none" or not items:
        return []
    if contrast == "random":
        return sorted(rng.sample(list(items), min(exemplars.COUNT, len(items))), key=ratio)
    if contrast == "islands":
        homes = [island for island in exemplars.islands_by(items, ratio, range(len(items))) if island]
        items = homes[turn % len(homes)]
    return exemplars.draw_by(items, ratio, rng)


def prompt_of(
    vocabulary: Vocabulary,
    w: Workload,
    device: DeviceFacts,
    guessed: Sequence[Choice],
    shown: Iterable[tuple[str, Mapping[str, Any], float]],
    ratios: Iterable[float],
) -> Prompt:
    """`shown`: Family, config and ratio; `ratios`: of all that was measured, 0 for what failed."""
    known = list(ratios)
    best = max(known, default=0.0)
    contrast = [Choice(family, dict(config), math.log2(ratio / best)) for family, config, ratio in shown]
    return vocabulary.prompt(w, device, guessed, contrast, len(known), best)
