"""Convolutions, channels last: forward, both gradients, depthwise, and the short causal one of state-space models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.records import Workload

TOLERANCE = "one rounding of the output, and the random walk of the float32 additions of one output"


def first(x: torch.Tensor) -> torch.Tensor:
    """Channels-last memory as PyTorch names it: (B, H, W, C) as (B, C, H, W)."""
    return x.permute(0, 3, 1, 2)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def gradients(n: Sizes, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, wanted: list[bool]) -> Any:
    """What autograd calls: (dx, dw, db), those that are wanted."""
    return torch.ops.aten.convolution_backward(dy, x, w, None, [n.S] * 2, [n.R // 2] * 2, [1, 1], False, [0, 0], 1, wanted)


def padded(x: np.ndarray, by: int) -> np.ndarray:
    return np.pad(x, ((0, 0), (by, by), (by, by), (0, 0)))


class Convolution(Expert):
    """R x R filters, R odd, zero padding of R // 2, stride S."""

    kind, domain, degree = "kernel", "convolution", 2
    axes = ("B", "H", "W", "C", "K", "R", "S")
    dtypes = ("bf16", "fp16")
    adversarial = ("small",)  # transforms (Winograd, FFT) and padded channels spread a NaN further than the formula does
    full = ((32, 56, 56, 128, 256, 3, 1), (64, 14, 14, 1024, 512, 1, 1))
    tiny = ((2, 6, 5, 8, 4, 3, 1), (1, 7, 6, 3, 5, 3, 2), (1, 1, 1, 1, 1, 1, 1), (3, 4, 9, 16, 8, 1, 1))
    tolerance = TOLERANCE

    def refuses(self, w: Workload) -> str | None:
        a = w.axes
        if a["R"] % 2 == 0 or a["S"] < 1:
            return "needs an odd R and a stride S of at least 1"
        return None if min(a.values()) > 0 else "has no empty axes"

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * self.pixels(n) * n.C * n.K * n.R * n.R * self.share(n)

    def pixels(self, n: Sizes) -> int:
        return ((n.H - 1) // n.S + 1) * ((n.W - 1) // n.S + 1)

    def share(self, n: Sizes) -> float:
        """Of all products, those that do not meet the padding, at least; Winograd's F(4 x 4, 3 x 3) saves three quarters of them."""
        lost = n.R // 2
        return (0.25 if n.R > 1 else 1.0) * max(0.0, 1 - lost / n.H) * max(0.0, 1 - lost / n.W)


class Conv2d(Convolution):
    title = "conv2d"
    formula = "y = conv(x, w), channels last, padding R // 2, stride S"
    inputs, outputs = {"x": "B H W C", "w": "K R R C"}, {"y": "B (H-1)//S+1 (W-1)//S+1 K"}
    independent = {"B": 2, "K": 64}

    def terms(self, n: Sizes) -> int:
        return n.C * n.R * n.R

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return last(F.conv2d(first(x), first(w), stride=n.S, padding=n.R // 2))

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        p = padded(x, n.R // 2)
        taps = ((r, s) for r in range(n.R) for s in range(n.R))
        return np.sum([np.einsum("bhwc,kc->bhwk", p[:, r : r + n.H : n.S, s : s + n.W : n.S], w[:, r, s]) for r, s in taps], axis=0)

    mistakes = {
        "filter turned over": lambda p, n, x, w: p.define(n, x.flip(1), w).flip(1) if n.S == 1 else p.define(n, x, w.flip(3)),
        "last input channel left out": lambda p, n, x, w: p.define(n, x[..., :-1], w[..., :-1]),
    }


class Conv2dWeightGradient(Convolution):
    title = "conv2d-weight-gradient"
    formula = "dw of y = conv(x, w), from x and dy"
    inputs, outputs = {"x": "B H W C", "dy": "B (H-1)//S+1 (W-1)//S+1 K"}, {"dw": "K R R C"}
    independent = {"K": 64, "C": 64}

    def terms(self, n: Sizes) -> int:
        return n.B * self.pixels(n)

    def define(self, n: Sizes, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        shape = first(x.new_empty(n.K, n.R, n.R, n.C))
        return last(gradients(n, first(dy), first(x), shape, [False, True, False])[1])

    def second(self, n: Sizes, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        p, dw = padded(x, n.R // 2), np.zeros((n.K, n.R, n.R, n.C))
        for r in range(n.R):
            for s in range(n.R):
                dw[:, r, s] = np.einsum("bhwc,bhwk->kc", p[:, r : r + n.H : n.S, s : s + n.W : n.S], dy)
        return dw

    mistakes = {
        "last image left out": lambda p, n, x, dy: p.define(n, torch.cat([x[:-1], 0 * x[-1:]]), dy),
        "mean over the batch": lambda p, n, x, dy: p.define(n, x, dy) / (n.B + 1),
        "pixels of the lower edge left out": lambda p, n, x, dy: p.define(n, x, torch.cat([dy[:, :-1], 0 * dy[:, -1:]], 1)),
    }


class Conv2dInputGradient(Convolution):
    title = "conv2d-input-gradient"
    formula = "dx of y = conv(x, w), from dy and w"
    inputs, outputs = {"dy": "B (H-1)//S+1 (W-1)//S+1 K", "w": "K R R C"}, {"dx": "B H W C"}
    independent = {"B": 2, "C": 64}

    def terms(self, n: Sizes) -> int:
        return n.K * n.R * n.R

    def define(self, n: Sizes, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        shape = first(dy.new_empty(n.B, n.H, n.W, n.C))
        return last(gradients(n, first(dy), shape, first(w), [True, False, False])[0])

    def second(self, n: Sizes, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        by = n.R // 2
        dx = np.zeros((n.B, n.H + 2 * by, n.W + 2 * by, n.C))
        for r in range(n.R):
            for s in range(n.R):
                dx[:, r : r + n.H : n.S, s : s + n.W : n.S] += np.einsum("bhwk,kc->bhwc", dy, w[:, r, s])
        return dx[:, by : by + n.H, by : by + n.W]

    mistakes = {
        "input and output channels of w mixed up": lambda p, n, dy, w: p.define(n, dy, w.flip(0)),
        "last output channel left out": lambda p, n, dy, w: p.define(n, torch.cat([dy[..., :-1], 0 * dy[..., -1:]], -1), w),
    }


class ConvDepthwise(Convolution):
    title = "conv-depthwise"
    formula = "each channel by its own R x R filter, padding R // 2"
    axes = ("B", "H", "W", "C", "R")
    inputs, outputs = {"x": "B H W C", "w": "C R R"}, {"y": "B H W C"}
    independent = {"B": 4, "C": 64}
    unit = "vector"
    full = ((32, 56, 56, 256, 7), (64, 112, 112, 96, 3))
    tiny = ((2, 6, 7, 8, 3), (1, 1, 1, 1, 1), (1, 9, 5, 3, 5))

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["R"] % 2 and min(w.axes.values()) > 0 else "needs an odd R and no empty axis"

    def terms(self, n: Sizes) -> int:
        return n.R * n.R

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.H * n.W * n.C * n.R * n.R * self.share(n)

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return last(F.conv2d(first(x), w[:, None], padding=n.R // 2, groups=n.C))

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        p = padded(x, n.R // 2)
        return np.sum([p[:, r : r + n.H, s : s + n.W] * w[:, r, s] for r in range(n.R) for s in range(n.R)], axis=0)

    mistakes = {
        "filter of the next channel": lambda p, n, x, w: p.define(n, x, w.roll(1, 0)),
        "filter transposed": lambda p, n, x, w: p.define(n, x, w.mT),
    }


class ConvCausal(Expert):
    title, kind, domain = "conv1d-causal", "kernel", "convolution"
    formula = "silu(sum_j w[c, j] x[b, c, t - W + 1 + j] + bias[c])"
    axes = ("B", "C", "T", "W")
    inputs, outputs = {"x": "B C T", "w": "C W", "bias": "C"}, {"y": "B C T"}
    independent = {"B": 2, "C": 64}
    unit = "vector"
    full = ((8, 4096, 4096, 4), (1, 8192, 16384, 4))
    tiny = ((2, 3, 20, 4), (1, 1, 1, 1), (1, 5, 3, 4), (0, 2, 8, 2))
    tolerance = "one rounding of the output, and of each float32 step; exp may be off by a few units"

    def terms(self, n: Sizes) -> int:
        return n.W

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.C * n.T * n.W

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv1d(x, w[:, None], bias, padding=n.W - 1, groups=n.C)[..., : n.T])

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
        p = np.pad(x, ((0, 0), (0, 0), (n.W - 1, 0)))
        z = sum(p[..., j : j + n.T] * w[:, j, None] for j in range(n.W)) + bias[:, None]
        return z * np.exp(-np.logaddexp(0, -z))

    mistakes = {
        "looks into the future": lambda p, n, x, w, bias: F.silu(
            F.conv1d(x, w[:, None], bias, padding=n.W - 1, groups=n.C)[..., n.W - 1 :]
        ),
        "taps in reverse": lambda p, n, x, w, bias: p.define(n, x, w.flip(1), bias),
        "no activation": lambda p, n, x, w, bias: F.conv1d(x, w[:, None], bias, padding=n.W - 1, groups=n.C)[..., : n.T],
    }


PROBLEMS = (Conv2d, Conv2dWeightGradient, Conv2dInputGradient, ConvDepthwise, ConvCausal)
