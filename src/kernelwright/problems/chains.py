"""`chain:NAME`: twelve element-wise, normalising, reducing and scanning operations over a (rows, cols) matrix.

Each is one entry of CHAINS: the PyTorch function as a user writes it, and its tensors. Everything else follows from it: `eager`
is the function in the Workload's dtype, the reference is the function in float64, the program for kernels is `lower` of it.
A kernel computes in float32 from the exact inputs and rounds once, to the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F

from kernelwright.problems.builder import ARITHMETIC
from kernelwright.problems.draws import normal, place, uniform
from kernelwright.problems.lower import Input, lower
from kernelwright.problems.problem import (
    TORCH_DTYPES,
    UNIT_ROUNDOFF,
    Case,
    Cost,
    Pick,
    Problem,
    Tensors,
    TensorSpec,
    everything,
    one_after_the_other,
)
from kernelwright.problems.rounding import error_scale
from kernelwright.problems.rowprogram import RowProgram
from kernelwright.records import DTYPES, Workload

MATRIX, COLUMNS, ROWS = ("rows", "cols"), ("cols",), ("rows",)
RMS_EPS, LAYER_EPS = 1e-6, 1e-5


@dataclass(frozen=True)
class Chain:
    """One entry of the table."""

    name: str
    formula: str
    function: Callable[..., torch.Tensor]
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"x": MATRIX})
    output: tuple[str, ...] = MATRIX
    targets: tuple[str, ...] = ()
    """Inputs that hold one column number a row, int64, whatever the Workload's dtype."""
    along_row: bool = False
    """It reduces or scans along the row."""
    even_cols: bool = False
    exact: bool = False
    """Small integers give a result that float32 holds exactly."""
    infinity: float = math.inf
    """What the `inf` case places."""
    definition: Callable[..., torch.Tensor] | None = None
    """The reference, and what roundings are tried on, where `function`, which is what PyTorch users call, is one fused kernel that departs
    from the formula or hides its steps."""


def new_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def swish_div_clamp_tanh_clamp(x: torch.Tensor) -> torch.Tensor:
    x = x * torch.sigmoid(x)
    x = torch.clamp(x / 2.0, min=-1.0, max=1.0)
    return torch.clamp(torch.tanh(x), min=-1.0, max=1.0)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, RMS_EPS)


def rmsnorm_written_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + RMS_EPS) * weight


def layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, LAYER_EPS)


def layernorm_written_out(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + LAYER_EPS) * weight + bias


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, dim=-1)


def log_softmax_nll(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(x, dim=-1), target, reduction="none")


def cumsum(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, dim=-1)


def bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias) + residual


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def l2_normalise(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, p=2.0, dim=-1)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return F.hardswish(x)


CHAINS: tuple[Chain, ...] = (
    Chain("new-gelu", "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", new_gelu),
    Chain("swish-div-clamp-tanh-clamp", "clamp(tanh(clamp(x sigmoid(x) / 2, -1, 1)), -1, 1)", swish_div_clamp_tanh_clamp),
    Chain(
        "rmsnorm",
        "x / sqrt(mean(x^2) + 1e-6) * weight, mean along the row",
        rmsnorm,
        {"x": MATRIX, "weight": COLUMNS},
        along_row=True,
        # the fused kernel on CUDA turns a whole row with an infinity into NaN (seen with torch 2.11); the formula gives zeros and one NaN
        definition=rmsnorm_written_out,
    ),
    Chain(
        "layernorm",
        "(x - mean) / sqrt(var + 1e-5) * weight + bias, mean and biased variance along the row",
        layernorm,
        {"x": MATRIX, "weight": COLUMNS, "bias": COLUMNS},
        along_row=True,
        # inside the fused function no rounding can be disturbed; that of the mean decides in rows of two large, almost equal elements
        definition=layernorm_written_out,
    ),
    Chain("softmax", "exp(x - max) / sum(exp(x - max)), along the row", softmax, along_row=True),
    Chain(
        "log-softmax-nll",
        "log(sum(exp(x))) - x[target], one loss a row",
        log_softmax_nll,
        {"x": MATRIX, "target": ROWS},
        output=ROWS,
        targets=("target",),
        along_row=True,
    ),
    Chain("cumsum", "running sum along the row", cumsum, along_row=True, exact=True),
    Chain(
        "bias-gelu-residual",
        "z/2 (1 + erf(z / sqrt(2))) + residual, z = x + bias",
        bias_gelu_residual,
        {"x": MATRIX, "bias": COLUMNS, "residual": MATRIX},
        # PyTorch's vectorised CPU gelu turns +inf into NaN (seen with torch 2.13); gelu(-inf) is NaN everywhere
        infinity=-math.inf,
    ),
    Chain(
        "rotary",
        "x cos + cat(-x[cols/2:], x[:cols/2]) sin, the rotate-half convention",
        rotary,
        {"x": MATRIX, "cos": MATRIX, "sin": MATRIX},
        even_cols=True,
    ),
    Chain("l2-normalise", "x / max(sqrt(sum(x^2)), 1e-12), along the row", l2_normalise, along_row=True),
    Chain("silu-mul", "gate sigmoid(gate) up", silu_mul, {"gate": MATRIX, "up": MATRIX}),
    Chain("hardswish", "x clamp(x + 3, 0, 6) / 6", hardswish),
)

SHAPES = ((1, 1), (1, 7), (3, 17), (5, 64), (2, 1000), (7, 1025), (4, 4099), (0, 8), (8, 0))
SAMPLED_ELEMENTS = 2**14
"""Float64 references of so many elements take under three milliseconds."""
EVEN_SHAPES = ((1, 2), (1, 6), (3, 18), (5, 64), (2, 1000), (7, 1026), (4, 4098), (0, 8), (8, 0))


class ChainProblem(Problem):
    """The Problem of one entry. Workloads have axes rows and cols, dtype fp16, bf16 or fp32, and accumulate in fp32."""

    axes = ("rows", "cols")
    any_shape = True

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.name = f"chain:{chain.name}"  # pyright: ignore[reportAttributeAccessIssue]: one class serves all entries

    def refuses(self, w: Workload) -> str | None:
        """Why there is no such Workload, as a clause after the name; None for one that is defined."""
        if self.chain.even_cols and w.axes["cols"] % 2:
            return f"joins two halves of a row: cols = {w.axes['cols']} must be even"
        if self.chain.targets and w.axes["rows"] and not w.axes["cols"]:
            return "picks a class of each row: cols must be at least 1"
        return None

    def matrix(self, w: Workload) -> tuple[int, int]:
        """(rows, cols) of the matrix that `program` is about."""
        return w.axes["rows"], w.axes["cols"]

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        inputs = (
            TensorSpec(name, self._shape(w, axes), "int64" if name in self.chain.targets else w.dtype, "in")
            for name, axes in self.chain.inputs.items()
        )
        return (*inputs, TensorSpec("y", self._shape(w, self.chain.output), w.dtype, "out"))

    @staticmethod
    def _shape(w: Workload, axes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(w.axes[a] for a in axes)

    def cases(self, w: Workload) -> tuple[Case, ...]:
        cases = [
            Case("normal", "normal"),
            Case("wide", "normal"),
            Case("addressing", "normal"),
            Case("large", "adversarial"),
            Case("constant", "adversarial"),
            Case("denormal", "adversarial"),
            Case("nan", "adversarial"),
            Case("inf", "adversarial"),
        ]
        return (Case("integer", "exact"), *cases) if self.chain.exact else tuple(cases)

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        inputs: Tensors = {}
        for spec in self.tensors(w):
            if spec.role == "in" and spec.name in self.chain.targets:
                inputs[spec.name] = torch.randint(max(1, w.axes["cols"]), spec.shape, generator=rng, device=device)
            elif spec.role == "in":
                inputs[spec.name] = _draw(w, case.name, spec.shape, rng, device)
        if case.name in ("nan", "inf"):
            place(inputs[next(iter(inputs))], math.nan if case.name == "nan" else self.chain.infinity, rng)
        return inputs

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return self._define({k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        return {"y": self.chain.function(**inputs)}

    def _define(self, inputs: Tensors) -> Tensors:
        return {"y": (self.chain.definition or self.chain.function)(**inputs)}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        return error_scale(self._define, inputs, reference, w.dtype, w.accumulate)

    def bound(self, w: Workload) -> float:
        # sixteen for approximations of exp, tanh and erf; a sum of n terms in float32 gathers sqrt(n) roundings
        return 16.0 + (math.sqrt(w.axes["cols"]) if self.chain.along_row else 0.0)

    def error_floor(self, w: Workload) -> float:
        # a kernel's own exp and tanh may be off by two or three units where a library's are off by one, and torch sums in float64 on CPUs
        # (cumsum) or in many parts
        sums = one_after_the_other(w.axes["cols"], w) if self.chain.along_row else 0.0
        return max(4 * UNIT_ROUNDOFF[w.dtype], sums)

    def program(self, w: Workload) -> RowProgram:
        """What the chain families write kernels from. Raises LoweringError (none of the twelve does)."""
        return _program(self.chain.name, w.axes["rows"], w.axes["cols"])

    def cost(self, w: Workload) -> Cost:
        flops = program_flops(self.program(w), *self.matrix(w))
        size = sum(spec.numel * DTYPES[spec.dtype] for spec in self.tensors(w))
        return Cost(flops=flops, bytes=float(size), unit="vector")

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        shapes = EVEN_SHAPES if self.chain.even_cols else SHAPES
        # a class number among zero classes does not exist
        shapes = [s for s in shapes if s[1] > 0 or not self.chain.targets]
        return tuple(w.replace(axes=dict(zip(self.axes, s, strict=True))) for s in shapes)

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        rows, cols = self.matrix(w)
        count = max(16, SAMPLED_ELEMENTS // fewer // max(1, cols))
        if rows <= count:
            return everything, everything
        picked = torch.randint(rows, (count,), device=outputs["y"].device)

        def of_inputs(inputs: Tensors) -> Tensors:
            return {k: v.index_select(0, picked) if self.chain.inputs[k][0] == "rows" else v for k, v in inputs.items()}

        return of_inputs, lambda outputs: {"y": outputs["y"].index_select(0, picked)}

    def rows_workload(self, w: Workload, outputs: Tensors) -> Workload:
        return w.replace(axes=w.axes | {"rows": outputs["y"].shape[0]})


@lru_cache(maxsize=512)
def _program(name: str, rows: int, cols: int) -> RowProgram:
    chain = next(c for c in CHAINS if c.name == name)
    sizes = {"rows": rows, "cols": cols}
    inputs = {
        key: Input(axes, tuple(sizes[a] for a in axes), torch.int64 if key in chain.targets else torch.float32)
        for key, axes in chain.inputs.items()
    }
    return lower(chain.function, inputs, ("y",))


def program_flops(program: RowProgram, rows: int, cols: int) -> float:
    """Arithmetic nodes times the elements each works on; a reduction or scan counts its argument."""
    size = {"full": rows * cols, "row": rows, "col": cols, "one": 1}
    shapes = [n.shape for n in program.nodes]
    arithmetic = ((n.shape, *(shapes[a] for a in n.args)) for n in program.nodes if n.op in ARITHMETIC)
    return float(sum(max(size[s] for s in involved) for involved in arithmetic))


def _draw(w: Workload, case: str, shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str) -> torch.Tensor:
    dtype = TORCH_DTYPES[w.dtype]
    if case == "integer":
        # every partial sum, in any order, stays an integer that the output type holds: |x| <= q on every step-th column
        limit = round(1 / UNIT_ROUNDOFF[w.dtype])
        cols = max(1, w.axes["cols"])
        q, step = max(1, limit // cols), math.ceil(cols / limit)
        x = torch.randint(-q, q + 1, shape, generator=rng, device=device)
        return (x * (torch.arange(shape[-1], device=device) % step == 0)).to(dtype)
    x = normal(shape, rng, device)
    if case == "wide":
        # fp16 ends at 65504: products of two such values must stay below
        top = 5 if w.dtype == "fp16" else 6
        x *= uniform(shape, rng, device).mul_(top + 6).sub_(6).exp2_()
    elif case == "addressing":
        # a value of its own in every place, steps larger than any tolerance within a row
        x = uniform(shape, rng, device).add_(1).mul_(2).copysign_(x)
    elif case == "large":
        # exp overflows float32 above 88: the maximum must be subtracted, tanh and sigmoid must saturate
        x = x.sign() * 80 + x
    elif case == "constant" and shape:
        x = x[..., :1].expand(shape).contiguous()
    elif case == "denormal":
        x *= 2.0**-20 if w.dtype == "fp16" else 2.0**-130
    return x.to(dtype)


PROBLEMS: tuple[ChainProblem, ...] = tuple(ChainProblem(chain) for chain in CHAINS)
