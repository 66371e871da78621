"""Python candidates: a KernelBench answer, a module that defines `ModelNew`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.problems import problem_of
from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Run


def module_runs(source: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None]]:
    """Runs for each set, and the set-up that executes the source: call it only in the process that the candidate may take down.

    The model's parameters are the problem's own, taken from the buffers before every run.
    """
    problem = problem_of(w)
    if not hasattr(problem, "answer"):
        raise CandidateFault(Outcome.REFUSED, f"a Python candidate answers a KernelBench file; {w.name} is none")
    models: list[Any] = []

    def setup() -> None:
        try:
            models.append(problem.answer(w, source, sets[0].tensors))  # pyright: ignore[reportAttributeAccessIssue]
        except Exception as error:  # the candidate's own code ran: whatever it raised is its fault
            raise CandidateFault(Outcome.COMPILE_ERROR, f"{type(error).__name__}: {error}"[:2000]) from None

    def run(one: Bound) -> Run:
        names = [s.name for s in problem.tensors(w) if s.role == "out"]

        def call() -> Any:
            with torch.no_grad():
                return models[0](one.tensors)

        def store(result: Any) -> None:
            results = result if isinstance(result, tuple | list) else (result,)
            if len(results) != len(names):
                raise CandidateFault(Outcome.WRONG_RESULT, f"it returned {len(results)} values, the problem has {len(names)} outputs")
            for name, value in zip(names, results, strict=True):
                want = one.tensors[name]
                if not isinstance(value, torch.Tensor) or value.shape != want.shape:
                    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                    raise CandidateFault(Outcome.WRONG_RESULT, f"{name} has shape {shape}, want {tuple(want.shape)}")
                want.copy_(value)

        return Run(call=call, store=store)

    return [run(one) for one in sets], setup
