"""Which words may come next in a design, so that what is written is legal: by the conditions of the Family's own space, or by a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from kernelwright.families.family import Config, DeviceFacts, Family, Value
from kernelwright.learn.policy_vocabulary import Vocabulary
from kernelwright.records import Workload


class Constraint(Protocol):
    """Made for one Workload and device."""

    def allowed(self, design: tuple[int, ...]) -> Sequence[int]:
        """Words that may follow the first words of a design; none where it is complete, or a dead end."""
        ...


class _Undecided(Exception):
    """A condition asked for a choice that is still open."""


class Partial(dict[str, Value]):
    """The first choices of a config, in the shape of a whole one. A condition that reads an open choice ends in _Undecided; one that comes
    to a verdict before holds whatever the open choices become."""

    def __init__(self, config: Config, keys: Iterable[str]):
        super().__init__(dict.fromkeys(keys, 0) | config)
        self._config = config

    def __getitem__(self, key: str) -> Value:
        if key in self._config:
            return self._config[key]
        raise _Undecided

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if super().__contains__(key) else default

    def items(self) -> Any:
        return self._config.items()

    def values(self) -> Any:
        raise _Undecided


class Legal:
    """Designs that `Family.illegal` lets pass. A choice is refused as soon as the choices so far decide a condition; the last one is
    judged by all of them, so a complete design is legal. The first choices may still be a dead end; it is remembered, and the sampler draws
    anew."""

    def __init__(self, vocabulary: Vocabulary, families: Iterable[Family], w: Workload, device: DeviceFacts):
        self._vocabulary, self._w, self._device = vocabulary, w, device
        self._families = {f.name: f for f in families if f.name in vocabulary.spaces}
        self._spaces = {name: f.space(w, device) for name, f in self._families.items()}
        self._known: dict[tuple[int, ...], list[int]] = {}

    def allowed(self, design: tuple[int, ...]) -> Sequence[int]:
        if design not in self._known:
            self._known[design] = [word for word in self._vocabulary.values(design) if self._possible((*design, word))]
            if not self._known[design]:
                self._close(design)
        return tuple(self._known[design])

    def exclude(self, design: tuple[int, ...]) -> None:
        """A complete design that is not to be written again."""
        last = design[-1]
        if last in self.allowed(design[:-1]):
            self._known[design[:-1]].remove(last)
            self._close(design[:-1])

    def _close(self, design: tuple[int, ...]) -> None:
        """A dead end: nobody comes this way again."""
        while design and not self._known[design] and self._vocabulary.asked(design):
            design, last = design[:-1], design[-1]
            if last in self._known.get(design, ()):
                self._known[design].remove(last)

    def _possible(self, design: tuple[int, ...]) -> bool:
        family, config = self._vocabulary.config(design)
        if family not in self._families:
            return False
        space = self._spaces[family]
        if any(key not in space or value not in space[key] for key, value in config.items()):
            return False  # the Family offers this value to other Workloads only
        try:
            whole = config if len(config) == len(space) else Partial(config, space)
            return self._families[family].illegal(whole, self._w, self._device) is None
        except _Undecided:
            return True


class Listed:
    """Designs of a list, as those of a table of measurements."""

    def __init__(self, designs: Iterable[Sequence[int]]):
        self._next: dict[tuple[int, ...], dict[int, None]] = {}
        for design in designs:
            for i, word in enumerate(design):
                self._next.setdefault(tuple(design[:i]), {})[word] = None

    def allowed(self, design: tuple[int, ...]) -> Sequence[int]:
        return list(self._next.get(design, ()))


def random_design(constraint: Constraint, choose: Any) -> tuple[int, ...] | None:
    """Each word uniform among those allowed (`choose`: as random.choice); None at a dead end."""
    design: tuple[int, ...] = ()
    while words := constraint.allowed(design):
        design = (*design, choose(words))
    return design or None


def random_designs(constraint: Constraint, vocabulary: Vocabulary, choose: Any, attempts: int) -> Iterator[tuple[int, ...]]:
    """The complete ones of so many attempts."""
    for _ in range(attempts):
        design = random_design(constraint, choose)
        if design and not vocabulary.asked(design):
            yield design
