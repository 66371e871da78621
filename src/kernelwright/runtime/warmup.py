"""`kw.warmup`: the kernels of the pack in use and the library, measured on this GPU for products that the pack was not tuned on.

    for choice in kw.warmup([(1, 4096, 4096), (17, 4096, 4096)], layout="nt"):
        print(choice.explain())                         # ... (pinned): measured on 2026-01-31. ...

The clock is the search's own (`targets.cuda_clock`): CUDA graphs between events, on buffers that are not in the L2, all contenders in
turn in every round. What won is called from then on, in this process and in the next ones (`runtime.pins`).
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import date
from typing import Any

import torch

from kernelwright.problems import problem_of, resolve
from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Problem, Tensors
from kernelwright.records import DTYPES, Build, Workload
from kernelwright.runtime import engine, ops, pins
from kernelwright.runtime.dispatch import LONG_US, Choice, contiguous
from kernelwright.runtime.pack import Entry, PackError
from kernelwright.runtime.pins import Pin
from kernelwright.runtime.progress import steps
from kernelwright.settings import reason
from kernelwright.targets import usable
from kernelwright.targets.target import Bound, CandidateFault, Contender, Device, DeviceLost, Run

Shape = tuple[int, int, int] | str | Workload

KERNELS = 6
"""Of the pack, those that are expected to be the fastest."""
ROUNDS, DUEL = 5, 15
"""Of all contenders; then of the fastest kernel and the library alone."""
MODE = "device-cold"
CLEARLY = 1.25
"""Where the library takes so many times LONG_US, no kernel of ours would take less, and so none would be called: on the 51 products of
hgemm-1000 that take the library over 3 ms ours is at best 1.08 times as fast as eager PyTorch."""
ROOM = 64 * 2**20
"""Bytes beside the results of a captured product."""
LOST = 3
"""Rounds in 15 that a kernel may lose to the library: of two that are as fast, one wins 12 or more in 2 % of all cases."""


def warmup(
    shapes: Iterable[Shape],
    *,
    dtype: str = "fp16",
    layout: str = "nn",
    again: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> list[Choice]:
    """Measures and pins what is called for products on the current GPU.

    `shapes`: (M, N, K), or names of Workloads ("linear:16x4096x4096:fp16:nt:bias+gelu"). `dtype` (fp16, bf16) and `layout` (nn; nt: the
    right factor is the transposed view of a matrix, as in a linear layer) are those of tuples. What the pack was tuned on and what is
    pinned already is left as it is, unless `again`. `told` gets (done, total); by default standard error says how far it is.
    Returns what is called for each. Raises ValueError for what is no product of ours, TargetUnavailable without a GPU, PackError without
    a pack that serves it."""
    wanted = [_workload(shape, dtype, layout) for shape in shapes]
    device = _gpu()
    serving = engine.of(device)
    if serving is None:
        raise PackError(f"no pack serves {device}; name one with kw.use")
    measured = () if again else ("pinned", "measured")
    todo = [w for w in dict.fromkeys(wanted) if serving.dispatcher.choose(w).source not in measured]
    told = told or steps("kw.warmup")
    found: list[Pin] = []
    if todo:
        with closing(_open()) as opened:
            try:
                for done, w in enumerate(todo):
                    told(done, len(todo))
                    if (pin := _measured(opened, serving, w)) is not None:
                        found.append(pin)
            except DeviceLost as error:
                raise RuntimeError(f"the GPU cannot be used any more: {error}") from None
            finally:
                _keep(serving, found)
        told(len(todo), len(todo))
    return [serving.dispatcher.choose(w) for w in wanted]


def _gpu() -> torch.device:
    usable("cuda")
    return torch.device("cuda", torch.cuda.current_device())


def _open() -> Device:
    return usable("cuda").open()


def _workload(shape: Shape, dtype: str, layout: str) -> Workload:
    if isinstance(shape, tuple):
        if len(shape) != 3 or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(f"{shape} is no product; give (M, N, K), each an integer above 0")
        shape = f"gemm:{'x'.join(map(str, shape))}:{dtype}:{layout}"
    w = resolve(shape) if isinstance(shape, str) else shape
    known = {ops.epilogue_of(activation, bias) for activation in ops.ACTIVATIONS for bias in (False, True)}
    if (
        w.problem != ("linear" if w.epilogue else "gemm")
        or TORCH_DTYPES.get(w.dtype) not in ops.HALF
        or w.accumulate != "fp32"
        or w.epilogue not in known
    ):
        raise ValueError(f"{w.name} is nothing that kw.matmul or kw.linear calls; give products of fp16 or bf16, accumulated in fp32")
    return w


def _keep(serving: engine.Engine, found: Sequence[Pin]) -> None:
    """Has them called from now on, and by the next process."""
    if not found:
        return
    serving.dispatcher.pinned |= pins.pinned(serving.pack, found)
    engine.relearn()
    try:
        pins.write(serving.environment, found)
    except OSError as error:
        why = reason(error, pins.folder())
        warnings.warn(f"what kw.warmup measured counts for this process alone: {why}", RuntimeWarning, stacklevel=3)


def _measured(device: Device, serving: engine.Engine, w: Workload) -> Pin | None:
    """None where the library itself cannot be measured."""
    problem = problem_of(w)
    with contextlib.ExitStack() as stack:
        try:
            bound = _sets(device, problem, w, serving.sms)
            library = device.load_trusted([_eager(problem, w, one.tensors) for one in bound])
            stack.callback(library.close)
            if (us := library.estimate(MODE)) > CLEARLY * LONG_US:
                return Pin(workload=w, candidate="", own_us=None, vendor_us=round(us, 4), measured=date.today().isoformat())
            _make_room(device, problem, w)
            expected = problem.eager(w, _inputs(problem, w, bound[0].tensors))
            contenders: dict[Entry | None, Contender] = {None: library}
            for entry in serving.dispatcher.candidates(w, KERNELS):
                if (loaded := _loaded(device, serving, entry, w, bound, expected)) is not None:
                    contenders[entry] = loaded
                    stack.callback(loaded.close)
            times = _rounds(contenders, ROUNDS)
            own = min((e for e in times if e is not None), key=lambda e: statistics.median(times[e]), default=None)
            if own is not None:
                times = _rounds({None: library, own: contenders[own]}, DUEL)
        except DeviceLost:
            raise
        except (CandidateFault, torch.OutOfMemoryError) as error:
            warnings.warn(f"{w.name} was not measured: {error}", RuntimeWarning, stacklevel=4)
            return None
    us = {e: statistics.median(seen) for e, seen in times.items()}
    if math.isinf(us[None]) or (own is not None and math.isinf(us[own])):
        warnings.warn(f"{w.name} was not measured: the host was too busy to keep ahead of the GPU", RuntimeWarning, stacklevel=4)
        return None
    won = own is not None and sum(x >= y for x, y in zip(times[own], times[None], strict=True)) <= LOST
    return Pin(
        workload=w,
        candidate=own.candidate if won and own is not None else "",
        own_us=None if own is None else round(us[own], 4),
        vendor_us=round(us[None], 4),
        measured=date.today().isoformat(),
    )


def _sets(device: Device, problem: Problem, w: Workload, sms: int) -> list[Bound]:
    """Buffers as callers have them, with numbers in them, as many as keep the cold clock cold."""
    specs = problem.tensors(w)
    size = sum(s.numel * DTYPES[s.dtype] for s in specs)
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    numbers = torch.Generator(device.torch_device).manual_seed(0)
    values = problem.generate(w, case, numbers, device.torch_device)
    made = []
    for _ in range(device.cold_sets(size)):
        tensors = {s.name: torch.full(s.shape, math.nan, dtype=TORCH_DTYPES[s.dtype], device=device.torch_device) for s in specs}
        for name, value in values.items():
            tensors[name].copy_(value)
        made.append(Bound(tensors=tensors, names=contiguous(w, sms)))
    return made


def _make_room(device: Device, problem: Problem, w: Workload) -> None:
    """For the library's graph, whose results do not come out of what PyTorch keeps. A capture that runs out of memory leaves PyTorch unable
    to go on, in somebody's program; so that is found out before. Raises torch.OutOfMemoryError."""
    # a product, and with an epilogue what it passes on
    need = ROOM + 3 * sum(s.numel * DTYPES[s.dtype] for s in problem.tensors(w) if s.role == "out")
    if _free(device) < need:
        torch.cuda.empty_cache()
        if (left := _free(device)) < need:
            raise torch.OutOfMemoryError(f"a CUDA graph of it needs {need / 1e9:.1f} GB of the GPU's memory, and {left / 1e9:.1f} are free")


def _free(device: Device) -> float:
    """Bytes of the GPU's memory that nobody holds, PyTorch's allocator neither."""
    return torch.cuda.mem_get_info()[0] if device.torch_device == "cuda" else math.inf


def _inputs(problem: Problem, w: Workload, tensors: Any) -> Tensors:
    return {s.name: tensors[s.name] for s in problem.tensors(w) if s.role == "in"}


def _eager(problem: Problem, w: Workload, tensors: Any) -> Run:
    inputs = _inputs(problem, w, tensors)
    return Run(call=lambda: problem.eager(w, inputs), store=lambda result: tensors["c"].copy_(result["c"]))


def _loaded(device: Device, serving: engine.Engine, e: Entry, w: Workload, bound: list[Bound], expected: Tensors) -> Contender | None:
    """A kernel that does the product right, as the library has it; None for one that does not."""
    artifact = serving.pack.artifact(e)
    build = Build(key=e.artifact, artifact=str(artifact), compiler="", arch="") if artifact else None
    try:
        made = device.load(serving.pack.candidate(e), build, w, bound)
    except DeviceLost:
        raise
    except CandidateFault:
        return None  # not for these sizes
    bound[0].tensors["c"].fill_(math.nan)
    try:
        made.run()
        got, want = (t.float() for t in (bound[0].tensors["c"], expected["c"]))
        # both round once, from sums in fp32: two roundings apart, and as much again for the order of the sums
        off = float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
        if off <= 4 * UNIT_ROUNDOFF[w.dtype]:
            return made
        said = f"kernel {e.candidate[:8]} is wrong for {w.name} (by {off:.1e} of the largest element): it is not called there"
        warnings.warn(said, RuntimeWarning, stacklevel=5)
    except DeviceLost:
        raise
    except CandidateFault:
        pass
    made.close()
    return None


def _rounds(contenders: dict[Entry | None, Contender], count: int) -> dict[Entry | None, list[float]]:
    """Microseconds by round, all in turn in each, in an order of its own: what drifts or throttles meets all alike."""
    launches = {e: c.launches_of(MODE) for e, c in contenders.items()}
    times: dict[Entry | None, list[float]] = {e: [] for e in contenders}
    order, shuffled = list(contenders), random.Random(0)
    for _ in range(count):
        shuffled.shuffle(order)
        for e in order:
            us, _ = contenders[e].sample(MODE, launches[e])
            times[e].append(math.inf if math.isnan(us) else us)  # disturbed: a round that it loses
    return times
