"""Python candidates: a KernelBench answer, a module that defines `ModelNew`."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.problems import problem_of
from kernelwright.problems.kernelbench import KernelBench
from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Run


def module_runs(source: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None]]:
    """Runs for each set, and the set-up that executes the source: call that only in the process that the candidate may take down.

    Parameters and buffers of `ModelNew` are loaded by name from the problem's, as a state dict, before every run: the inputs of a run are
    fresh, so is its state. Loading is not clocked.
    """
    problem = problem_of(w)
    if not isinstance(problem, KernelBench):
        raise CandidateFault(Outcome.REFUSED, f"a Python candidate answers a KernelBench file; {w.name} is none")
    models: list[torch.nn.Module] = []

    def setup() -> None:
        module = types.ModuleType("answer")
        try:
            exec(compile(source, "<answer>", "exec"), module.__dict__)
            model = module.__dict__["ModelNew"](*problem.init_inputs)
        except KeyError:
            raise CandidateFault(Outcome.COMPILE_ERROR, "the answer defines no class ModelNew") from None
        except Exception as error:  # the candidate's own code: whatever it raises is its fault
            raise CandidateFault(Outcome.COMPILE_ERROR, f"{type(error).__name__}: {error}"[:2000]) from None
        models.append(model.requires_grad_(False))

    return [_run(problem, w, one, models) for one in sets], setup


def _run(problem: KernelBench, w: Workload, one: Bound, models: list[torch.nn.Module]) -> Run:
    specs = problem.tensors(w)
    inputs = {s.name: one.tensors[s.name] for s in specs if s.role == "in"}
    outputs = [(s.name, one.tensors[s.name]) for s in specs if s.role == "out"]
    args, state = problem.split(inputs)

    def call() -> Any:
        return models[0](*args)

    def store(result: Any) -> None:
        # `call` ran with the state of an earlier fill: load this one's and run again, outside the clock
        models[0].load_state_dict(state)
        result = models[0](*args)
        results = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(results) != len(outputs):
            raise CandidateFault(Outcome.WRONG_RESULT, f"it returned {len(results)} values, the problem has {len(outputs)} outputs")
        for (name, want), value in zip(outputs, results, strict=True):
            if not isinstance(value, torch.Tensor) or value.shape != want.shape:
                shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                raise CandidateFault(Outcome.WRONG_RESULT, f"{name} has shape {shape}, want {tuple(want.shape)}")
            want.copy_(value)

    return Run(call=call, store=store)
