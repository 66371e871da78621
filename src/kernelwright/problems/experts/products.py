"""Matrix products other than the plain ones of `gemm`: TF32, scaled fp8, int8, batched, grouped, complex, and matrix times vector."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kernelwright.problems.draws import uniform
from kernelwright.problems.experts.expert import Expert, Sizes, complexes
from kernelwright.problems.problem import TensorSpec


def without_last(x: torch.Tensor, axis: int) -> torch.Tensor:
    """All but the last element along an axis: the commonest tail that a kernel forgets."""
    return x.narrow(axis, 0, max(0, x.shape[axis] - 1))


class Product(Expert):
    """What products have in common: the exact rung, and the random walk of their sums."""

    kind, domain, degree = "kernel", "matrix products", 2
    axes = ("M", "N", "K")
    independent = {"M": 256, "N": 512}

    def terms(self, n: Sizes) -> int:
        return n.K

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.M * n.N * n.K


class GemmTf32(Product):
    title = "gemm-tf32"
    formula = "A B^T of float32 numbers that TF32 holds (11 significant bits), summed in float32"
    inputs, outputs = {"a": "M K", "b": "N K"}, {"c": "M N"}
    dtypes, unit, least_sm = ("fp32",), "tf32", 80
    full = ((4096, 4096, 4096), (128, 8192, 8192))
    tiny = ((40, 24, 72), (1, 1, 1), (17, 33, 5), (64, 8, 200), (0, 8, 8), (8, 8, 0))
    tolerance = "operands are TF32 numbers, so their products are exact: the random walk of K float32 additions is all that may differ"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if case == "integer":  # at most 11 bits each
            return super().draw(n, case, spec, rng, device).clamp(-1024, 1024)
        return (super().draw(n, case, spec, rng, device).float().view(torch.int32) & ~0x1FFF).view(torch.float32)

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.T

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", a, b)

    mistakes = {
        "last step of K left out": lambda p, n, a, b: without_last(a, 1) @ without_last(b, 1).T,
        "operands cut to bf16": lambda p, n, a, b: a.bfloat16().float() @ b.bfloat16().float().T,
    }


class GemmFp8(Product):
    title = "gemm-fp8"
    formula = "(A B^T) sa sb^T: fp8 (e4m3) operands, one float32 scale a row of A and a row of B"
    inputs = {"a": "M K : fp8", "b": "N K : fp8", "sa": "M : fp32", "sb": "N : fp32"}
    outputs = {"c": "M N"}
    dtypes, unit, least_sm = ("bf16",), "fp8", 89
    full = ((8192, 8192, 8192), (64, 8192, 8192))
    tiny = ((32, 48, 64), (16, 16, 16), (17, 32, 48), (0, 16, 16))
    normals, adversarial = ("normal",), ("small", "nan")
    exact_sum, accumulator = 2.0**13, 2.0**-14
    coarse_shows = False  # scales rounded to bf16 move a result by less than its own rounding
    tolerance = (
        "products of fp8 numbers are exact; Hopper's fp8 tensor cores keep about 14 bits of a sum, and a kernel that moves partial sums to "
        "float32 registers is as welcome as one that does not"
    )

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name in ("sa", "sb"):
            if case == "integer":
                return torch.randint(-2, 3, spec.shape, generator=rng, device=device).float().exp2()
            return uniform(spec.shape, rng, device).mul(4).sub(2).exp2()
        x = super().draw(n, "normal" if case == "small" else case, spec, rng, device)
        return x * 2.0**-4 if case == "small" else x

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
        return (a @ b.T) * sa[:, None] * sb

    def eager_form(self, n: Sizes, a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float().T) * sa[:, None] * sb

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray, sa: np.ndarray, sb: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", a * sa[:, None], b * sb[:, None])

    mistakes = {
        "scales of rows of B shifted by one": lambda p, n, a, b, sa, sb: p.eager_form(n, a=a, b=b, sa=sa, sb=sb.roll(1)),
        "one scale for all rows of A": lambda p, n, a, b, sa, sb: p.eager_form(n, a=a, b=b, sa=sa[:1].expand_as(sa), sb=sb),
    }


class GemmInt8(Product):
    title = "gemm-int8"
    formula = "A B^T of int8 operands, summed in int32"
    inputs, outputs = {"a": "M K : int8", "b": "N K : int8"}, {"c": "M N : int32"}
    dtypes, unit, degree, exactly = ("int8",), "int8", 0, ("c",)
    independent = {}
    full = ((4096, 4096, 4096), (8192, 8192, 4096))
    tiny = ((24, 40, 72), (17, 8, 8), (33, 16, 24))
    normals, adversarial = ("normal",), ("largest",)
    tolerance = "integer arithmetic: bit-equal"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = torch.randint(-128, 128, spec.shape, generator=rng, device=device)
        return torch.where(x < 0, -128, 127) if case == "largest" else x

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.double() @ b.double().T

    def eager_form(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.is_cuda and (n.M <= 16 or n.N % 8 or n.K % 8):  # what cuBLASLt's int8 products do not take
            return self.define(n, a, b)
        return torch.ops.aten._int_mm(a, b.T)

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", a.astype(np.int64), b.astype(np.int64))

    mistakes = {
        "sums saturate at 16 bits": lambda p, n, a, b: p.define(n, a, b).clamp(-(2**15), 2**15 - 1),
        "A read as unsigned": lambda p, n, a, b: p.define(n, a.double() % 256, b),
        "last step of K left out": lambda p, n, a, b: p.define(n, without_last(a, 1), without_last(b, 1)),
    }


class GemmBatched(Product):
    title = "gemm-batched"
    formula = "C[b] = A[b] B[b]"
    axes = ("B", "M", "N", "K")
    inputs, outputs = {"a": "B M K", "b": "B K N"}, {"c": "B M N"}
    independent = {"B": 4, "M": 256, "N": 512}
    full = ((64, 512, 512, 512), (16, 2048, 2048, 128))
    tiny = ((3, 10, 12, 16), (1, 1, 1, 1), (2, 17, 33, 5), (0, 8, 8, 8), (2, 8, 8, 0))
    tolerance = "one rounding of the output, and the random walk of K float32 additions"

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.M * n.N * n.K

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("bmk,bkn->bmn", a, b)

    mistakes = {
        "B of the first batch for all": lambda p, n, a, b: torch.bmm(a, b[:1].expand_as(b)),
        "last step of K left out": lambda p, n, a, b: torch.bmm(without_last(a, 2), without_last(b, 1)),
    }


class GemmGrouped(Product):
    title = "gemm-grouped"
    formula = "rows of A from ends[g-1] to ends[g] times B[g]^T, for each group g"
    axes = ("T", "N", "K", "G")
    inputs, outputs = {"a": "T K", "b": "G N K", "ends": "G : int32"}, {"c": "T N"}
    independent = {"N": 512}
    drawn_anew = ("ends",)
    dtypes, least_sm = ("bf16",), 80
    full = ((8192, 2048, 4096, 8), (16384, 1408, 2048, 64))
    tiny = ((40, 16, 24, 3), (1, 8, 8, 1), (33, 24, 16, 5))
    tolerance = "one rounding of the output, and the random walk of K float32 additions"

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.T * n.N * n.K

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "ends":  # groups of any size, empty ones among them
            return torch.cat([torch.randint(n.T + 1, (n.G - 1,), generator=rng, device=device).sort().values,
                              torch.tensor([n.T], device=device)])  # fmt: skip
        return super().draw(n, case, spec, rng, device)

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ends_list = [0, *ends.tolist()]
        return torch.cat([a[i:j] @ b[g].T for g, (i, j) in enumerate(pairwise(ends_list))])

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> np.ndarray:
        group = (np.arange(n.T)[:, None] >= ends[None, :]).sum(1)
        return np.einsum("tk,tnk->tn", a, b[group])

    mistakes = {
        "groups begin a row late": lambda p, n, a, b, ends: p.define(n, a, b, torch.cat([(ends[:-1] + 1).clamp(max=n.T), ends[-1:]])),
        "matrix of the next group": lambda p, n, a, b, ends: p.define(n, a, b.roll(1, 0), ends),
        "last step of K left out": lambda p, n, a, b, ends: p.define(n, without_last(a, 1), without_last(b, 2), ends),
    }


class GemmComplex(Product):
    title = "gemm-complex"
    formula = "C = A B of complex numbers, real and imaginary part along the last axis"
    inputs, outputs = {"a": "M K 2", "b": "K N 2"}, {"c": "M N 2"}
    dtypes, unit = ("fp32",), "tf32"  # float32 can be made of TF32 products
    full = ((2048, 2048, 2048), (4096, 4096, 512))
    tiny = ((12, 10, 9), (1, 1, 1), (17, 5, 33), (0, 4, 4))
    tolerance = "one rounding of the output, and the random walk of 2 K float32 additions"

    def terms(self, n: Sizes) -> int:
        return 2 * n.K

    def flops(self, n: Sizes) -> float:
        return 6.0 * n.M * n.N * n.K  # three real products, by Gauss's trick

    def define(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(complexes(a) @ complexes(b))

    def magnitudes(self, n: Sizes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # three products, as Gauss's trick has them, reach the product of |re| + |im|
        return (a.sum(-1) @ b.sum(-1))[..., None].expand(n.M, n.N, 2)

    def second(self, n: Sizes, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        (ar, ai), (br, bi) = np.moveaxis(a, -1, 0), np.moveaxis(b, -1, 0)
        return np.stack([ar @ br - ai @ bi, ar @ bi + ai @ br], -1)

    mistakes = {
        "B conjugated": lambda p, n, a, b: p.define(n, a, b * b.new_tensor([1, -1])),
        "last step of K left out": lambda p, n, a, b: p.define(n, without_last(a, 1), without_last(b, 0)),
    }


class MatrixVector(Product):
    title = "matrix-vector"
    formula = "y = A x, one long dot product a row"
    axes = ("M", "K")
    inputs, outputs = {"a": "M K", "x": "K"}, {"y": "M"}
    independent = {"M": 512}
    full = ((16384, 16384), (4096, 65536))
    tiny = ((40, 72), (1, 1), (7, 200), (0, 8), (8, 0))
    tolerance = "one rounding of the output, and the random walk of K float32 additions"

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.M * n.K

    def define(self, n: Sizes, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.mv(a, x)

    def second(self, n: Sizes, a: np.ndarray, x: np.ndarray) -> np.ndarray:
        return (a * x).sum(1)

    mistakes = {
        "last element of each row left out": lambda p, n, a, x: torch.mv(without_last(a, 1), without_last(x, 0)),
        "summed in half precision": lambda p, n, a, x: (
            (a.bfloat16() * x.bfloat16()).cumsum(1, dtype=torch.bfloat16)[:, -1].to(x.dtype) if n.K else torch.mv(a, x)
        ),
    }


PROBLEMS = (GemmTf32, GemmFp8, GemmInt8, GemmBatched, GemmGrouped, GemmComplex, MatrixVector)
