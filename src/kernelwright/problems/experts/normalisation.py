"""Softmax, norms and their backward passes, rotary embedding.

Backward problems get the upstream gradient as an input, and what a forward pass would have kept (means, deviations) computed by `generate`
from the other inputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.products import without_last
from kernelwright.problems.problem import Case, Tensors, TensorSpec
from kernelwright.records import Workload

EPS = 1e-5
STEPS = "one rounding of the output, and of each float32 step; exp and rsqrt may be off by a few units"


class RowWise(Expert):
    kind, domain, unit = "kernel", "normalisation", "vector"
    axes = ("rows", "cols")
    independent = {"rows": 64}
    full = ((16384, 4096), (4096, 16384))
    tiny = ((9, 70), (3, 257), (1, 2), (0, 8))
    tolerance = STEPS

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["cols"] else "needs at least one column"

    def terms(self, n: Sizes) -> int:
        return n.cols

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.rows * n.cols


class Softmax(RowWise):
    title = "softmax"
    formula = "exp(x - max) / sum(exp(x - max)), along the row"
    inputs, outputs = {"x": "rows cols"}, {"y": "rows cols"}
    adversarial = ("large", "nan")
    full = ((16384, 4096), (2048, 131072))

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def eager_form(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, -1)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.exp(x - np.logaddexp.reduce(x, axis=1, keepdims=True))

    mistakes = {
        "no maximum subtracted": lambda p, n, x: (x.exp().float() / x.exp().float().sum(-1, keepdim=True)).to(x.dtype),
        "along the columns": lambda p, n, x: F.softmax(x, 0),
        "last element not in the sum": lambda p, n, x: (x - torch.logsumexp(without_last(x, 1), -1, keepdim=True)).exp(),
    }


class SoftmaxBackward(RowWise):
    title = "softmax-backward"
    formula = "dx = y (dy - sum(dy y)), from the softmax y and its gradient"
    inputs, outputs = {"y": "rows cols", "dy": "rows cols"}, {"dx": "rows cols"}
    adversarial = ("nan",)

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x.softmax(-1) if spec.name == "y" else x

    def define(self, n: Sizes, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return y * (dy - (dy * y).sum(-1, keepdim=True))

    def eager_form(self, n: Sizes, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)

    def cancelling(self, n: Sizes, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return y * (dy.abs() + (dy * y).abs().sum(-1, keepdim=True))

    def second(self, n: Sizes, y: np.ndarray, dy: np.ndarray) -> np.ndarray:
        jacobian = np.einsum("ri,ij->rij", y, np.eye(n.cols)) - np.einsum("ri,rj->rij", y, y)
        return np.einsum("rij,rj->ri", jacobian, dy)

    mistakes = {
        "no sum subtracted": lambda p, n, y, dy: y * dy,
        "log-softmax's gradient": lambda p, n, y, dy: dy - y * dy.sum(-1, keepdim=True),
    }


class RmsNorm(RowWise):
    title = "rmsnorm"
    formula = "x / sqrt(mean(x^2) + 1e-5) * w, along the row"
    inputs, outputs = {"x": "rows cols", "w": "cols"}, {"y": "rows cols"}

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w

    def eager_form(self, n: Sizes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (n.cols,), w, EPS)

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.array([row / math.sqrt(float(np.dot(row, row)) / n.cols + EPS) * w for row in x]).reshape(x.shape)

    mistakes = {
        "epsilon of 1e-2": lambda p, n, x, w: F.rms_norm(x, (n.cols,), w, 1e-2),
        "one added to the weight": lambda p, n, x, w: p.eager_form(n, x=x, w=w + 1),
        "mean subtracted": lambda p, n, x, w: p.eager_form(n, x=x - x.mean(-1, keepdim=True), w=w),
    }


class LayerNorm(RowWise):
    title = "layernorm"
    formula = "(x - mean) / sqrt(variance + 1e-5) * w + b, along the row"
    inputs, outputs = {"x": "rows cols", "w": "cols", "b": "cols"}, {"y": "rows cols"}

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS) * w + b

    def eager_form(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (n.cols,), w, b, EPS)

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.array([(row - np.mean(row)) / np.sqrt(np.var(row) + EPS) * w + b for row in x]).reshape(x.shape)

    mistakes = {
        "mean not subtracted": lambda p, n, x, w, b: F.rms_norm(x, (n.cols,), w, EPS) + b,
        "bias scaled too": lambda p, n, x, w, b: p.eager_form(n, x=x, w=w, b=b * w),
    }


def statistics(x: torch.Tensor, centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, 1 / deviation) of each row in float32, as a forward pass keeps them."""
    wide = x.double()
    mean = wide.mean(-1) if centred else wide.new_zeros(wide.shape[:-1])
    return mean.float(), torch.rsqrt((wide - mean[..., None]).square().mean(-1) + EPS).float()


def _cancelling(dy: torch.Tensor, normal: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
    """Of dx, dw and db."""
    g, normal = (dy * w).abs(), normal.abs()
    dx = (g + g.mean(-1, keepdim=True) + normal * (g * normal).mean(-1, keepdim=True)) * rstd[:, None]
    return dx, (dy.abs() * normal).square().sum(0).sqrt(), dy.square().sum(0).sqrt()


class NormBackward(RowWise):
    independent = {}
    drawn_anew = ("x", "mean", "rstd")
    normals, adversarial = ("normal", "spread"), ("nan",)
    full = ((16384, 4096), (65536, 1024))
    centred = True

    def terms(self, n: Sizes) -> int:
        return max(n.rows, n.cols)

    def flops(self, n: Sizes) -> float:
        return 8.0 * n.rows * n.cols

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        found = super().generate(w, case, rng, device)
        if case.name != "nan":
            mean, rstd = statistics(found["x"], self.centred)
            found |= {"mean": mean, "rstd": rstd} if self.centred else {"rstd": rstd}
        return found


class LayerNormBackward(NormBackward):
    title = "layernorm-backward"
    formula = "dx, dw and db of layernorm, from x, w, dy and the rows' mean and 1 / deviation"
    inputs = {"dy": "rows cols", "x": "rows cols", "w": "cols", "mean": "rows : fp32", "rstd": "rows : fp32"}
    outputs = {"dx": "rows cols", "dw": "cols", "db": "cols"}

    def define(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        normal = (x - mean[:, None]) * rstd[:, None]
        g = dy * w
        dx = (g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)) * rstd[:, None]
        return dx, (dy * normal).sum(0), dy.sum(0)

    def eager_form(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        if not x.is_cuda:  # PyTorch's CPU kernel takes statistics of the inputs' type only
            dy, x, w = dy.float(), x.float(), w.float()
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, [n.cols], mean[:, None], rstd[:, None], w, torch.zeros_like(w), [True, True, True]
        )

    def cancelling(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        return _cancelling(dy, (x - mean[:, None]) * rstd[:, None], w, rstd)

    def second(self, n: Sizes, dy: np.ndarray, x: np.ndarray, w: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> Any:
        normal = (x - mean[:, None]) * rstd[:, None]
        eye, ones = np.eye(n.cols), np.ones((n.cols, n.cols))
        jacobians = [r * (eye - ones / n.cols - np.outer(y, y) / n.cols) for y, r in zip(normal, rstd, strict=True)]
        dx = np.array([j @ (d * w) for j, d in zip(jacobians, dy, strict=True)]).reshape(x.shape)
        return dx, np.einsum("rc,rc->c", dy, normal), np.einsum("rc->c", dy)

    mistakes = {
        "mean of the gradient left out": lambda p, n, dy, x, w, mean, rstd: (
            ((dy * w).float() - (x.float() - mean[:, None]) * rstd[:, None]
             * (dy.float() * w * (x.float() - mean[:, None]) * rstd[:, None]).mean(-1, keepdim=True)) * rstd[:, None],
            *p.eager_form(n, dy=dy, x=x, w=w, mean=mean, rstd=rstd)[1:],
        ),
        "last row not in dw": lambda p, n, dy, x, w, mean, rstd: (
            p.eager_form(n, dy=dy, x=x, w=w, mean=mean, rstd=rstd)[0],
            *p.eager_form(n, dy=torch.cat([dy[:-1], 0 * dy[-1:]]), x=x, w=w, mean=mean, rstd=rstd)[1:],
        ),
    }  # fmt: skip


class RmsNormBackward(NormBackward):
    title = "rmsnorm-backward"
    formula = "dx and dw of rmsnorm, from x, w, dy and the rows' 1 / root mean square"
    inputs, outputs = {"dy": "rows cols", "x": "rows cols", "w": "cols", "rstd": "rows : fp32"}, {"dx": "rows cols", "dw": "cols"}
    centred = False

    def define(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
        normal = x * rstd[:, None]
        g = dy * w
        return (g - normal * (g * normal).mean(-1, keepdim=True)) * rstd[:, None], (dy * normal).sum(0)

    def eager_form(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
        return self.define(n, dy.float(), x.float(), w.float(), rstd)

    def cancelling(self, n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Any:
        return _cancelling(dy, x * rstd[:, None], w, rstd)[:2]

    def second(self, n: Sizes, dy: np.ndarray, x: np.ndarray, w: np.ndarray, rstd: np.ndarray) -> Any:
        dx = np.empty_like(x)
        for i in range(n.rows):
            y = x[i] * rstd[i]
            dx[i] = rstd[i] * ((np.eye(n.cols) - np.outer(y, y) / n.cols) @ (dy[i] * w))
        return dx, (dy * x * rstd[:, None]).sum(0)

    mistakes = {
        "the statistic taken as constant": lambda p, n, dy, x, w, rstd: (
            dy.float() * w * rstd[:, None],
            p.eager_form(n, dy=dy, x=x, w=w, rstd=rstd)[1],
        ),
        "last row not in dw": lambda p, n, dy, x, w, rstd: (
            p.eager_form(n, dy=dy, x=x, w=w, rstd=rstd)[0],
            p.eager_form(n, dy=torch.cat([dy[:-1], 0 * dy[-1:]]), x=x, w=w, rstd=rstd)[1],
        ),
    }


class GroupNorm(Expert):
    title, kind, domain, unit = "groupnorm", "kernel", "normalisation", "vector"
    formula = "(x - mean) / sqrt(variance + 1e-5) * w + b, statistics over each image's G groups of channels"
    axes = ("B", "C", "S", "G")
    inputs, outputs = {"x": "B C S", "w": "C", "b": "C"}, {"y": "B C S"}
    independent = {"B": 2}
    full = ((32, 320, 4096, 32), (16, 1280, 256, 32))
    tiny = ((3, 8, 15, 2), (1, 1, 7, 1), (2, 6, 33, 3), (0, 4, 4, 2))
    tolerance = STEPS

    def refuses(self, w: Workload) -> str | None:
        a = w.axes
        return None if a["G"] and a["C"] and a["S"] and a["C"] % a["G"] == 0 else "needs channels (C) that G divides, and S of at least 1"

    def terms(self, n: Sizes) -> int:
        return n.C // n.G * n.S

    def flops(self, n: Sizes) -> float:
        return 5.0 * n.B * n.C * n.S

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        groups = x.reshape(n.B, n.G, n.C // n.G * n.S)
        centred = groups - groups.mean(-1, keepdim=True)
        normal = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
        return normal.view(n.B, n.C, n.S) * w[:, None] + b[:, None]

    def eager_form(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, n.G, w, b, EPS)

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        y, size = np.empty_like(x), n.C // n.G
        for i in range(n.B):
            for g in range(0, n.C, size):
                part = x[i, g : g + size]
                y[i, g : g + size] = (part - np.mean(part)) / np.sqrt(np.var(part) + EPS)
        return y * w[None, :, None] + b[None, :, None]

    mistakes = {
        "statistics of single channels": lambda p, n, x, w, b: F.group_norm(x, n.C, w, b, EPS) if n.C > n.G else 0 * x,
        "weight of the next channel": lambda p, n, x, w, b: p.eager_form(n, x=x, w=w.roll(1), b=b),
    }


class Rotary(Expert):
    title, kind, domain, unit = "rotary", "kernel", "normalisation", "vector"
    formula = "y = x cos + cat(-x[D/2:], x[:D/2]) sin, cos and sin by token"
    axes = ("B", "T", "H", "D")
    inputs, outputs = {"x": "B T H D", "cos": "T D//2", "sin": "T D//2"}, {"y": "B T H D"}
    independent = {"B": 1, "H": 8}
    full = ((4, 8192, 32, 128), (64, 1024, 8, 64))
    tiny = ((2, 10, 3, 16), (1, 1, 1, 2), (2, 7, 5, 6), (0, 4, 2, 8))
    tolerance = "one rounding of the output and of each of three float32 steps"

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["D"] % 2 == 0 and w.axes["D"] else "needs an even D of at least 2"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x if spec.name == "x" else x.mul_(9).cos_()  # any angle anywhere: real tables are smooth, and of low rank

    def flops(self, n: Sizes) -> float:
        return 3.0 * n.B * n.T * n.H * n.D

    def define(self, n: Sizes, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        cos, sin = (torch.cat((t, t), -1)[:, None] for t in (cos, sin))
        return x * cos + torch.cat((-right, left), -1) * sin

    def second(self, n: Sizes, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        # as complex numbers; cos and sin need not belong to one angle
        z = (x[..., : n.D // 2] + 1j * x[..., n.D // 2 :]) * (cos + 1j * sin)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    mistakes = {
        "turned the other way": lambda p, n, x, cos, sin: p.define(n, x, cos, -sin),
        "pairs of neighbours": lambda p, n, x, cos, sin: torch.view_as_real(
            torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()) * torch.complex(cos.float(), sin.float())[:, None]
        ).flatten(-2) + (0 if n.D > 2 else 1),
        "angle of the token before": lambda p, n, x, cos, sin: p.define(n, x, cos.roll(1, 0), sin.roll(1, 0)),
    }  # fmt: skip


PROBLEMS = (Softmax, SoftmaxBackward, RmsNorm, RmsNormBackward, LayerNorm, LayerNormBackward, GroupNorm, Rotary)
