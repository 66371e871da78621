"""What the kernel model reads and writes: a Workload, a device and scored configs as words and numbers, and a design as a row of choices.

A design is `family=F`, then F's choices in the order of its Space: `F.block_p=128`, `F.block_q=64` ... Each is one word, so a design of the
largest scheme has 17. A prompt is a row of positions; each is a bag of words with one number. A fact is one position, and so is a scored
config, whose bag holds all its choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kernelwright.families.family import Config, DeviceFacts, Family, Space, Value
from kernelwright.records import Workload

PAD = "<none>"
DESIGN = "<design>"
"""Begins a design."""
FACTS: Mapping[str, tuple[str, ...]] = {
    "problem": ("gemm", "linear", "chain", "kernelbench"),
    "dtype": ("fp16", "bf16", "fp32"),
    "accumulate": ("fp32", "fp16"),
    "layout": ("nn", "nt", "tn", "tt"),
    "device": ("cpu", "cuda", "fake"),
}
OTHER = "other"
"""Value of a fact that has no word."""
NUMBERS = (
    *(f"{axis}{what}" for axis in ("M", "N", "K", "rows", "cols") for what in ("", " twos")),
    "steps", "flop", "bytes", "sm", "sms", "smem", "l2", "threads", "measured", "best",
)  # fmt: skip
"""`twos`: how often 2 divides the axis. `steps`: of the epilogue. `best`: the highest ratio so far. The rest are logarithms of base 2."""
GUESS, SHOWN = "guess", "shown"
"""A config with the time that its Family estimates, and a measured one: the number is log2 of its speed over the best of its kind."""


class Choice(NamedTuple):
    """A config of a Family with log2 of its speed over the best beside it."""

    family: str
    config: Config
    number: float


class Prompt(NamedTuple):
    """A row of positions."""

    bags: list[list[int]]
    numbers: list[float]


class Vocabulary:
    """Words and their numbers. `spaces`: every Family that the model can write, with all values it may meet."""

    def __init__(self, spaces: Mapping[str, Mapping[str, Sequence[Value]]]):
        self.spaces: dict[str, Space] = {family: {key: tuple(values) for key, values in space.items()} for family, space in spaces.items()}
        words = [PAD, DESIGN, *NUMBERS, GUESS, SHOWN]
        words += [f"{fact}={value}" for fact, values in FACTS.items() for value in (*values, OTHER)]
        words += [f"family={family}" for family in self.spaces]
        self.slots = ["", "family"]
        """What a position asks for."""
        for family, space in self.spaces.items():
            for key, values in space.items():
                self.slots.append(f"{family}.{key}")
                words += [f"{family}.{key}={value}" for value in values]
        self.words = words
        self.ids = {word: i for i, word in enumerate(words)}
        self._slots = {slot: i for i, slot in enumerate(self.slots)}
        self._values: dict[int, tuple[str, Value]] = {
            self.ids[f"{family}.{key}={value}"]: (key, value)
            for family, space in self.spaces.items()
            for key, values in space.items()
            for value in values
        }
        self._families = {self.ids[f"family={family}"]: family for family in self.spaces}
        self.longest = 1 + max((len(space) for space in self.spaces.values()), default=0)
        """Words of the longest design."""

    # ------------------------------------------------------------------------------------------------------------ designs

    def design(self, family: str, config: Config) -> list[int] | None:
        """Its words; None where one is unknown (a Family or a value that came later)."""
        space = self.spaces.get(family)
        if space is None or set(space) != set(config):
            return None
        found = [self.ids.get(f"family={family}"), *(self.ids.get(f"{family}.{key}={config[key]}") for key in space)]
        return [i for i in found if i is not None] if None not in found else None

    def config(self, design: Sequence[int]) -> tuple[str, Config]:
        """The inverse, also of the first words of a design."""
        return self._families[design[0]], dict(self._values[i] for i in design[1:])

    def asked(self, design: Sequence[int]) -> int:
        """What comes after these words of a design: the slot's number, 0 at the end."""
        if not design:
            return self._slots["family"]
        family = self._families[design[0]]
        keys = list(self.spaces[family])
        return self._slots[f"{family}.{keys[len(design) - 1]}"] if len(design) <= len(keys) else 0

    def values(self, design: Sequence[int]) -> list[int]:
        """The words that may come after these, legal or not."""
        if not design:
            return list(self._families)
        family = self._families[design[0]]
        keys = list(self.spaces[family])
        if len(design) > len(keys):
            return []
        key = keys[len(design) - 1]
        return [self.ids[f"{family}.{key}={value}"] for value in self.spaces[family][key]]

    # ------------------------------------------------------------------------------------------------------------ prompts

    def prompt(
        self,
        w: Workload,
        device: DeviceFacts,
        guesses: Iterable[Choice] = (),
        shown: Iterable[Choice] = (),
        measured: int = 0,
        best: float = 0.0,
    ) -> Prompt:
        """`measured`: how many configs were, `best`: the highest ratio among them."""
        bags: list[list[int]] = []
        numbers: list[float] = []

        def add(number: float, *words: int) -> None:
            bags.append(list(words))
            numbers.append(number)

        for fact, value in _facts(w, device).items():
            add(0.0, self.ids.get(f"{fact}={value}", self.ids[f"{fact}={OTHER}"]))
        for name, number in (_numbers(w, device) | {"measured": _log2(1 + measured), "best": _log2(best) if best > 0 else 0.0}).items():
            if name in self.ids:
                add(number, self.ids[name])
        for kind, choices in ((GUESS, guesses), (SHOWN, shown)):
            for family, config, number in choices:
                design = self.design(family, config)
                if design is not None:
                    add(number, self.ids[kind], *design)
        return Prompt(bags, numbers)


def _facts(w: Workload, device: DeviceFacts) -> dict[str, str]:
    facts = {"problem": w.problem.split(":")[0], "dtype": w.dtype, "accumulate": w.accumulate}
    return facts | ({"layout": w.layout} if w.layout else {}) | {"device": device.target.split(":")[0]}


def _numbers(w: Workload, device: DeviceFacts) -> dict[str, float]:
    found: dict[str, float] = {}
    for axis, size in w.axes.items():
        found |= {axis: _log2(size), f"{axis} twos": float((size & -size).bit_length() - 1) if size else 0.0}
    if set(w.axes) == {"M", "N", "K"}:
        m, n, k = (w.axes[axis] for axis in "MNK")
        found |= {
            "flop": _log2(2 * m * n * k),
            "bytes": _log2(2 * (m * k + k * n + m * n)),
            "steps": float(len(w.epilogue.split("+")) if w.epilogue else 0),
        }
    found |= {"sm": float(device.sm) / 16, "sms": _log2(device.sms), "smem": _log2(device.smem_per_block), "l2": _log2(device.l2_bytes)}
    return found | {"threads": _log2(device.threads)}


def _log2(x: float) -> float:
    return math.log2(x) if x > 0 else 0.0


def spaces_of(families: Iterable[Family], w: Workload, device: DeviceFacts) -> dict[str, Space]:
    return {f.name: f.space(w, device) for f in families}
