"""The Family chain_cpu: element-wise, row-reduction and row-scan programs as one fused, vectorised C++ function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from kernelwright.families.chain_cpu.render import CTYPES, Buffer, Choices, Kernel
from kernelwright.families.chain_cpu.space import illegal_in, space_of
from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.problems.rowprogram import RowProgram
from kernelwright.records import DTYPES, Candidate, Launch, LaunchPlan, ScalarArg, TensorArg, Workload, WorkspaceArg

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
"""No -ffast-math: NaN and infinity must come out as IEEE 754 and PyTorch say."""


@dataclass(frozen=True)
class Task:
    """A Workload as this family sees it."""

    program: RowProgram
    buffers: tuple[Buffer, ...]
    rows: int
    cols: int
    named_axes: bool
    """Whether the plan may say rows and cols by name."""
    constants: dict[int, str]
    requires: tuple[str, ...]


class ChainCpu(Family):
    name: ClassVar[str] = "chain_cpu"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if device.target != "cpu":
            return "it writes C++ for the cpu target"
        try:
            task = task_of(w)
        except ValueError as error:
            return str(error)
        for b in task.buffers:
            if b.role == "out" and b.dtype not in ("fp32", "fp16", "bf16"):
                return f"its output {b.name} is {b.dtype}; it writes fp32, fp16 and bf16"
        for name, n in task.program.outputs.items():
            if task.program.nodes[n].shape not in ("full", "row"):
                return f"its output {name} has no rows"
        return None

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        task = task_of(w)
        wide = [b for b in task.buffers if b.role == "out" and task.program.nodes[task.program.outputs[b.name]].shape == "full"]
        bytes_out = task.rows * task.cols * sum(DTYPES[b.dtype] for b in wide)
        return space_of(task.program, bytes_out, any(b.dtype == "fp32" and b.strided for b in wide), device)

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return illegal_in(self.space(w, device), config)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        space = self.space(w, device)
        guesses: list[Config] = [
            {"unroll": 4, "accumulators": 4, "keep": "output", "quotient": "newton", "exp_degree": 5},
            {"unroll": 2, "accumulators": 2, "keep": "scratch", "quotient": "newton", "exp_degree": 6},
            {"unroll": 4, "accumulators": 4, "keep": "output", "quotient": "newton", "exp_degree": 5, "stores": "streaming"},
            {"unroll": 8, "accumulators": 4, "keep": "output", "quotient": "newton", "exp_degree": 5, "prefetch": 1024},
            {"unroll": 1, "accumulators": 1, "keep": "scratch", "quotient": "divide", "exp_degree": 5},
        ]
        seeds: list[Config] = []
        for guess in guesses:
            config = {name: guess[name] if guess.get(name) in values else values[0] for name, values in space.items()}
            if "keep" in space and config["keep"] == "recompute":
                config["keep"] = "scratch"
            if "threads" in space:
                config["threads"] = space["threads"][-1]
            if config not in seeds:
                seeds.append(config)
        return tuple(seeds)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        if reason := self.illegal(config, w, device):
            raise ValueError(f"chain_cpu cannot render this config for {w.name}: {reason}")
        task = task_of(w)
        kernel = Kernel(w.problem, task.program, task.buffers, task.constants, Choices(**config))  # pyright: ignore[reportArgumentType]
        rows, cols = ("rows", "cols") if task.named_axes else (task.rows, task.cols)
        args = [TensorArg(name=b.name) for b in task.buffers]
        args += [ScalarArg(ctype="i64", value=v) for v in (rows, cols, *(f"ld_{b.name}" for b in task.buffers if b.strided))]
        threads = kernel.choices.threads
        args += [WorkspaceArg()] if kernel.slots else []
        plan = LaunchPlan(
            launches=(Launch(kernel="kernel", args=tuple(args)),),
            workspace=f"{4 * len(kernel.slots) * threads} * {cols}" if kernel.slots else 0,
            requires=task.requires,
        )
        return Candidate(kind="cpu", source=kernel.source(), plan=plan, flags=FLAGS, origin=self.origin(config))


@lru_cache(maxsize=64)
def task_of(w: Workload) -> Task:
    """Raises ValueError, with the reason as a clause, when the Workload is not a row program."""
    from kernelwright.problems import problem_of

    problem = problem_of(w)
    trace = getattr(problem, "program", None)
    if trace is None:
        raise ValueError("it writes element-wise, row-reduction and row-scan programs only")
    program: RowProgram = trace(w)
    specs = problem.tensors(w)
    shapes = {s.name: s.shape for s in specs}
    full = [shapes[n.name] for n in program.nodes if n.op == "input" and n.shape == "full"]
    full += [shapes[name] for name, n in program.outputs.items() if program.nodes[n].shape == "full"]
    if not full:
        raise ValueError("it needs a tensor of rows and columns")
    rows, cols = math.prod(full[0][:-1]), full[0][-1]
    buffers = tuple(Buffer(s.name, s.dtype, s.role, len(s.shape) > 1) for s in specs)
    unknown = [b for b in buffers if b.dtype not in CTYPES]
    if unknown:
        raise ValueError(f"it cannot load {unknown[0].dtype}")
    named = (w.axes.get("rows"), w.axes.get("cols")) == (rows, cols)
    constants, requires = _axis_constants(w, trace, program, cols) if named else ({}, ())
    return Task(program, buffers, rows, cols, named, constants, requires)


def _axis_constants(
    w: Workload, trace: Callable[[Workload], RowProgram], program: RowProgram, cols: int
) -> tuple[dict[int, str], tuple[str, ...]]:
    """The program is traced at one size. Tracing it at another tells which constants stand for the number of columns, so that the kernel
    serves every shape; what it cannot tell makes the kernel demand this number of columns."""
    other = 2 * cols + 2
    try:
        wider = trace(w.replace(axes={**w.axes, "cols": other}))
    except ValueError:
        return {}, (f"cols == {cols}",)
    if [n.replace(value=0.0) for n in wider.nodes] != [n.replace(value=0.0) for n in program.nodes]:
        return {}, (f"cols == {cols}",)
    forms = {"(float)cols": lambda c: float(c), "1.0f / (float)cols": lambda c: 1.0 / c if c else math.inf}
    forms["(float)(cols - 1)"] = lambda c: float(c - 1)
    constants: dict[int, str] = {}
    for i, (a, b) in enumerate(zip(program.nodes, wider.nodes, strict=True)):
        if a.value != b.value:
            found = next((text for text, form in forms.items() if (form(cols), form(other)) == (a.value, b.value)), None)
            if found is None:
                return {}, (f"cols == {cols}",)
            constants[i] = found
    return constants, ()
