"""Linear layers that are not plain: quantised, sparse, adapted, with a norm in front."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.draws import uniform
from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.normalisation import EPS
from kernelwright.problems.experts.products import without_last
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload


class LinearProblem(Expert):
    kind, domain = "module", "linear layers"
    axes = ("M", "N", "K")
    independent = {"M": 128, "N": 256}
    dtypes, steps, spread = ("bf16", "fp16"), "output", 2.0
    full = ((16, 8192, 8192), (2048, 4096, 4096))

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"

    def terms(self, n: Sizes) -> int:
        return n.K

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.M * n.N * n.K


class LinearInt8(LinearProblem):
    title = "linear-int8"
    formula = "x (q s)^T: int8 weights q, one scale s a row of q"
    inputs, outputs = {"x": "M K", "q": "N K : int8", "s": "N"}, {"y": "M N"}
    tiny = ((9, 16, 32), (1, 8, 8), (3, 24, 40))
    dtypes = ("bf16",)
    tolerance = "one rounding of the output, of a dequantised weight where a kernel makes one, and the random walk of K float32 additions"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "q":
            return torch.randint(-127, 128, spec.shape, generator=rng, device=device)
        x = super().draw(n, case, spec, rng, device)
        return uniform(spec.shape, rng, device).add(0.5).mul(0.01) if spec.name == "s" else x

    def define(self, n: Sizes, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, q.to(x.dtype) * s[:, None])

    def second(self, n: Sizes, x: np.ndarray, q: np.ndarray, s: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", x, q.astype(np.float64)) * s

    mistakes = {
        "scale of the next row": lambda p, n, x, q, s: p.define(n, x, q, s.roll(1)),
        "weights read as unsigned": lambda p, n, x, q, s: p.define(n, x, q.int() % 256, s),
        "last weight of each row left out": lambda p, n, x, q, s: p.define(n, without_last(x, 1), without_last(q, 1), s),
    }


class LinearInt4(LinearProblem):
    title = "linear-int4"
    formula = "x w^T, w = (q - 8) s: two 4-bit q a byte, the even column in its high half, one scale s for each 32 columns of a row"
    inputs, outputs = {"x": "M K", "q": "N K//2 : int8", "s": "N K//32"}, {"y": "M N"}
    drawn_anew = ("x", "q", "s")
    tiny = ((9, 32, 64), (1, 16, 32), (3, 48, 96))
    dtypes = ("bf16",)
    tolerance = LinearInt8.tolerance

    def refuses(self, w: Workload) -> str | None:
        return super().refuses(w) or (None if w.axes["K"] % 32 == 0 else "needs a K that 32 divides")

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "q":
            return torch.randint(-128, 128, spec.shape, generator=rng, device=device)
        x = super().draw(n, case, spec, rng, device)
        return uniform(spec.shape, rng, device).add(0.5).mul(0.1) if spec.name == "s" else x

    def define(self, n: Sizes, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        byte = q.view(torch.uint8)
        nibbles = torch.stack((byte >> 4, byte & 15), -1).view(n.N, n.K // 32, 32)
        return F.linear(x, ((nibbles.to(x.dtype) - 8) * s[..., None]).view(n.N, n.K))

    def second(self, n: Sizes, x: np.ndarray, q: np.ndarray, s: np.ndarray) -> np.ndarray:
        byte, w = q.astype(np.int64) % 256, np.zeros((n.N, n.K))
        w[:, 0::2], w[:, 1::2] = byte // 16 - 8, byte % 16 - 8
        return np.einsum("mk,nk,nk->mn", x, w, np.repeat(s, 32, 1))

    mistakes = {
        "halves of the byte mixed up": lambda p, n, x, q, s: p.define(n, x.unflatten(1, (-1, 2)).flip(2).flatten(1), q, s),
        "no offset of 8": lambda p, n, x, q, s: p.define(n, x, q, s) + 8 * F.linear(x, s.repeat_interleave(32, 1)),
        "scale of the next group": lambda p, n, x, q, s: p.define(n, x, q, s.roll(1, 1) if n.K > 32 else s.roll(1, 0)),
    }


class LinearSparse(LinearProblem):
    title = "linear-sparse"
    formula = "x w^T, two of each four neighbours in a row of w zero (2:4), stored dense"
    inputs, outputs = {"x": "M K", "w": "N K"}, {"y": "M N"}
    weights, drawn_anew = ("w",), ("w",)
    degree, least_sm = 2, 80
    adversarial = ("small",)  # a product with a zero weight is left out, or spreads a NaN
    dtypes = ("fp16", "bf16")
    full = ((4096, 4096, 4096), (8192, 8192, 8192))
    tiny = ((9, 16, 32), (1, 8, 16), (16, 32, 64))
    tolerance = "one rounding of the output, and the random walk of K / 2 float32 additions"

    def refuses(self, w: Workload) -> str | None:
        return super().refuses(w) or (None if w.axes["K"] % 4 == 0 else "needs a K that 4 divides")

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        if spec.name == "x":
            return x
        order = torch.rand(n.N, n.K // 4, 4, generator=rng, device=device).argsort(-1)
        return x * (order < 2).view(n.N, n.K)

    def flops(self, n: Sizes) -> float:
        return n.M * n.N * n.K

    def traffic(self, w: Workload) -> float:
        n = self.sizes(w)
        return 2.0 * (n.M * n.K + n.M * n.N + n.N * n.K * 9 / 16)

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w)

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        y = np.zeros((n.M, n.N))
        for i, k in np.argwhere(w):
            y[:, i] += x[:, k] * w[i, k]
        return y

    mistakes = {
        "the two kept in each four mixed up": lambda p, n, x, w: F.linear(x, w.unflatten(1, (-1, 4)).flip(2).flatten(1)),
        "the first two of each four": lambda p, n, x, w: F.linear(x, w * (torch.arange(n.K, device=w.device) % 4 < 2)),
        "last group of each row left out": lambda p, n, x, w: F.linear(x[:, :-4], w[:, :-4]),
    }


class LinearLora(LinearProblem):
    title = "linear-lora"
    formula = "x w^T + 2 (x a^T) b^T, a and b of rank R"
    axes = ("M", "N", "K", "R")
    inputs, outputs = {"x": "M K", "w": "N K", "a": "R K", "b": "N R"}, {"y": "M N"}
    weights = ("w", "a", "b")
    full = ((4096, 4096, 4096, 16), (32, 14336, 4096, 64))
    tiny = ((9, 16, 32, 4), (1, 8, 8, 1), (3, 24, 40, 7))
    tolerance = "one rounding of the output and of each of three products in the output's type, and the walk of their sums"

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.M * (n.N * n.K + n.R * (n.N + n.K))

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w) + 2 * F.linear(F.linear(x, a), b)

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", x, w + 2 * b @ a)

    mistakes = {
        "not scaled by 2": lambda p, n, x, w, a, b: F.linear(x, w) + F.linear(F.linear(x, a), b),
        "last rank left out": lambda p, n, x, w, a, b: p.define(n, x, w, a[:-1], without_last(b, 1)),
        "the plain layer alone": lambda p, n, x, w, a, b: F.linear(x, w),
    }


class NormLinear(LinearProblem):
    title = "norm-linear"
    formula = "rmsnorm(x, g) w^T"
    inputs, outputs = {"x": "M K", "g": "K", "w": "N K"}, {"y": "M N"}
    weights = ("w",)
    full = ((4096, 6144, 4096), (16, 10240, 8192))
    tiny = ((9, 16, 32), (1, 8, 8), (3, 24, 40))
    tolerance = "one rounding of the output and of the normed rows in the output's type, and the random walk of K float32 additions"

    def define(self, n: Sizes, x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (n.K,), g, EPS), w)

    def second(self, n: Sizes, x: np.ndarray, g: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.einsum("mk,nk->mn", x, w * g) / np.sqrt((x * x).mean(1, keepdims=True) + EPS)

    mistakes = {
        "not normed": lambda p, n, x, g, w: F.linear(x * g * 1.5, w),
        "statistics of the row before": lambda p, n, x, g, w: F.linear(
            x * torch.rsqrt(x.float().square().mean(1, keepdim=True).roll(1, 0) + EPS).to(x.dtype) * g * (1 if n.M > 1 else 2), w
        ),
        "last column left out of the product": lambda p, n, x, g, w: F.linear(
            without_last(F.rms_norm(x, (n.K,), g, EPS), 1), without_last(w, 1)
        ),
    }


PROBLEMS = (LinearInt8, LinearInt4, LinearSparse, LinearLora, NormLinear)
