"""PyTorch as a rival: eager, torch.compile, and the eager call as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.problems import problem_of
from kernelwright.problems.problem import Problem, Tensors
from kernelwright.records import Workload
from kernelwright.targets.target import Bound, Run

_COMPILE_MODES = {"compile": "default", "compile-max": "max-autotune"}


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """`eager`, `compile`, `compile-max` (max-autotune; its CUDA graphs are off on buffers we own), `graph`."""
    problem = problem_of(w)
    inputs = [{s.name: one.tensors[s.name] for s in problem.tensors(w) if s.role == "in"} for one in sets]
    outputs = [{s.name: one.tensors[s.name] for s in problem.tensors(w) if s.role == "out"} for one in sets]
    if w.problem == "gemm" and name in ("eager", "graph"):
        runs = [_matmul_out(w, i, o) for i, o in zip(inputs, outputs, strict=True)]
    elif name in _COMPILE_MODES:
        return _compiled(name, problem, w, inputs, outputs)
    else:
        runs = [_eager(problem, w, i, o) for i, o in zip(inputs, outputs, strict=True)]
    if name == "graph":
        return _graphs(runs)
    return runs, None


def _eager(problem: Problem, w: Workload, inputs: Tensors, outputs: Tensors) -> Run:
    function = problem.eager_function(w)
    return Run(call=lambda: function(inputs), store=lambda result: _copy(result, outputs))


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


def _graphs(runs: list[Run]) -> tuple[list[Run], Callable[[], None]]:
    """One captured graph for each set; a call is one replay. In device modes it equals eager; it is a rival in host modes."""
    graphs: list[torch.cuda.CUDAGraph] = []
    results: list[Any] = []

    def setup() -> None:
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


def _copy(result: Tensors, outputs: Tensors) -> None:
    for name, tensor in outputs.items():
        tensor.copy_(result[name])
