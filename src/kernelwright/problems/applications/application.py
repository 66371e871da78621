"""The form of an application: a problem of the suite `experts` whose answers a validator judges instead of a comparison.

How to add one. Subclass `Application` beside its like, fill in the attributes of an `Expert` (problems/experts/expert.py), and write

    instance   fresh inputs of a case; their structure is the author's, so by default none of their values change places between launches
    solve      the plain rival, in PyTorch: outputs in their order, computed on the inputs' device
    judge      the validator, a pure function in problems/validators/: it must never raise, whatever the outputs hold
    mistakes   wrong kernels, three or more, as every problem of the suite has them

An open challenge sets `kind`, `score` (what `judge` measures, more is better) and has an axis `ms`, the time that a launch may take.
Outputs of variable size are buffers of a capacity with a length beside them. int32 holds all that is no number; -1, the poison, should be
no right value of what must be written."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

import torch

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.problem import TORCH_DTYPES, Case, Tensors
from kernelwright.problems.validators import Finding
from kernelwright.records import DTYPES, Workload

SHARE_OF_TIME = 0.5
"""Of a challenge's time, which our own rivals search for."""


class Application(Expert):
    kind: ClassVar[Literal["kernel", "module", "application", "challenge"]] = "application"
    validates = True
    normals, adversarial = ("normal",), ()
    compiles: ClassVar[bool] = False
    """Whether torch.compile can make something of `solve`: no loop in it depends on values."""
    judged_by: ClassVar[ModuleType]
    """The module in problems/validators/."""
    read: ClassVar[tuple[str, ...]]
    """Inputs of which every byte must be read: what the roofline counts."""
    alters: ClassVar[tuple[str, ...]] = ()
    """Inputs whose values may change places between timed launches."""

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        raise NotImplementedError

    def solve(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        raise NotImplementedError

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        raise NotImplementedError

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        found = self.instance(self.sizes(w), case.name, rng, device)
        return {s.name: found[s.name].to(TORCH_DTYPES[s.dtype]).view(s.shape) for s in self.tensors(w) if s.role == "in"}

    def validate(self, w: Workload, inputs: Tensors, outputs: Tensors) -> Finding:
        return self.judge(self.sizes(w), inputs, outputs)

    def eager_form(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        return self.solve(n, **inputs)

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        """A right answer, as float64."""
        return {k: v.double() for k, v in self.eager(w, inputs).items()}

    def alterable(self, w: Workload) -> tuple[str, ...]:
        return self.alters

    def traffic(self, w: Workload) -> float:
        return float(sum(s.numel * DTYPES[s.dtype] for s in self.tensors(w) if s.name in self.read))

    def flops(self, n: Sizes) -> float:
        """Of those counted as floating-point operations; integer work has no floor of its own."""
        return 0.0

    def rules(self) -> str:
        """What an author of answers has to know beside the shapes: the validator's own text, which has the formats and tolerances."""
        return inspect.getsource(self.judged_by)

    def limit_us(self, w: Workload) -> float:
        return 1000.0 * w.axes["ms"] if "ms" in w.axes else math.inf


def but(outputs: tuple[torch.Tensor, ...], index: int, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs with one replaced: for mistakes."""
    return (*outputs[:index], other.to(outputs[index].dtype), *outputs[index + 1 :])


def resized(n: Sizes, **sizes: int) -> Sizes:
    """Other sizes: for mistakes."""
    return SimpleNamespace(**{**vars(n), **sizes})


def within(ms: int) -> Callable[[], bool]:
    """Says whether there is time left of our own rivals' share."""
    end = time.perf_counter() + SHARE_OF_TIME * ms / 1000
    return lambda: time.perf_counter() < end
