"""PyTorch as a rival: eager, torch.compile, either as a CUDA graph, and eager under other settings of the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelwright.problems import problem_of
from kernelwright.problems.problem import Problem, Tensors
from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Run

_COMPILE_MODES = {"compile": "default", "compile-max": "max-autotune", "compile-reduce": "default"}
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions."""
_FLAGS: dict[str, tuple[tuple[Any, str], ...]] = {
    "cudnn-benchmark": ((torch.backends.cudnn, "benchmark"),),
    "tf32": ((torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32")),
}


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """`eager`, `compile`, `compile-max` (max-autotune; its CUDA graphs are off on buffers we own), `graph`, `compile-reduce` (what
    reduce-overhead replays, on the given buffers: it need not copy inputs), `channels-last`, `cudnn-benchmark`, `tf32`."""
    problem = problem_of(w)
    inputs = [{s.name: one.tensors[s.name] for s in problem.tensors(w) if s.role == "in"} for one in sets]
    outputs = [{s.name: one.tensors[s.name] for s in problem.tensors(w) if s.role == "out"} for one in sets]
    if w.problem == "gemm" and name in ("eager", "graph"):
        runs = [_matmul_out(w, i, o) for i, o in zip(inputs, outputs, strict=True)]
    elif name in _COMPILE_MODES:
        runs, setup = _compiled(name, problem, w, inputs, outputs)
        return _graphs(runs, setup) if name == "compile-reduce" else (runs, setup)
    elif name == "channels-last":
        return [_channels_last(problem, w, i, o) for i, o in zip(inputs, outputs, strict=True)], None
    elif name in ("cudnn-benchmark", "tf32"):
        return [_set(name, problem, w, i, o) for i, o in zip(inputs, outputs, strict=True)], None
    else:
        runs = [_eager(problem, w, i, o) for i, o in zip(inputs, outputs, strict=True)]
    if name == "graph":
        return _graphs(runs)
    return runs, None


def _eager(problem: Problem, w: Workload, inputs: Tensors, outputs: Tensors) -> Run:
    return Run(call=_caller(problem, w, inputs), store=lambda result: _copy(result, outputs))


def _caller(problem: Problem, w: Workload, inputs: Tensors) -> Callable[[], Any]:
    """As its user would call it. A module is bound to its tensors here: looking them up in the call took 15 us on a CPU, which no answer
    that is compared with it pays."""
    bind = getattr(problem, "caller", None)
    if bind is not None:
        return bind(w, inputs)
    function = problem.eager_function(w)
    return lambda: function(inputs)


def _set(name: str, problem: Problem, w: Workload, inputs: Tensors, outputs: Tensors) -> Run:
    """The flags are set in the call, as other rivals share the process. A context manager over all three took 5 us of the rival's time on
    the host; these reads and writes take 1 to 3."""
    forward, flags = _caller(problem, w, inputs), _FLAGS[name]

    def call() -> Any:
        before = [getattr(place, flag) for place, flag in flags]
        try:
            for place, flag in flags:
                setattr(place, flag, True)
            return forward()
        finally:
            for (place, flag), value in zip(flags, before, strict=True):
                setattr(place, flag, value)

    return Run(call=call, store=lambda result: _copy(result, outputs))


def _channels_last(problem: Problem, w: Workload, inputs: Tensors, outputs: Tensors) -> Run:
    """Weights are stored so before the clock, as whoever chooses the layout stores them; what `forward` is given is turned inside it.
    Raises CandidateFault where there is nothing to store so."""
    weights = {n: t for n, t in inputs.items() if n in getattr(problem, "state_names", ()) and t.ndim in _LAYOUTS}
    images = {n: t for n, t in inputs.items() if n not in getattr(problem, "state_names", ()) and t.ndim in _LAYOUTS}
    if not weights or not images:
        raise CandidateFault(Outcome.REFUSED, "no convolution's weights and images are there to be stored channels last")
    turned = {n: torch.empty_like(t, memory_format=_LAYOUTS[t.ndim]) for n, t in (weights | images).items()}
    forward = _caller(problem, w, inputs | turned)

    def prepare() -> None:
        for name, t in weights.items():
            turned[name].copy_(t)

    def call() -> Any:
        for name, t in images.items():
            turned[name].copy_(t)
        return forward()

    return Run(call=call, store=lambda result: _copy(result, outputs), prepare=prepare)


def _matmul_out(w: Workload, inputs: Tensors, outputs: Tensors) -> Run:
    a = inputs["a"] if w.layout[0] == "n" else inputs["a"].t()
    b = inputs["b"] if w.layout[1] == "n" else inputs["b"].t()
    c = outputs["c"]
    return Run(call=lambda: torch.matmul(a, b, out=c), store=lambda _: None)


def _compiled(
    name: str, problem: Problem, w: Workload, inputs: list[Tensors], outputs: list[Tensors]
) -> tuple[list[Run], Callable[[], None]]:
    compiled: list[Any] = []

    def setup() -> None:
        import torch._dynamo

        torch._dynamo.reset()
        mode = _COMPILE_MODES[name]
        if mode == "max-autotune" and inputs[0] and next(iter(inputs[0].values())).is_cuda:
            mode = "max-autotune-no-cudagraphs"  # the timer captures the graph itself; nested capture is not possible

        # tensors as positional arguments: guards on a dictionary would cost the rival microseconds that its users do not pay
        def function(*tensors: torch.Tensor) -> Tensors:
            return eager(dict(zip(names, tensors, strict=True)))

        compiled.append(torch.compile(function, mode=mode, dynamic=False))
        compiled[0](*inputs[0].values())

    names, eager = tuple(inputs[0]), problem.eager_function(w)

    def run(i: Tensors, o: Tensors) -> Run:
        tensors = tuple(i.values())
        return Run(call=lambda: compiled[0](*tensors), store=lambda result: _copy(result, o))

    return [run(i, o) for i, o in zip(inputs, outputs, strict=True)], setup


def _graphs(runs: list[Run], before: Callable[[], None] | None = None) -> tuple[list[Run], Callable[[], None]]:
    """One captured graph for each set; a call is one replay. In device modes it equals what it captures; it is a rival in host modes.
    `before` makes the runs ready."""
    graphs: list[torch.cuda.CUDAGraph] = []
    results: list[Any] = []

    def setup() -> None:
        if before is not None:
            before()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for run in runs:
                run.call()
        side.synchronize()
        for run in runs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results.append(run.call())
            graphs.append(graph)

    def replay(index: int) -> Run:
        return Run(call=lambda: graphs[index].replay(), store=lambda _: runs[index].store(results[index]))

    return [replay(i) for i in range(len(runs))], setup


def _copy(result: Any, outputs: Tensors) -> None:
    """By name where it has names, as `Problem.eager` gives them; otherwise in the order of the outputs."""
    named = isinstance(result, dict) and result.keys() == outputs.keys()
    found = [result[name] for name in outputs] if named else tree_leaves(result)
    for tensor, value in zip(outputs.values(), found, strict=True):
        tensor.copy_(value)
