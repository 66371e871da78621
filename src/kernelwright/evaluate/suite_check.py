"""The suite `experts` proves itself: its references by second implementations, its experts right, and wrong kernels rejected.

All on small sizes, by the same ladder that judges candidates, in this process: what runs here is ours. `kernelwright lint experts` is the
fourth part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from kernelwright import rivals
from kernelwright.evaluate.buffers import Buffers, Shape
from kernelwright.evaluate.verify import Climber, Ladder
from kernelwright.problems.experts import Expert
from kernelwright.problems.problem import VENDOR_FACTOR, Tensors
from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Contender, Fresh, Run

Loads = Callable[[Workload, Sequence[Bound]], list[Run]]

INPUT_RUNGS = ("exact", "normal", "adversarial")
AGREEMENT = 1e-9
"""Two float64 implementations may differ by so much of the largest output: sums of 10^4 terms and series for exp leave 1e-12."""


class _Memory:
    def __init__(self, device: str):
        self._device = device

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)


class _Called(Contender):
    """Functions called in this process; never timed."""

    in_place = False

    def __init__(self, runs: Sequence[Run]):
        self._runs = runs

    def run(self, index: int = 0) -> None:
        run = self._runs[index]
        try:
            if run.prepare:
                run.prepare()
            run.store(run.call())
        except RuntimeError as error:
            raise CandidateFault(Outcome.LAUNCH_ERROR, str(error).strip().partition("\n")[0]) from error

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        raise NotImplementedError


def climb(problem: Expert, w: Workload, loads: Loads, *, rungs: tuple[str, ...] = INPUT_RUNGS, device: str = "cpu", seed: int = 0) -> str:
    """Why it failed, as the Verdict would say; empty for what passed every check."""
    memory, rng = _Memory(device), torch.Generator(device).manual_seed(seed)

    def make_buffers(w: Workload, shape: Shape | None = None) -> Buffers:
        return Buffers(memory, problem, w, shape=shape)

    buffers = make_buffers(w)
    # poison is no index into anything: what loads may run at once
    buffers.fill(problem.generate(w, next(c for c in problem.cases(w) if c.rung == "normal"), rng, device))
    try:
        one = Climber(_Called(loads(w, buffers.bounds)), lambda w, b: _Called(loads(w, b.bounds)), lambda doing: None)
        Ladder(problem, rng, device, make_buffers).run(w, buffers, [one], rungs)
    except CandidateFault as fault:
        return f"{fault.outcome}: {fault}"
    return f"{one.fault.outcome}: {one.fault}" if one.fault else ""


def rival(name: str, w: Workload, sets: Sequence[Bound]) -> list[Run]:
    """Loads a rival, as the judge does. Raises CandidateFault."""
    runs, setup = rivals.load(name, w, sets)
    if setup is not None:
        setup()
    return runs


def called(problem: Expert, function: Callable[[Workload, Tensors], Tensors], w: Workload, sets: Sequence[Bound]) -> list[Run]:
    """Loads a function of inputs."""
    specs = problem.tensors(w)

    def run(one: Bound) -> Run:
        inputs, outputs = ({s.name: one.tensors[s.name] for s in specs if s.role == role} for role in ("in", "out"))

        def store(results: Tensors) -> None:
            for name, out in outputs.items():
                out.copy_(results[name])

        return Run(call=lambda: function(w, inputs), store=store)

    return [run(one) for one in sets]


def disagreement(problem: Expert, w: Workload, seed: int = 0) -> str:
    """Where reference and second implementation differ on any case without a NaN; empty where they agree."""
    rng = torch.Generator().manual_seed(seed)
    for case in problem.cases(w):
        if case.name == "nan":
            continue
        inputs = problem.generate(w, case, rng, "cpu")
        reference, second = problem.reference(w, inputs), problem.check(w, inputs)
        for name, ref in reference.items():
            if ref.shape != second[name].shape:
                return f"{case.name}: {name} is {tuple(ref.shape)}, by the second implementation {tuple(second[name].shape)}"
            if not ref.numel():
                continue
            largest = float((ref - second[name]).abs().max())
            if not largest <= (0.0 if name in problem.exactly else AGREEMENT * float(ref.abs().max())):
                return f"{case.name}: {name} differs by {largest:.3g}"
    return ""


def mutants(problem: Expert, w: Workload) -> dict[str, Loads]:
    """Wrong kernels by what is wrong with them: the problem's own mistakes, and such as can be made of any."""
    n, right, specs = problem.sizes(w), problem.eager_function(w), problem.tensors(w)
    made: dict[str, Callable[[Workload, Tensors], Tensors]] = {}
    for name, mistake in problem.mistakes.items():
        made[name] = lambda w, x, f=mistake: problem.in_type(w, problem.named(f(problem, n, **x)))
    for spec in specs:
        if spec.role == "in" and spec.dtype.startswith("int"):
            made[f"{spec.name} of another place"] = lambda w, x, k=spec.name: right(x | {k: x[k].flatten().roll(1).view(x[k].shape)})
        elif spec.role == "in":
            made[f"without {spec.name}"] = lambda w, x, k=spec.name: right(x | {k: torch.zeros_like(x[k])})
    factor = 1 + 4 * VENDOR_FACTOR * problem.error_floor(w)
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "wrong scale": lambda y: y * factor if y.is_floating_point() else y + 1,
        "last element not written": lambda y: torch.cat((y[..., :-1], torch.zeros_like(y[..., -1:]) - (not y.is_floating_point())), -1),
        "off by one": lambda y: y.flatten().roll(1).view(y.shape) if y.numel() > 1 else y + 1,
    }
    for name, change in changes.items():
        made[name] = lambda w, x, f=change: {k: f(y) for k, y in right(x).items()}
    if problem.coarse_shows and not problem.exactly:
        made["half the precision"] = lambda w, x: right({k: _coarse(t) for k, t in x.items()})
    return {name: partial(called, problem, function) for name, function in made.items()}


def _coarse(x: torch.Tensor) -> torch.Tensor:
    """float32 as bf16 has it, half types as fp8 (e5m2) has them."""
    if not x.is_floating_point() or x.element_size() == 1:
        return x
    return x.to(torch.bfloat16 if x.element_size() == 4 else torch.float8_e5m2).to(x.dtype)


def survivors(problem: Expert, w: Workload, *, device: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """Mutants on one Workload: how many, and the names of those that the ladder lets through."""
    every = mutants(problem, w)
    return {
        "mutants": len(every),
        "passed": [name for name, loads in every.items() if not climb(problem, w, loads, device=device, seed=seed)],
    }
