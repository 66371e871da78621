"""`gemm`: C = A B, with fp16, bf16 or fp32 in and out, any M, N, K, four layouts.

Layout letters are row-major terms, A's first: `n` stores the matrix as the formula names it (A: M x K, B: K x N), `t` stores
its transpose (A: K x M, B: N x K). `torch.nn.Linear` is `nt`; BLAS's column-major "TN" is the same memory as our `nt`.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from kernelwright.problems.draws import normal, uniform
from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Case, Cost, Pick, Problem, Tensors, TensorSpec, one_after_the_other
from kernelwright.records import DTYPES, Workload

EXACT_LIMIT = {"fp16": 2**11, "bf16": 2**8, "fp32": 2**24}
"""Integers up to here are exact in the type."""
ROWS, COLUMNS = 256, 1024
"""Of a large result, in a screen: a wrong tile of 128 x 128 in 16384 x 16384 is missed by one case in seven."""


class Gemm(Problem):
    name = "gemm"
    axes = ("M", "N", "K")
    allocates = False
    any_shape = True

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        m, n, k = (w.axes[x] for x in self.axes)
        a = (m, k) if w.layout[0] == "n" else (k, m)
        b = (k, n) if w.layout[1] == "n" else (n, k)
        return (
            TensorSpec("a", a, w.dtype, "in"),
            TensorSpec("b", b, w.dtype, "in"),
            TensorSpec("c", (m, n), w.dtype, "out"),
        )

    def cases(self, w: Workload) -> tuple[Case, ...]:
        return (
            Case("binary", "exact"),
            Case("ternary", "exact"),
            Case("integer", "exact"),
            Case("normal", "normal"),
            Case("wide", "normal"),
            Case("cancel", "adversarial"),
            Case("one-hot", "adversarial"),
            Case("nan", "adversarial"),
            Case("inf", "adversarial"),
            Case("denormal", "adversarial"),
        )

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        spec_a, spec_b = self.tensors(w)[:2]
        a, b = (self._draw(w, case, spec.shape, rng, device, is_a=spec is spec_a) for spec in (spec_a, spec_b))
        k_of_a, k_of_b = (1 if w.layout[0] == "n" else 0), (0 if w.layout[1] == "n" else 1)
        k = w.axes["K"]
        if case.rung == "exact" and k > (limit := self._largest_sum(w)):
            # even products of one would add up to more than the accumulator holds exactly: a random part of K stays
            dropped = torch.randperm(k, generator=rng, device=device)[limit:]
            a.index_fill_(k_of_a, dropped, 0)
        if case.name == "cancel" and k >= 2:
            # the second half of K repeats the first with the sign of A turned: the exact sum is what the odd term leaves
            half = k // 2
            a.narrow(k_of_a, half, half).copy_(-a.narrow(k_of_a, 0, half))
            b.narrow(k_of_b, half, half).copy_(b.narrow(k_of_b, 0, half))
        elif case.name == "binary" and k >= 64 and a.numel() and b.numel() and w.accumulate == "fp32" and w.dtype != "fp32":
            # twice what halves count up to stands in the accumulator over most of K: an odd sum added to it is lost there, exact in fp32
            large = 2 * EXACT_LIMIT[w.dtype]
            factor = 2 ** (large.bit_length() // 2)
            for at, sign in ((int(torch.randint(k // 8, (), generator=rng, device=device)), 1), (k - 1, -1)):
                a.select(k_of_a, at).fill_(sign * factor)
                b.select(k_of_b, at).fill_(large // factor)
        elif case.name == "one-hot" and a.numel():
            # A selects rows of B: any addressing fault moves whole values
            a.zero_()
            m = w.axes["M"]
            picks = torch.randint(k, (m,), generator=rng, device=device)
            logical = a if w.layout[0] == "n" else a.t()
            logical[torch.arange(m, device=device), picks] = 1
        elif case.name in ("nan", "inf"):
            for t in (a, b):
                if t.numel():
                    at = torch.randint(t.numel(), (1,), generator=rng, device=device)
                    t.view(-1)[at] = math.nan if case.name == "nan" else math.inf
        return {"a": a, "b": b}

    def _draw(self, w: Workload, case: Case, shape: tuple[int, ...], rng: torch.Generator, device, *, is_a: bool = False) -> torch.Tensor:
        dtype = TORCH_DTYPES[w.dtype]
        if case.name == "binary":
            return torch.randint(0, 2, shape, generator=rng, device=device).to(dtype)
        if case.name == "ternary" and is_a:
            # as many bits as keep the sums exact: operands that are cut to fewer on the way (TF32, fp8) give other sums
            most = max(1, min(self._largest_sum(w) // max(1, w.axes["K"]), EXACT_LIMIT[w.dtype]))
            return torch.randint(-most, most + 1, shape, generator=rng, device=device).to(dtype)
        if case.name == "ternary":
            return torch.randint(-1, 2, shape, generator=rng, device=device).to(dtype)
        if case.name == "integer":
            # |a|, |b| <= q keeps every partial sum within K q^2, exact in the accumulator and inside fp16's range
            q = max(1, min(math.isqrt(self._largest_sum(w) // max(1, w.axes["K"])), EXACT_LIMIT[w.dtype]))
            return torch.randint(-q, q + 1, shape, generator=rng, device=device).to(dtype)
        if case.name == "normal":
            return normal(shape, rng, device, dtype)
        x = normal(shape, rng, device)
        if case.name == "wide":
            # fp16 ends at 65504: the sum of K products, of standard deviation 105 sqrt(K), is brought back to that of one
            fp16 = w.dtype == "fp16"
            shift = math.ceil(math.log2(max(1, w.axes["K"])) / 4) if fp16 else 0
            x *= uniform(shape, rng, device).mul_(11 if fp16 else 12).sub_(6 + shift).exp2_()
        elif case.name == "denormal":
            # products fall among fp16's denormals, or among fp32's; summed in fp16, they must stand out from its rounding to 2^-24
            x *= 2.0**-63 if w.dtype != "fp16" else 2.0**-13 if w.accumulate == "fp32" else 2.0**-11
        return x.to(dtype)

    def _largest_sum(self, w: Workload) -> int:
        """Integers up to here are exact in the accumulator and finite in the output."""
        return min(EXACT_LIMIT[w.accumulate], 60000 if w.dtype == "fp16" else 2**24)

    def _logical(self, w: Workload, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        a = inputs["a"] if w.layout[0] == "n" else inputs["a"].t()
        b = inputs["b"] if w.layout[1] == "n" else inputs["b"].t()
        return a, b

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        a, b = self._logical(w, inputs)
        return {"c": a.double() @ b.double()}

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        a, b = self._logical(w, inputs)
        return {"c": torch.matmul(a, b)}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        a, b = self._logical(w, inputs)
        magnitude = a.double().abs() @ b.double().abs()
        u_out, u_acc = UNIT_ROUNDOFF[w.dtype], UNIT_ROUNDOFF[w.accumulate]
        walk = math.sqrt(max(1, w.axes["K"]))
        # below the normal numbers every rounding costs up to half a spacing, in the output and in each partial sum
        tiny = _spacing(w.dtype) + 0.5 * walk * _spacing(w.accumulate)
        return {"c": u_out * reference["c"].abs() + walk * u_acc * magnitude + tiny}

    def bound(self, w: Workload) -> float:
        return 2.0

    def error_floor(self, w: Workload) -> float:
        # Rounding the accumulator to the output costs 0.58 unit roundoffs rms. A plain fp32 kernel shows 2.4 times the error of a vendor
        # that sums in several parts (K = 72).
        return max(0.5 * UNIT_ROUNDOFF[w.dtype], one_after_the_other(w.axes["K"], w))

    def cost(self, w: Workload) -> Cost:
        m, n, k = (w.axes[x] for x in self.axes)
        return Cost(flops=2.0 * m * n * k, bytes=float((m * k + k * n + m * n) * DTYPES[w.dtype]), unit=w.dtype)

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        shapes = [(1, 1, 1), (1, 64, 32), (64, 1, 32), (33, 65, 17), (127, 129, 63), (130, 8, 264), (8, 200, 72), (256, 256, 1)]
        shapes += [(0, 8, 8), (8, 0, 8), (8, 8, 0), (200, 136, 1032)]
        return tuple(w.replace(axes=dict(zip(self.axes, s, strict=True))) for s in shapes)

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        """256 rows, and 1,024 columns of them: float64 copies of all of B, and products with them, would take longer on a GPU than the
        launch that is checked (N = K = 8192: 3.5 GB and 69 GFLOP)."""
        # with repetition: a permutation costs 0.1 ms
        rows, columns = (
            torch.randint(n, (most,), device=outputs["c"].device) if n > most else None
            for n, most in ((w.axes["M"], ROWS // fewer), (w.axes["N"], COLUMNS // fewer))
        )
        return partial(self._part, w, rows, columns), lambda outputs: {"c": picked(picked(outputs["c"], 0, rows), 1, columns)}

    def _part(self, w: Workload, rows: torch.Tensor | None, columns: torch.Tensor | None, inputs: Tensors) -> Tensors:
        """The inputs of these rows and columns of the result; None: of all."""
        a = picked(inputs["a"], 0 if w.layout[0] == "n" else 1, rows)
        return dict(inputs, a=a, b=picked(inputs["b"], 1 if w.layout[1] == "n" else 0, columns))

    def rows_workload(self, w: Workload, outputs: Tensors) -> Workload:
        m, n = outputs["c"].shape
        return w.replace(axes=w.axes | {"M": m, "N": n})


def picked(t: torch.Tensor, axis: int, indices: torch.Tensor | None) -> torch.Tensor:
    return t if indices is None else t.index_select(axis, indices)


def _spacing(dtype: str) -> float:
    """Of denormals."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return float(info.smallest_normal) * float(info.eps)
