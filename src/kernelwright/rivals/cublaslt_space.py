"""`cublaslt-all`: the fastest algorithm in cuBLASLt's whole space, not only among the few that its heuristic lists (8 on an H200).

What can be set (tile, stages, cluster, split-K, reduction, swizzle, custom option, inner shape) follows from the library's capability
queries; cublasLtMatmulAlgoCheck refuses what does not go together, without a launch. Tens of thousands of combinations remain, so the
search goes outwards from the heuristic's answers:

seed    all that the heuristic lists under several workspace limits and reduction masks, and for each algorithm id alone
screen  tile x stages x cluster of every id that is in the running, the best id first; a tile that is hopeless with the clusters tried so
        far is left out of the others; the fastest are sampled again
widen   around the best: split-K, swizzle, custom option, cluster and inner shape, one after the other, each from what is best by then
final   the best whose results are right, in interleaved rounds; the median decides

The constants are those of cublasLt.h (CUDA 11.8 or later, the first with clusters).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.records import Outcome
from kernelwright.rivals.cublaslt import REQUESTED, Problem, open_clock
from kernelwright.settings import settings
from kernelwright.targets.cublaslt import COMPUTE_32F, DATA_TYPE, Algo, Result, library
from kernelwright.targets.target import Bound, CandidateFault, DeviceLost

SEED_ENDS, SCREEN_ENDS, WIDEN_ENDS = 0.25, 0.55, 0.8
"""Shares of the search's time, counted from its start, after which a stage begins no new sample."""
KEPT, FINALISTS, PASSES, ROUNDS = 16, 8, 2, 15
"""Algorithms that are widened; that reach the final; how often each axis is widened; rounds of the final."""
HOPELESS = 2.0
"""An id whose best seed takes that many times the fastest seed's time is left out of the screen; so is a tile for further clusters."""
NEAR = 1.5
"""The screen tries the split-K numbers of seeds within this factor of the fastest."""
SPLITS = (*range(2, 17), 20, 24, 32, 48, 64)
LEAST_SLICE = 64
"""Least K of a slice: one K step of the library's Hopper kernels."""
MOST_OPTIONS = 256
"""Custom options tried of one algorithm; GEMV kernels number theirs beyond 100."""
LIMITS = (32 * 2**20, 4 * 2**20, 0)
"""Workspaces with which the heuristic is asked as well, bytes: it then answers with other algorithms."""

_CAP_SPLIT_K, _CAP_REDUCTIONS, _CAP_SWIZZLING, _CAP_TILES, _CAP_CUSTOM_MAX, _CAP_STAGES, _CAP_NUMERICS = 0, 1, 2, 6, 7, 13, 15
_CAP_ALIGNMENT = (16, 17, 18, 19)
_ACCUMULATORS, _ACCUMULATES_16F, _ACCUMULATES_32F, _INPUT_TF32 = 0xFF00, 0x100, 0x200, 0x40000
_REDUCTION_NONE, _REDUCTION_COMPUTE_TYPE = 0, 2
_CLUSTERS = (0, *range(2, 52))
"""cublasLtClusterShape_t: automatic, powers of two up to 16 blocks, then the odd ones."""
_INNER_SHAPES = range(5)
_AXES = ("split_k", "swizzle", "custom", "cluster", "inner")
_SETTINGS = {
    "id": (0, ctypes.c_int32),
    "tile": (1, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "cluster": (8, ctypes.c_uint16),
    "inner": (7, ctypes.c_uint16),
    "split_k": (2, ctypes.c_uint32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
}
"""cublasLtMatmulAlgoConfigAttributes_t and the type of each."""


def describe(result: Result) -> dict[str, int]:
    """An algorithm's settings in the library's own numbers (the ids of tiles, stages and clusters are those of cublasLt.h)."""
    lib, _ = library()
    found = {}
    for name, (attribute, kind) in _SETTINGS.items():
        value, written = kind(), ctypes.c_size_t()
        get = lib.cublasLtMatmulAlgoConfigGetAttribute
        if get(ctypes.byref(result.algo), attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)) == 0:
            found[name] = value.value
    return found


class Space:
    """All that the library can be asked to run for one product at the precision that the Workload names."""

    def __init__(self, problem: Problem):
        self.problem, self._lib, self._handle = problem, problem.lib, problem.handle
        g = problem.g
        self._types = (g.compute, g.scale_type, *[g.data_type] * 4)
        self._accumulators = _ACCUMULATES_32F if g.compute == COMPUTE_32F else _ACCUMULATES_16F | _ACCUMULATES_32F
        self._wrong_inputs = _INPUT_TF32 if g.data_type == DATA_TYPE["fp32"] else 0
        first, second, out = problem.alignments
        self._alignments = (first, second, out, out)

    def ids(self) -> list[int]:
        ids, found = (ctypes.c_int * 1024)(), ctypes.c_int()
        if self._lib.cublasLtMatmulAlgoGetIds(self._handle, *self._types, len(ids), ctypes.byref(ids), ctypes.byref(found)):
            return []
        return sorted(ids[: found.value])

    def initial(self, algo_id: int) -> Algo | None:
        """An id with default settings; None where it does not have these types."""
        algo = Algo()
        return None if self._lib.cublasLtMatmulAlgoInit(self._handle, *self._types, algo_id, ctypes.byref(algo)) else algo

    def capability(self, algo: Algo, attribute: int, kind: Any = ctypes.c_uint32) -> list[int]:
        """Values of one capability; empty where the library does not know it, or has none."""
        query, size = self._lib.cublasLtMatmulAlgoCapGetAttribute, ctypes.c_size_t()
        if query(ctypes.byref(algo), attribute, None, 0, ctypes.byref(size)) or not size.value:
            return []
        values = (kind * (size.value // ctypes.sizeof(kind)))()
        failed = query(ctypes.byref(algo), attribute, ctypes.byref(values), ctypes.sizeof(values), ctypes.byref(size))
        return [] if failed else list(values)

    def seeds(self) -> Iterator[Result]:
        """The heuristic's answers, its own first choice first. The same one may come again."""
        for space in (self.problem.room, *(x for x in LIMITS if x < self.problem.room)):
            for reductions in dict.fromkeys((self.problem.reductions, _REDUCTION_COMPUTE_TYPE, _REDUCTION_NONE)):
                yield from self._listed(space=space, reductions=reductions)
        for algo_id in self.ids():
            if (algo := self.initial(algo_id)) is not None:
                yield from self._listed(of=algo)

    def _listed(self, **preferences: Any) -> list[Result]:
        try:
            return [r for r in self.problem.algorithms(REQUESTED, **preferences) if self._precise(r.algo, describe(r))]
        except CandidateFault:
            return []  # none under these preferences

    def legal(self, algo: Algo, settings: dict[str, int]) -> Result | None:
        """`algo` with other settings; None where the library, the workspace, the buffers or the precision forbid it."""
        lib, wanted, result = self._lib, Algo.from_buffer_copy(algo), Result()
        for name, value in settings.items():
            attribute, kind = _SETTINGS[name]
            boxed = kind(value)
            if lib.cublasLtMatmulAlgoConfigSetAttribute(ctypes.byref(wanted), attribute, ctypes.byref(boxed), ctypes.sizeof(boxed)):
                return None
        layouts, problem = self.problem.layouts, self.problem
        if lib.cublasLtMatmulAlgoCheck(self._handle, problem.desc, *layouts, ctypes.byref(wanted), ctypes.byref(result)):
            return None
        if result.state or result.workspace_size > problem.room or not self._precise(wanted, settings):
            return None
        for attribute, alignment in zip(_CAP_ALIGNMENT, self._alignments, strict=True):
            if any(need and alignment % need for need in self.capability(wanted, attribute)):
                return None  # AlgoCheck does not know the addresses
        result.algo = wanted
        return result

    def _precise(self, algo: Algo, settings: dict[str, int]) -> bool:
        if settings.get("split_k", 1) > 1 and not settings.get("reduction", 0) & self.problem.reductions:
            return False
        for flags in self.capability(algo, _CAP_NUMERICS, ctypes.c_uint64):
            if flags & self._wrong_inputs or (flags & _ACCUMULATORS and not flags & self._accumulators):
                return False
        return True

    def combinations(self, algo_id: int, splits: Sequence[int], skip: Callable[[int, int], bool]) -> Iterator[Result | None]:
        """Tile x stages x cluster x `splits` of one id, small clusters first; None for one that is refused, so that the caller can look at
        the time. `skip` is asked for each tile and split before it is tried."""
        if (algo := self.initial(algo_id)) is None:
            return
        tiles, stages = (self.capability(algo, attribute) or [0] for attribute in (_CAP_TILES, _CAP_STAGES))
        slices = [settings for split in splits for settings in self._slices(algo, split)]
        for cluster, sliced, tile in itertools.product(_CLUSTERS, slices, tiles):
            if not skip(tile, sliced["split_k"]):
                for stage in stages:
                    yield self.legal(algo, {"tile": tile, "stages": stage, **({"cluster": cluster} if cluster else {}), **sliced})

    def neighbours(self, algo: Algo, axis: str) -> Iterator[Result | None]:
        """`algo` with each other value of one axis; None as in `combinations`."""
        if axis == "split_k":
            splits = (1, *(s for s in SPLITS if s * LEAST_SLICE <= self.problem.g.k))
            choices = [settings for split in splits for settings in self._slices(algo, split)]
        else:
            values: Iterable[int] = {"cluster": _CLUSTERS, "inner": _INNER_SHAPES}.get(axis, ())
            if axis == "swizzle":
                values = range(2) if any(self.capability(algo, _CAP_SWIZZLING)) else ()
            elif axis == "custom":
                values = range(min(MOST_OPTIONS, 1 + sum(self.capability(algo, _CAP_CUSTOM_MAX))))
            choices = [{axis: value} for value in values]
        kept = describe(Result(algo=algo))
        for choice in choices:
            yield self.legal(algo, {name: kept[name] for name in ("split_k", "reduction") if name in kept} | choice)

    def _slices(self, algo: Algo, split: int) -> list[dict[str, int]]:
        if split == 1:
            return [{"split_k": 1, "reduction": _REDUCTION_NONE}]
        if not any(self.capability(algo, _CAP_SPLIT_K)):
            return []
        able = sum(self.capability(algo, _CAP_REDUCTIONS)) & self.problem.reductions
        return [{"split_k": split, "reduction": scheme} for scheme in (1, 2, 4) if scheme & able]


@dataclass(eq=False)
class _Entry:
    result: Result
    settings: dict[str, int]
    calls: list[Callable[[], None]]
    us: float = math.inf
    """The least sample."""

    @property
    def tile(self) -> tuple[int, ...]:
        return tuple(self.settings[name] for name in ("id", "tile", "split_k"))


class _Search:
    def __init__(self, problem: Problem, sets: Sequence[Bound]):
        self.problem, self.sets, self.space = problem, sets, Space(problem)
        self.clock, self.random = open_clock(sets), random.Random(0)
        self.entries: list[_Entry] = []
        self.seeds = 0
        self.tiles: dict[tuple[int, ...], float] = {}
        """The least sample by id, tile and split."""
        self._seen: set[bytes] = set()
        self._launches = 0
        self._started, self._seconds = time.monotonic(), settings().cublaslt_seconds

    def late(self, share: float) -> bool:
        return time.monotonic() - self._started > share * self._seconds

    def attempt(self, result: Result | None) -> None:
        """Samples it once, unless it is known already or fails at launch."""
        if result is None or (key := bytes(result.algo)) in self._seen:
            return
        self._seen.add(key)
        entry = _Entry(result, describe(result), [self.problem.bind(one, result) for one in self.sets[:8]])
        try:
            entry.calls[0]()  # loads the kernel, and shows whether it runs
            self.clock.synchronize("cuBLASLt")
            if not self._launches:
                self._launches = max(1, min(8, int(100 / max(self.clock.device_us(entry.calls[0], cold=True, gaps=True), 1.0))))
            self.sample(entry)
        except DeviceLost:
            raise
        except CandidateFault:
            return
        self.entries.append(entry)

    def sample(self, entry: _Entry) -> None:
        def work() -> None:
            for i in range(self._launches):
                entry.calls[i % len(entry.calls)]()

        entry.us = min(entry.us, self.clock.device_us(work, cold=True, gaps=True) / self._launches)
        self.tiles[entry.tile] = min(self.tiles.get(entry.tile, entry.us), entry.us)

    def again(self, count: int, share: float) -> None:
        """Samples the fastest once more, in random order: the clock drifts while hundreds are sampled one after the other."""
        for entry in self.random.sample(fastest := self.ranked()[:count], len(fastest)):
            if self.late(share):
                return
            self.sample(entry)

    def ranked(self) -> list[_Entry]:
        return sorted(self.entries, key=lambda e: e.us)

    def seed(self) -> None:
        for result in self.space.seeds():
            if self.entries and self.late(SEED_ENDS):
                break
            self.attempt(result)
        self.seeds = len(self.entries)
        self.again(self.seeds, SEED_ENDS)

    def screen(self) -> None:
        by_id: dict[int, float] = {}
        for entry in self.ranked():
            by_id.setdefault(entry.settings["id"], entry.us)
        best = min(by_id.values(), default=math.inf)  # of seeds alone: a kernel that is fast because it is wrong must not set the measure
        running = [i for i, us in by_id.items() if us <= HOPELESS * best] + [i for i in self.space.ids() if i not in by_id]
        splits = sorted({1, *(e.settings["split_k"] for e in self.entries if e.us <= NEAR * best and e.settings["split_k"] > 1)})
        for algo_id in running:

            def hopeless(tile: int, split: int, algo_id: int = algo_id) -> bool:
                return self.tiles.get((algo_id, tile, split), 0.0) > HOPELESS * best

            for result in self.space.combinations(algo_id, splits, hopeless):
                if self.late(SCREEN_ENDS):
                    return
                self.attempt(result)
        self.again(3 * KEPT, SCREEN_ENDS)

    def widen(self) -> None:
        for axis in _AXES * PASSES:
            kept: dict[tuple[int, ...], _Entry] = {}
            for entry in self.ranked():  # one of each tile and split: a good tile's clusters must not fill all the places
                kept.setdefault(entry.tile, entry)
            for result in itertools.chain.from_iterable(
                self.space.neighbours(entry.result.algo, axis) for entry in list(kept.values())[:KEPT]
            ):
                if self.late(WIDEN_ENDS):
                    return
                self.attempt(result)
            self.again(KEPT, WIDEN_ENDS)

    def final(self) -> Result:
        found: list[tuple[Result, Callable[[], float], list[float]]] = []
        for entry in self.right():
            try:
                found.append((entry.result, self.captured(entry), []))
            except DeviceLost:
                raise
            except CandidateFault:
                continue
        if not found:
            raise CandidateFault(Outcome.LAUNCH_ERROR, "no algorithm of cuBLASLt for this product can be captured in a CUDA graph")
        for _ in range(ROUNDS):
            for _, clocked, times in self.random.sample(found, len(found)):
                times.append(clocked())
            if self.late(1.0):
                break
        return min(found, key=lambda f: statistics.median(f[2]))[0]

    def captured(self, entry: _Entry) -> Callable[[], float]:
        """A clock of the entry, microseconds a launch, as the judge will clock it: in a graph, each launch on the next set."""
        launches = max(1, min(20, int(400 / max(entry.us, 1.0))))
        calls = [self.problem.bind(one, entry.result) for one in self.sets[:launches]]
        replay = self.clock.capture_launches(lambda i: calls[i](), [i % len(calls) for i in range(launches)])
        replay()  # the first launch of a graph uploads it
        self.clock.synchronize("cuBLASLt")
        return lambda: self.clock.device_us(replay, cold=True, gaps=True) / launches

    def right(self) -> list[_Entry]:
        """The best seed and the fastest of all, as far as their results are those of the heuristic's first choice, bit by bit: sums of
        -1, 0 and 1 are exact in whatever order they are added."""
        if not self.entries:
            raise CandidateFault(Outcome.REFUSED, "cuBLASLt has no algorithm for this product")
        one, found = self.sets[0].tensors, list[_Entry]()
        for name in "ab":
            one[name].random_(-1, 2)
        expected = self._output(self.entries[0]).clone()
        ranked = self.ranked()
        for entry in dict.fromkeys([*sorted(self.entries[: self.seeds], key=lambda e: e.us)[:1], *ranked]):
            if torch.equal(self._output(entry), expected):
                found.append(entry)
            if len(found) == FINALISTS:
                break
        for name in "ab":
            one[name].normal_()
        return found or self.entries[:1]

    def _output(self, entry: _Entry) -> torch.Tensor:
        out = self.sets[0].tensors["c"].fill_(torch.nan)
        entry.calls[0]()
        return out


def tune(problem: Problem, sets: Sequence[Bound]) -> Result:
    """The algorithm with the lowest median device time that the search finds in its time (Settings.cublaslt_seconds). Fills the buffers.
    Raises CandidateFault."""
    search = _Search(problem, sets)
    search.seed()
    search.screen()
    search.widen()
    return search.final()
