"""What a Problem is: a reference in high precision, symbolic axes, an input generator, a tolerance rule.

A Problem never sees a candidate, a device clock or the archive. Its tensors may live on any torch device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from kernelwright.plan import Names
from kernelwright.problems.validators import Finding
from kernelwright.records import Workload

Tensors = dict[str, torch.Tensor]
Pick = Callable[[Tensors], Tensors]

TORCH_DTYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
}
DTYPE_NAMES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}

UNIT_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}
"""Largest relative error of one rounding to nearest."""

VENDOR_FACTOR = 2.0
"""A candidate's relative Frobenius error may be at most this many times the vendor library's own (facts: docs/verification.md)."""


ENOUGH_ROWS = 128


def everything(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True)
class TensorSpec:
    """One buffer of a Workload, as it is stored: row-major, rows `ld` elements apart (the last axis unless padded)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["in", "out"]
    constant: bool = False
    """An input that no kernel before this one writes, a model's weights: a kernel that is launched dependently may read it before it waits
    for its predecessor."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def names(self, row_stride: int, align: int) -> dict[str, int]:
        """What a plan's expressions may name of it (`plan.py`)."""
        return {f"ld_{self.name}": row_stride, f"numel_{self.name}": self.numel, f"align_{self.name}": align}


@dataclass(frozen=True)
class Case:
    """One kind of input of the correctness ladder."""

    name: str
    rung: Literal["exact", "normal", "adversarial"]


@dataclass(frozen=True)
class Cost:
    """The least that any implementation must do: the two terms of the roofline."""

    flops: float
    """Floating-point operations on the unit named below."""
    bytes: float
    """Each input read once, each output written once."""
    unit: str
    """`fp16`, `bf16`, `fp32` matrix or vector unit; `vector` for element-wise work in fp32."""


def one_after_the_other(n: int, w: Workload) -> float:
    """Relative Frobenius error of adding n terms in w's accumulator one after the other: 0.4 to 0.6 sqrt(n) of its unit roundoffs."""
    return 0.5 * math.sqrt(n) * UNIT_ROUNDOFF[w.accumulate]


class Problem(ABC):
    """Subclass one per operation and register it in `kernelwright.problems`."""

    name: ClassVar[str]
    axes: ClassVar[tuple[str, ...]]
    allocates: ClassVar[bool] = True
    """Whether `eager` allocates its outputs, as opposed to writing into given ones (`torch.matmul(out=)`). On the CPU target a
    candidate's clocked call is then charged an allocation of the same size."""

    any_shape: ClassVar[bool] = False
    """Whether it exists for nearly all sizes of its axes, so that the ladder may draw some; `resolve` refuses the others."""
    validates: ClassVar[bool] = False
    """Whether `validate` judges outputs, which may be right in many ways, instead of a comparison with the reference."""
    score: ClassVar[str] = ""
    """Of an open challenge: what its answers are scored by, a quantity that `validate` measures; more is better."""
    state_names: Mapping[str, str] = {}
    """Inputs that a Python answer holds as parameters or buffers, with their dotted path."""

    @abstractmethod
    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        """Buffers in the order of the candidate's interface: inputs, then outputs."""

    def names(self, w: Workload, sms: int) -> Names:
        """What a plan's expressions may name, on buffers without padding."""
        found = Names({**w.axes, "sms": sms})
        for spec in self.tensors(w):
            found |= spec.names(spec.shape[-1] if spec.shape else 1, 256)
        return found

    @abstractmethod
    def cases(self, w: Workload) -> tuple[Case, ...]:
        """Input cases of the ladder that make sense for this Workload, cheapest first."""

    @abstractmethod
    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        """Fresh inputs of their stored shapes and dtypes. Every call draws anew from `rng`."""

    @abstractmethod
    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        """Outputs in float64, from inputs that were exactly representable in the Workload's dtype."""

    @abstractmethod
    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        """The same as a PyTorch user would write it, in the Workload's dtype: the rival `eager`, and the `vendor` whose error is
        the yardstick."""

    def eager_function(self, w: Workload) -> Callable[[Tensors], Tensors]:
        """`eager` of one Workload, with all that depends on sizes alone worked out: what rivals call."""
        return partial(self.eager, w)

    @abstractmethod
    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        """Per output element, in float64: the error that one rounding in each step would explain. The normalised error of an
        output is max |out - ref| / scale."""

    @abstractmethod
    def bound(self, w: Workload) -> float:
        """Largest normalised error that passes."""

    def error_floor(self, w: Workload) -> float:
        """A vendor's relative Frobenius error below this counts as this: what an honest kernel may need (see `evaluate.verify`). The
        default is two unit roundoffs of the output type."""
        return 2 * UNIT_ROUNDOFF.get(w.dtype, UNIT_ROUNDOFF["fp32"])

    def validate(self, w: Workload, inputs: Tensors, outputs: Tensors) -> Finding:
        """Where the problem `validates`: whether the outputs, which may hold anything, are a right answer for the inputs. It trusts nothing
        that an answer says of itself, and draws what it draws at random from the system."""
        raise NotImplementedError

    def limit_us(self, w: Workload) -> float:
        """The longest a launch may take in a timed round: an answer that takes longer has none."""
        return math.inf

    def arguments(self, w: Workload) -> list[Any]:
        """What a Python answer's `ModelNew` is constructed with."""
        return []

    def drawn_state(self) -> Tensors:
        """By the paths in `state_names`, the values that the problem's own module gives its parameters and buffers when it is made now."""
        return {}

    def split(self, inputs: Tensors) -> tuple[list[Any], Tensors]:
        """Arguments of its `forward`, and its state dict."""
        return list(inputs.values()), {}

    @abstractmethod
    def cost(self, w: Workload) -> Cost: ...

    @abstractmethod
    def variants(self, w: Workload) -> tuple[Workload, ...]:
        """Small Workloads for the `shapes` rung: tails on every axis, size 1, size 0, longer and shorter than any tile."""

    def smaller(self, w: Workload) -> Workload:
        """The same at a size that a lint can look into on a CPU. The default is for Problems whose rows are alike: M, N, rows."""
        return w.replace(axes={k: min(v, ENOUGH_ROWS) if k in ("M", "N", "rows") else v for k, v in w.axes.items()})

    def alterable(self, w: Workload) -> tuple[str, ...]:
        """Inputs whose values may change places and stay inputs as `generate` could draw them; the default is all. Between timed launches
        that is how they are made other ones."""
        return tuple(s.name for s in self.tensors(w) if s.role == "in")

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        """A random part of the outputs, so that a check of a screen costs little, and one after each timed launch even less (`fewer` is
        how many times smaller on each side): what picks the inputs that the part depends on, and what picks the part from outputs. The
        default is everything."""
        return everything, everything

    def rows_workload(self, w: Workload, outputs: Tensors) -> Workload:
        """The Workload of that part."""
        return w
