"""What the kernel model learns from: measured configs of training shapes, and legal designs of random shapes.

Shapes are split before anything is learnt: every Workload with the axes of a held-out shape is kept out, in all layouts and types.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwright.families import families_for
from kernelwright.families.family import DeviceFacts
from kernelwright.learn.policy_legal import Legal, random_designs
from kernelwright.learn.policy_vocabulary import Choice, Prompt, Vocabulary
from kernelwright.learn.table import Row, Table, TableError, read, tables_of, write
from kernelwright.problems.suites import HGEMM, SIZE_CLASSES, size_class, suite
from kernelwright.propose.policy import as_choices, contrasting, estimated, prompt_of
from kernelwright.records import Workload

DENSE, HELD_OUT, SPARSE = 24, 8, 40
"""Shapes: measured densely for training and held out; held out and measured sparsely. The numbers of CUDA-L1's kind of test, ours."""
OFF_GRID = 12
"""Of the sparse ones: sizes that the training grid does not have."""
RANDOM_WORKLOADS, DESIGNS_EACH = 1500, 8
"""Legal designs of the space: what is legal where must be known beyond the grid of measured shapes."""
FEW = 100
"""Workloads that are not worth the start of a process a core."""
LARGEST = 16384
GOOD = 0.97
"""Share of the best speed from which a config is one to imitate: what a screen cannot tell from the best."""
SOFTNESS = 0.04
"""Pretraining draws measured configs by exp(log share / SOFTNESS): one that is 4 % slower 2.7 times as seldom."""
BLUR = 0.06
"""Most of an axis that is taken off: measured sizes are mostly powers of two, and that must not be what a good config is known by."""
UNSEEN = 0.34
"""Share of prompts that show nothing measured, as the first of every search."""


class Split(NamedTuple):
    train: tuple[Workload, ...]
    held_out: tuple[Workload, ...]
    sparse: tuple[Workload, ...]


def split() -> Split:
    """The same shapes every time, of hgemm-1000 as many of each size class (what is measured densely is none of the huge ones, of which a
    screen takes up to a second); those off its grid last. Layouts nn and nt in turn."""
    rng = random.Random(0)
    classes: dict[str, list[Workload]] = {name: [] for name in SIZE_CLASSES}
    for w in suite(HGEMM):
        classes[size_class(2 * math.prod(w.axes.values()))].append(w)
    for members in classes.values():
        rng.shuffle(members)

    def take(count: int, names: Sequence[str]) -> tuple[Workload, ...]:
        drawn = [classes[names[i % len(names)]].pop() for i in range(count)]
        return tuple(w.replace(layout=("nn", "nt")[i // len(names) % 2]) for i, w in enumerate(drawn))

    dense, every = ("small", "mid", "large"), tuple(SIZE_CLASSES)
    shapes = [tuple(rng.choice(range(1, 512)) * 8 for _ in range(3)) for _ in range(OFF_GRID)]
    off = (
        Workload(problem="gemm", axes=dict(zip("MNK", s, strict=True)), dtype="fp16", layout=("nn", "nt")[i % 2])
        for i, s in enumerate(shapes)
    )
    return Split(take(DENSE, dense), take(HELD_OUT, dense), (*take(SPARSE - OFF_GRID, every), *off))


def is_held_out(w: Workload) -> bool:
    return tuple(w.axes.values()) in _held_shapes()


_shapes: set[tuple[int, ...]] = set()


def _held_shapes() -> set[tuple[int, ...]]:
    if not _shapes:
        _shapes.update(tuple(w.axes.values()) for part in split()[1:] for w in part)
    return _shapes


# ---------------------------------------------------------------------------------------------------------------- corpus


@dataclass(frozen=True)
class Corpus:
    """A folder's measured tables of training shapes and its legal designs of random Workloads."""

    device: DeviceFacts
    tables: tuple[Table, ...]
    designs: tuple[Table, ...]
    """Their ratios say nothing."""
    guessed: dict[str, list[Choice]]
    """By Workload: what Families' models would start with."""
    spaces: dict
    """Of every Family that the designs are of."""


MEASURED, DESIGNS, GUESSED = "measured.jsonl.xz", "designs.jsonl.xz", "guessed.jsonl.xz"
HELD = "held-out.jsonl.xz"
"""What was measured on held-out shapes: for the evaluation alone, nothing else opens it."""


def make_corpus(
    folder: Path,
    device: DeviceFacts,
    rows: Iterable[Row],
    seed: int = 0,
    workloads: int = RANDOM_WORKLOADS,
    told: Callable[[int, int], None] = lambda done, total: None,
    screens: Iterable[Row] = (),
) -> tuple[int, int]:
    """Writes the files; how many measured configs and designs. Held-out shapes have a file of their own. `screens` are learnt as well,
    those of held-out shapes left out: a table of what a search chose flatters every search. Left out are Families that are the fastest
    nowhere. Raises TableError where nothing measured is left."""
    every = tables_of(rows, device)
    known = {t.workload for t in every}
    every += [t for t in tables_of(screens, device) if t.workload not in known and not is_held_out(t.workload)]
    tables = [t for t in every if not is_held_out(t.workload)]
    fastest = {max(t.rows, key=lambda r: r.ratio).family for t in tables if t.best}
    kept = [r for t in tables for r in t.rows if r.family in fastest]
    if not kept:
        raise TableError(
            "nothing was measured on training shapes; tune a suite first (kernelwright tune hgemm-1000), or name files of measurements"
        )
    write(folder / MEASURED, device, kept)
    write(folder / HELD, device, [r for t in every if is_held_out(t.workload) for r in t.rows])
    rng = random.Random(seed)
    random_ones = {random_workload(rng) for _ in range(workloads)}
    asked = [*((t.workload, 0) for t in tables), *((w, DESIGNS_EACH) for w in sorted(random_ones, key=lambda w: w.name))]
    written: list[Row] = []
    guessed: list[Row] = []
    for i, (found, drawn) in enumerate(_described(asked, device, frozenset(fastest), seed), 1):
        guessed += found
        written += drawn
        told(i, len(asked))
    write(folder / DESIGNS, device, written)
    write(folder / GUESSED, device, guessed)
    return len(kept), len(written)


def _described(
    asked: Sequence[tuple[Workload, int]], device: DeviceFacts, names: frozenset[str], seed: int
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Of each Workload what the Families' models guess, and so many legal designs: 30 ms each, so all cores share them."""
    work = partial(_describe, device=device, names=names, seed=seed)
    jobs = len(os.sched_getaffinity(0))
    if jobs == 1 or len(asked) < FEW:
        yield from map(work, asked)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(work, asked, chunksize=16)


def _describe(asked: tuple[Workload, int], device: DeviceFacts, names: frozenset[str], seed: int) -> tuple[list[Row], list[Row]]:
    w, designs = asked
    families = [f for f in families_for(w, device)[0] if f.name in names]
    found = estimated(tuple(families), w, device)
    guessed = [Row(workload=w.name, family=family, config=config, microseconds=us) for family, config, us in found]
    if not designs:
        return guessed, []
    vocabulary = Vocabulary({f.name: f.space(w, device) for f in families})
    choose = random.Random(f"{seed} {w.name}").choice
    drawn = random_designs(Legal(vocabulary, families, w, device), vocabulary, choose, 4 * designs)
    kept = {d: None for d, _ in zip(drawn, range(designs), strict=False)}
    return guessed, [Row(workload=w.name, family=family, config=config) for family, config in map(vocabulary.config, kept)]


def random_workload(rng: random.Random) -> Workload:
    """A product of training shapes' kind: axes log-uniform, half of them powers of two, never a held-out shape."""
    while True:
        sizes = (2 ** rng.uniform(3, math.log2(LARGEST)) for _ in range(3))
        m, n, k = (2 ** round(math.log2(s)) if rng.random() < 0.5 else max(8, round(s / 8) * 8) for s in sizes)
        w = Workload(
            problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=rng.choice(("fp16", "bf16")), layout=rng.choice(("nn", "nt", "tn", "tt"))
        )
        if not is_held_out(w):
            return w


def load_corpus(folder: Path) -> Corpus:
    """Raises TableError."""
    if not (folder / GUESSED).exists():  # written last
        raise TableError(f"there is no corpus in {folder}; make one with: kernelwright train corpus --out {folder}")
    device, rows = read(folder / MEASURED)
    _, designs = read(folder / DESIGNS)
    tables, drawn = tuple(tables_of(rows, device)), tuple(tables_of(designs, device))
    guessed: dict[str, list[tuple[str, dict, float]]] = {}
    for r in read(folder / GUESSED)[1]:
        guessed.setdefault(r.workload, []).append((r.family, dict(r.config), r.microseconds))
    used = {r.family for t in (*tables, *drawn) for r in t.rows}
    spaces: dict = {}
    for t in (*tables[:1], *drawn[:1]):
        spaces |= {f.name: f.space(t.workload, device) for f in families_for(t.workload, device)[0] if f.name in used}
    return Corpus(device, tables, drawn, {name: as_choices(found) for name, found in guessed.items()}, spaces)


# -------------------------------------------------------------------------------------------------------------- examples


@dataclass
class Lesson:
    """One Workload with what can be learnt of it."""

    table: Table
    guessed: list[Choice]
    rows: list[Row]
    """Those whose designs the vocabulary has; right ones first, by speed."""
    designs: list[tuple[int, ...]]
    ratios: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = np.array([r.ratio for r in self.rows])
        self.shares = self.ratios / max(self.table.best, 1e-9)


COMPLETE = 150
"""Configs of a table that is more than what a search happened to screen."""


def pools(found: Sequence[Lesson]) -> list[list[Lesson]]:
    """Complete tables and others: as many prompts are of the one kind as of the other, however few there are."""
    complete = [len(lesson.rows) >= COMPLETE for lesson in found]
    split = ([lesson for lesson, yes in zip(found, complete, strict=True) if yes is kind] for kind in (True, False))
    return [pool for pool in split if pool]


def lessons(tables: Sequence[Table], guessed: Mapping[str, list[Choice]], vocabulary: Vocabulary) -> list[Lesson]:
    found = []
    for t in tables:
        pairs = [(r, tuple(d)) for r in t.rows if (d := vocabulary.design(r.family, dict(r.config))) is not None]
        pairs.sort(key=lambda pair: -pair[0].ratio)
        if pairs:
            found.append(Lesson(t, guessed.get(t.workload.name, []), [r for r, _ in pairs], [d for _, d in pairs]))
    return found


def history(lesson: Lesson, rng: random.Random) -> list[Row]:
    """Measured rows as a search might have them: none in UNSEEN of all cases, else a few of any speed."""
    if rng.random() < UNSEEN:
        return []
    return rng.sample(lesson.rows, min(len(lesson.rows), rng.choice((1, 2, 3, 4, 6, 8, 12, 16))))


def prompt(lesson: Lesson, vocabulary: Vocabulary, seen: Sequence[Row], rng: random.Random, contrast: str, blur: bool = False) -> Prompt:
    """`blur`: half of the prompts name sizes a little smaller than those that were measured (BLUR)."""
    w = blurred(lesson.table.workload, rng) if blur and rng.random() < 0.5 else lesson.table.workload
    right = [r for r in seen if r.ratio > 0]
    shown = contrasting(right, lambda r: r.ratio, rng, contrast, rng.randrange(4))
    choices = [(r.family, r.config, r.ratio) for r in shown]
    return prompt_of(vocabulary, w, lesson.table.device, lesson.guessed, choices, [r.ratio for r in seen])


def blurred(w: Workload, rng: random.Random) -> Workload:
    """About as many tiles and steps, other divisors."""
    return w.replace(axes={axis: max(8, size - 8 * rng.randint(0, int(size * BLUR / 8))) for axis, size in w.axes.items()})


def guessed_designs(lesson: Lesson, vocabulary: Vocabulary, rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Of a Workload where nothing was measured: what the Families' models would start with, the faster by their estimates the oftener."""
    known = [(tuple(d), c.number) for c in lesson.guessed if (d := vocabulary.design(c.family, c.config))]
    if not known:
        return rng.choices(lesson.designs, k=count)
    return rng.choices([d for d, _ in known], [math.exp(number * math.log(2) / SOFTNESS) for _, number in known], k=count)


def to_imitate(lesson: Lesson, rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Pretraining: any measured config, the better the oftener; of a table without ratios any design."""
    weights = np.exp(np.log(np.maximum(lesson.shares, 1e-3)) / SOFTNESS).tolist() if lesson.table.best else None
    return rng.choices(lesson.designs, weights, k=count)


def best_of(lesson: Lesson, rng: random.Random, count: int, seen: Sequence[Row] = ()) -> list[tuple[int, ...]]:
    """Fine-tuning: the verified best that a search has not seen yet, and what is within GOOD of it."""
    known = {id(r) for r in seen}
    left = [i for i, r in enumerate(lesson.rows) if id(r) not in known] or list(range(len(lesson.rows)))
    shares = lesson.ratios[left] / max(lesson.ratios[left[0]], 1e-9)
    good = [(lesson.designs[i], 2.0 * share - 1.0) for i, share in zip(left, shares, strict=True) if share >= GOOD]
    if not good:  # nothing left is right
        return [lesson.designs[0]] * count
    return rng.choices([d for d, _ in good], [weight for _, weight in good], k=count)
