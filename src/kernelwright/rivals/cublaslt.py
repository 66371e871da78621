"""cuBLASLt as a rival: `cublaslt` takes the first algorithm of its heuristic, `cublaslt-auto` the fastest of all that it lists,
`cublaslt-all` the fastest that a search of the whole algorithm space finds (cublaslt_space.py).
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.problems.epilogue import Epilogue, parse
from kernelwright.records import Outcome, Workload
from kernelwright.rivals import unfused
from kernelwright.rivals.cublas import column_major, exact_reduction, scalars, workspace
from kernelwright.targets.cublaslt import (
    EPILOGUE_BIAS,
    EPILOGUE_GELU,
    REDUCTION_ANY,
    REDUCTION_COMPUTE_TYPE,
    ColumnMajor,
    Product,
    Result,
    require,
)
from kernelwright.targets.target import Bound, CandidateFault, Run

NAMES = ("cublaslt", "cublaslt-auto", "cublaslt-all")
REQUESTED = 100
ROUNDS, SECONDS = 9, 4.0
"""Rounds of the tuning, and the time after which no further round begins."""
TRIED, FAR = 3, 1.25
"""Rounds after which an algorithm that takes so many times the fastest's median is tried no more: most of a hundred do."""


class Problem(Product):
    """Descriptors of one Workload's product, with the epilogue of a `linear`."""

    def __init__(self, w: Workload, g: ColumnMajor, alignments: tuple[int, int, int], one: Bound):
        """`alignments` of first, second and out (and the addend): the smallest over all sets, bytes. `one` of the sets has the strides of
        all. Slices of K are added at the precision that the Workload names."""
        self.epilogue = e = parse(w.epilogue) if w.epilogue else Epilogue()
        super().__init__(
            g,
            alignments,
            workspace().numel(),
            reductions=REDUCTION_COMPUTE_TYPE if exact_reduction(w) else REDUCTION_ANY,
            steps=(EPILOGUE_BIAS if e.bias else 0) | (EPILOGUE_GELU if e.activation else 0),
            ld_added=one.names["ld_addend"] if e.added else None,
        )

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
            desc = self.description(one.tensors["bias"].data_ptr())
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
