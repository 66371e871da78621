"""cuBLASLt as a rival: `cublaslt` takes the first algorithm of its heuristic, `cublaslt-auto` the fastest of all that it lists,
`cublaslt-all` the fastest that a search of the whole algorithm space finds (cublaslt_space.py).

A binding of our own, a few functions of the C API through ctypes: nvmath-python would do the same, but hides which algorithms were timed
and how. The constants are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from kernelwright.problems.epilogue import Epilogue, parse
from kernelwright.records import Outcome, Workload
from kernelwright.rivals import unfused
from kernelwright.rivals.cublas import ColumnMajor, column_major, exact_reduction, require, scalars, workspace
from kernelwright.targets.cuda_libraries import load as load_library
from kernelwright.targets.target import Bound, CandidateFault, Run

_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS = 3, 4, 7, 8
_EPILOGUE_BIAS, _EPILOGUE_GELU = 4, 32
"""Bits: 36 is gelu after bias. Its gelu is the tanh approximation; its bias is added along the rows of a column-major
result, which are the columns of ours."""
_PREF_SEARCH_MODE, _PREF_MAX_WORKSPACE, _PREF_REDUCTION_MASK, _PREF_ALIGNMENT = 0, 1, 3, (5, 6, 7, 8)
_SEARCH_LIMITED_BY_ALGO_ID = 1
_REDUCTION_COMPUTE_TYPE, _REDUCTION_ANY = 2, 7
NAMES = ("cublaslt", "cublaslt-auto", "cublaslt-all")
REQUESTED = 100
ROUNDS, SECONDS = 9, 4.0
"""Rounds of the tuning, and the time after which no further round begins."""
TRIED, FAR = 3, 1.25
"""Rounds after which an algorithm that takes so many times the fastest's median is tried no more: most of a hundred do."""


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: which kernel, and its settings; private to the library but for its attributes."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algo", Algo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@cache
def library() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library with its signatures, and a handle."""
    lib = load_library("cublasLt")
    pointer, integer, size_t = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    lib.cublasLtMatmulDescCreate.argtypes = [pointer, integer, integer]
    lib.cublasLtMatmulDescSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    lib.cublasLtMatrixLayoutCreate.argtypes = [pointer, integer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64]
    lib.cublasLtMatmulPreferenceCreate.argtypes = [pointer]
    lib.cublasLtMatmulPreferenceSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    lib.cublasLtMatmulAlgoGetHeuristic.argtypes = [*[pointer] * 7, integer, pointer, pointer]
    lib.cublasLtMatmul.argtypes = [*[pointer] * 12, pointer, pointer, size_t, pointer]
    lib.cublasLtMatmulAlgoGetIds.argtypes = [pointer, *[integer] * 7, pointer, pointer]
    lib.cublasLtMatmulAlgoInit.argtypes = [pointer, *[integer] * 7, pointer]
    lib.cublasLtMatmulAlgoCheck.argtypes = [pointer] * 8
    lib.cublasLtMatmulAlgoConfigSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    for get in (lib.cublasLtMatmulAlgoCapGetAttribute, lib.cublasLtMatmulAlgoConfigGetAttribute):
        get.argtypes = [pointer, integer, pointer, size_t, pointer]
    for destroy in (lib.cublasLtMatmulDescDestroy, lib.cublasLtMatrixLayoutDestroy, lib.cublasLtMatmulPreferenceDestroy):
        destroy.argtypes = [pointer]
    handle = ctypes.c_void_p()
    require(lib.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
    return lib, handle


class Problem:
    """Descriptors of one product, with the epilogue of a `linear`; freed with the object."""

    def __init__(self, w: Workload, g: ColumnMajor, alignments: tuple[int, int, int], one: Bound):
        """`alignments` of first, second and out (and the addend): the smallest over all sets, bytes. `one` of the sets has the strides of
        all."""
        self.lib, self.handle = library()
        self._made: list[tuple[Any, ctypes.c_void_p]] = []
        self.g, self.alignments = g, alignments
        self.epilogue = parse(w.epilogue) if w.epilogue else Epilogue()
        self.reductions = _REDUCTION_COMPUTE_TYPE if exact_reduction(w) else _REDUCTION_ANY
        """Mask of the ways in which slices of K may be added at the precision that the Workload names."""
        self.room = workspace().numel()
        """Bytes of workspace."""
        self.desc = self._description(one)
        self.first = self._layout(*g.stored_first(), g.ld_first)
        self.second = self._layout(*g.stored_second(), g.ld_second)
        self.out = self._layout(g.m, g.n, g.ld_out)
        self.added = self._layout(g.m, g.n, one.names["ld_addend"]) if self.epilogue.added else self.out
        self.layouts = (self.first, self.second, self.added, self.out)

    def _description(self, one: Bound) -> ctypes.c_void_p:
        """What is done; the address of a set's bias is a part of it."""
        lib, g, e = self.lib, self.g, self.epilogue
        desc = self._new(lib.cublasLtMatmulDescCreate, lib.cublasLtMatmulDescDestroy, g.compute, g.scale_type)
        set_one = partial(self._set, lib.cublasLtMatmulDescSetAttribute, desc)
        for attribute, op in ((_DESC_TRANSA, g.op_first), (_DESC_TRANSB, g.op_second)):
            set_one(attribute, ctypes.c_int32(op))
        if steps := (_EPILOGUE_BIAS if e.bias else 0) | (_EPILOGUE_GELU if e.activation else 0):
            set_one(_DESC_EPILOGUE, ctypes.c_uint32(steps))
        if e.bias:
            set_one(_DESC_BIAS, ctypes.c_void_p(one.tensors["bias"].data_ptr()))
        return desc

    def _new(self, create: Any, destroy: Any, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        require(create(ctypes.byref(made), *arguments), create.__name__)
        self._made.append((destroy, made))
        return made

    def _layout(self, rows: int, columns: int, ld: int) -> ctypes.c_void_p:
        lib = self.lib
        return self._new(lib.cublasLtMatrixLayoutCreate, lib.cublasLtMatrixLayoutDestroy, self.g.data_type, rows, columns, ld)

    @staticmethod
    def _set(setter: Any, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        require(setter(target, attribute, ctypes.byref(value), ctypes.sizeof(value)), f"{setter.__name__} {attribute}")

    def algorithms(self, count: int, *, space: int | None = None, reductions: int | None = None, of: Algo | None = None) -> list[Result]:
        """At most `count`, best guess first; with `space` bytes of workspace, of the ways `reductions` (a mask), of the id of `of`.

        Raises CandidateFault(REFUSED) when the library has none."""
        lib = self.lib
        preference = self._new(lib.cublasLtMatmulPreferenceCreate, lib.cublasLtMatmulPreferenceDestroy)
        set_one = partial(self._set, lib.cublasLtMatmulPreferenceSetAttribute, preference)
        # a uint64: as an int product such sizes have overflowed to 0, and no split-K algorithm was found
        set_one(_PREF_MAX_WORKSPACE, ctypes.c_uint64(self.room if space is None else space))
        set_one(_PREF_REDUCTION_MASK, ctypes.c_uint32(self.reductions if reductions is None else reductions))
        first, second, out = self.alignments
        for attribute, alignment in zip(_PREF_ALIGNMENT, (first, second, out, out), strict=True):
            set_one(attribute, ctypes.c_uint32(alignment))  # the default promises 256 bytes, which a tail's buffers break
        results, found = (Result * count)(), ctypes.c_int()
        if of is not None:
            set_one(_PREF_SEARCH_MODE, ctypes.c_uint32(_SEARCH_LIMITED_BY_ALGO_ID))
            for result in results:
                result.algo = of
        status = lib.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.desc, *self.layouts, preference, count, ctypes.addressof(results), ctypes.addressof(found)
        )
        usable = [r for r in results[: found.value] if r.state == 0]
        if status or not usable:
            raise CandidateFault(Outcome.REFUSED, f"cuBLASLt has no algorithm for this product (status {status})")
        return usable

    def bind(self, one: Bound, result: Result) -> Callable[[], None]:
        """One product on one set of buffers, enqueued on PyTorch's current stream."""
        alpha, beta = scalars(self.g)
        a, b, c = (one.tensors[name] for name in "abc")
        e, added, desc = self.epilogue, c, self.desc
        if e.alpha != 1 or e.added:
            alpha, beta = ctypes.c_float(e.alpha), ctypes.c_float(e.factor if e.added else 0.0)
        if e.added:
            added = one.tensors["addend"]
        if e.bias:
            desc = self._description(one)
        space = workspace()
        arguments = (
            self.handle,
            desc,
            ctypes.addressof(alpha),
            b.data_ptr(),
            self.first,
            a.data_ptr(),
            self.second,
            ctypes.addressof(beta),
            added.data_ptr(),
            self.added,
            c.data_ptr(),
            self.out,
            ctypes.addressof(result.algo),
            space.data_ptr(),
            space.numel(),
        )
        matmul = self.lib.cublasLtMatmul

        def run(keep: object = (self, alpha, beta, result, one)) -> None:
            if status := matmul(*arguments, torch.cuda.current_stream().cuda_stream):
                require(status, "cublasLtMatmul")

        return run

    def __del__(self) -> None:
        for destroy, made in self._made:
            destroy(made)


_chosen: dict[tuple[object, ...], Result] = {}
"""Algorithm of `cublaslt-auto` and `cublaslt-all` by name, product, leading dimensions and alignments: tuned once in a process."""


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """One of NAMES. Allocates nothing in a call. Raises CandidateFault."""
    if name not in NAMES:
        raise ValueError(f"unknown rival {name!r}")
    g = column_major(w, sets[0])
    if w.epilogue and (reason := unfused(w)):
        raise CandidateFault(Outcome.REFUSED, f"cuBLASLt has no such kernel: {reason}")
    if g.empty:
        return [_run(lambda: None) for _ in sets], None
    if g.k == 0 and w.epilogue:
        raise CandidateFault(Outcome.REFUSED, "cuBLASLt has no product of K = 0")
    if g.k == 0:
        return [_run(one.tensors["c"].zero_) for one in sets], None
    outs = ("c", "addend") if "addend" in sets[0].tensors else ("c",)
    first, second, out = (min(one.names[f"align_{x}"] for one in sets for x in names) for names in ("b", "a", outs))
    alignments = (first, second, out)
    problem = Problem(w, g, alignments, sets[0])
    if name == "cublaslt":
        best_guess = problem.algorithms(1)[0]
        return [_run(problem.bind(one, best_guess)) for one in sets], None
    key = (name, g, alignments, exact_reduction(w), w.epilogue, sets[0].names.get("ld_addend"))
    calls: list[Callable[[], None]] = []

    def setup() -> None:
        if key not in _chosen:
            from kernelwright.rivals import cublaslt_space

            _chosen[key] = (_tune if name == "cublaslt-auto" else cublaslt_space.tune)(problem, sets)
        calls.extend(problem.bind(one, _chosen[key]) for one in sets)

    return [_run(lambda i=i: calls[i]()) for i in range(len(sets))], setup


def _run(call: Callable[[], Any]) -> Run:
    return Run(call=call, store=lambda _: None)


def open_clock(sets: Sequence[Bound]) -> Any:
    """A Clock of this process's GPU, with normal inputs in every set."""
    from kernelwright.targets.cuda_clock import Clock
    from kernelwright.targets.driver import load as load_driver

    for one in sets:
        for name in "ab":
            one.tensors[name].normal_()  # what the buffers hold decides the power drawn, and so the clock
    return Clock(load_driver(), torch.cuda.get_device_properties("cuda").L2_cache_size)


def _tune(problem: Problem, sets: Sequence[Bound]) -> Result:
    """The algorithm with the lowest median device time, all of them timed in turn, in random order, each launch on the next set."""
    clock = open_clock(sets)
    entries: list[tuple[Result, Callable[[], object], list[float]]] = []
    launches = 0
    for result in problem.algorithms(REQUESTED):
        runs = [problem.bind(one, result) for one in sets]
        try:
            runs[0]()
        except CandidateFault:
            continue  # listed, but refused for these buffers
        clock.synchronize("cuBLASLt")
        if not launches:
            once = clock.device_us(runs[0], cold=True, gaps=True)
            launches = max(1, min(20, int(400 / max(once, 1.0))))

        def enqueue(i: int, runs: list[Callable[[], None]] = runs) -> None:
            runs[i]()

        entries.append((result, clock.capture_launches(enqueue, [i % len(sets) for i in range(launches)]), []))
    if not entries:
        raise CandidateFault(Outcome.LAUNCH_ERROR, "cuBLASLt refuses every algorithm that it lists for this product")
    started = time.monotonic()
    for number in range(ROUNDS):
        if number == TRIED:
            least = min(statistics.median(times) for *_, times in entries)
            entries = [entry for entry in entries if statistics.median(entry[2]) <= FAR * least]
        for _, work, times in random.sample(entries, len(entries)):
            times.append(clock.device_us(work, cold=True, gaps=True))
        if time.monotonic() - started > SECONDS:
            break
    return min(entries, key=lambda e: statistics.median(e[2]))[0]
