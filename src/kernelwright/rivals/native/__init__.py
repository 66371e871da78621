"""`native`: our own C++ as the expert where no library of PyTorch's is one. On the CPU; compiled when it is first asked for.

A source NAME.cpp beside this file defines `kernel`, which takes every tensor of the problem NAME in order, then every axis as a 64-bit
integer. Rivals' buffers have no padding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from kernelwright.problems import problem_of
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, ScalarArg, TensorArg, Workload
from kernelwright.targets.cpu import CpuTarget
from kernelwright.targets.cpu_child import Program
from kernelwright.targets.target import Bound, Run


def source_of(w: Workload) -> Path | None:
    """The C++ of a Workload's problem; None where there is none."""
    path = Path(__file__).with_name(w.problem.partition(":")[2].replace("-", "_") + ".cpp")
    return path if w.problem.startswith("expert:") and path.exists() else None


def load(w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """Raises ValueError where there is none, CandidateFault where it does not compile."""
    path = source_of(w)
    if path is None:
        raise ValueError(f"there is no native rival for {w.name}")
    tensors = [TensorArg(name=s.name) for s in problem_of(w).tensors(w)]
    plan = LaunchPlan(launches=(Launch(kernel="kernel", args=(*tensors, *(ScalarArg(ctype="i64", value=axis) for axis in w.axes))),))
    program = Program(plan, _compiled(path), sets, lambda size: torch.empty(size, dtype=torch.uint8), ())

    def run(index: int) -> Run:
        return Run(call=lambda: program.launch(index), store=lambda _: None)

    return [run(i) for i in range(len(sets))], program.load


@lru_cache(maxsize=32)
def _compiled(path: Path) -> str:
    """The library: compiled once in a process, in a folder that stays until it ends."""
    candidate = Candidate(
        kind="cpu", source=path.read_text(), plan=LaunchPlan(launches=(Launch(kernel="kernel", args=()),)), origin=_ORIGIN
    )
    folder = tempfile.TemporaryDirectory(prefix="kernelwright-native-", ignore_cleanup_errors=True)
    _folders.append(folder)
    return CpuTarget().compile(candidate, Path(folder.name)).artifact


_ORIGIN = Origin(kind="rival", name="native")
_folders: list[tempfile.TemporaryDirectory[str]] = []
