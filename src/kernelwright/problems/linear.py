"""`linear`: a product with what follows it in a layer, in fp16 or bf16: bias, residual, activation, BLAS's alpha and beta.

The steps are those of `kernelwright.problems.epilogue`. Beside gemm's a and b, the inputs are `bias` (N) and `addend` (M x N), each where a
step names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
import torch.nn.functional as F

from kernelwright.problems.draws import place
from kernelwright.problems.epilogue import parse
from kernelwright.problems.gemm import EXACT_LIMIT, Gemm, picked
from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Case, Cost, Tensors, TensorSpec
from kernelwright.records import DTYPES, Workload

_ACTIVATION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
_STEEPEST, _BEND = 1.13, 0.8
"""Bounds of the first and second derivative of all activations (gelu: 1.1289 at sqrt 2, and 2 phi(0) = 0.798)."""


class Linear(Gemm):
    name = "linear"
    allocates = True

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        a, b, c = super().tensors(w)
        e, more = parse(w.epilogue), []
        if e.bias:
            more.append(TensorSpec("bias", (w.axes["N"],), w.dtype, "in"))
        if e.added:
            more.append(TensorSpec("addend", c.shape, w.dtype, "in"))
        return (a, b, *more, c)

    def cases(self, w: Workload) -> tuple[Case, ...]:
        """Without gemm's exact cases where an activation, or a factor with many bits, makes them inexact."""
        return tuple(case for case in super().cases(w) if case.rung != "exact" or _integers(w) is not None)

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        inputs = super().generate(w, case, rng, device)
        if case.name == "normal" and w.axes["K"]:
            # weights as layers have them: sums of about 1, where activations bend, and no smaller than bias and addend
            inputs["b"] *= 2.0 ** -round(math.log2(w.axes["K"]) / 2)
        dtype, limits = TORCH_DTYPES[w.dtype], _integers(w)
        for spec in self.tensors(w)[2:-1]:
            if case.rung == "exact":
                assert limits is not None
                most = limits[1 if spec.name == "bias" else 2]
                x = torch.randint(-most, most + 1, spec.shape, generator=rng, device=device).to(dtype)
            else:
                x = self._draw(w, case, spec.shape, rng, device)
            if case.name in ("nan", "inf"):
                place(x, math.nan if case.name == "nan" else math.inf, rng)
            inputs[spec.name] = x
        return inputs

    def _largest_sum(self, w: Workload) -> int:
        """So that every step, rounded to the Workload's type, is exact."""
        limits = _integers(w)
        return super()._largest_sum(w) if limits is None else limits[0]

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return {"c": self._steps(w, inputs)[-1][1]}

    def _steps(self, w: Workload, inputs: Tensors) -> list[tuple[str, torch.Tensor]]:
        """Each step and the value after it, in float64; first the product times alpha."""
        e = parse(w.epilogue)
        x = super().reference(w, inputs)["c"] * e.alpha
        steps = [("product", x)]
        if e.added == "before":
            steps.append(("addend", x := x + e.factor * inputs["addend"].double()))
        if e.bias:
            steps.append(("bias", x := x + inputs["bias"].double()))
        if e.activation:
            steps.append(("activation", x := _ACTIVATION[e.activation](x)))
        if e.added == "after":
            steps.append(("addend", x + inputs["addend"].double()))
        return steps

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        """addmm where it has the steps, as `torch.nn.functional.linear` comes down to, then one operation after the other."""
        e = parse(w.epilogue)
        a, b = self._logical(w, inputs)
        bias = inputs["bias"] if e.bias else None
        if e.beta is not None:
            x = torch.addmm(inputs["addend"], a, b, beta=e.beta, alpha=e.alpha)
            x = x if bias is None else x + bias
        elif bias is not None:
            x = torch.addmm(bias, a, b, alpha=e.alpha)
        else:
            x = torch.matmul(a, b)
            x = x if e.alpha == 1 else x * e.alpha
        if e.added == "before" and e.beta is None:
            x = x + inputs["addend"]
        if e.activation:
            x = _ACTIVATION[e.activation](x)
        return {"c": x + inputs["addend"] if e.added == "after" else x}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        """gemm's error times alpha, then one rounding to the Workload's type in each step: what separate operations in PyTorch come to.

        An error e goes through an activation f as at most min(1.13 e, |f'| e + 0.4 e^2); f itself costs 4 roundings of its argument in the
        accumulator's type, as 1 + erf does where it cancels.
        """
        e = parse(w.epilogue)
        a, b = self._logical(w, inputs)
        u_out, u_acc = UNIT_ROUNDOFF[w.dtype], UNIT_ROUNDOFF[w.accumulate]
        (_, x), *steps = self._steps(w, inputs)
        error = math.sqrt(max(1, w.axes["K"])) * u_acc * abs(e.alpha) * (a.double().abs() @ b.double().abs()) + u_out * x.abs()
        for step, value in steps:
            if step == "activation":
                slope = _slope(e.activation, x).abs()
                error = torch.minimum(_STEEPEST * error, slope * error + _BEND / 2 * error.square()) + 4 * u_acc * x.abs()
            error = error + u_out * value.abs()
            x = value
        tiny = float(torch.finfo(TORCH_DTYPES[w.dtype]).smallest_normal) * 2 * u_out
        return {"c": error + tiny}

    def cost(self, w: Workload) -> Cost:
        least = super().cost(w)
        more = sum(spec.numel for spec in self.tensors(w)[2:-1]) * DTYPES[w.dtype]
        return Cost(flops=least.flops, bytes=least.bytes + more, unit=least.unit)

    def _part(self, w: Workload, rows: torch.Tensor | None, columns: torch.Tensor | None, inputs: Tensors) -> Tensors:
        some = super()._part(w, rows, columns, inputs)
        if "bias" in some:
            some["bias"] = picked(some["bias"], 0, columns)
        if "addend" in some:
            some["addend"] = picked(picked(some["addend"], 0, rows), 1, columns)
        return some


def _slope(activation: str, x: torch.Tensor) -> torch.Tensor:
    """The derivative at x."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        return torch.autograd.grad(_ACTIVATION[activation](at).sum(), at)[0]


def _integers(w: Workload) -> tuple[int, int, int] | None:
    """Largest sum of integer products, integer in bias, integer in the addend, with which each step is exact in the Workload's type; None
    where there is none: an activation, or a factor that takes too many of the type's bits."""
    e = parse(w.epilogue)
    if e.activation:
        return None
    factors = [Fraction(e.alpha), Fraction(e.factor)]
    finest = Fraction(1, max(f.denominator for f in factors))  # all values are multiples of it, denominators being powers of two
    room = EXACT_LIMIT[w.dtype] * finest
    most_added = min(8, int(room / 4 / abs(factors[1]))) if e.added else 0
    most_bias = min(8, int(room / 4)) if e.bias else 0
    most_sum = int((room - most_bias - most_added * abs(factors[1])) / abs(factors[0]))
    if most_sum < 8 or (e.added and not most_added) or (e.bias and not most_bias):
        return None
    return min(most_sum, EXACT_LIMIT[w.dtype]), most_bias, most_added
