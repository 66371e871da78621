"""Reductions, scans and histograms: what CUB is the expert for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernelwright.problems.draws import normal, uniform
from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.products import without_last
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload

SUMS = "one rounding of the output, and the random walk of the float32 additions of one output"
CHOSEN = "values are chosen, not computed: bit-equal"


def distinct(shape: tuple[int, ...], rng: torch.Generator, device: Any) -> torch.Tensor:
    """float32 numbers in random order, no two alike (up to 2^24 of them), half of them negative: what has one order only."""
    count = 1
    for size in shape:
        count *= size
    return (torch.randperm(count, generator=rng, device=device).float() - count // 2).mul_(2.0**-12).view(shape)


class RowSum(Expert):
    title, kind, domain = "row-sum", "kernel", "reductions"
    formula = "sum of each row"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"y": "rows"}
    drawn_anew = ("x",)
    dtypes, degree, unit = ("fp32", "bf16", "fp16"), 1, "vector"
    independent = {"rows": 256}
    full = ((16384, 8192), (64, 2097152))
    tiny = ((9, 70), (1, 1), (3, 1025), (0, 8), (8, 0))
    tolerance = SUMS

    def terms(self, n: Sizes) -> int:
        return n.cols

    def flops(self, n: Sizes) -> float:
        return n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.array([sum(row.tolist()) for row in x])

    mistakes = {
        "last element of each row left out": lambda p, n, x: without_last(x, 1).sum(-1),
        "a warp's 32 partial sums, one of them lost": lambda p, n, x: x[:, torch.arange(n.cols) % 32 != 31].sum(-1),
    }


class SumAll(Expert):
    title, kind, domain = "sum-all", "kernel", "reductions"
    formula = "sum of all elements"
    axes = ("n",)
    inputs, outputs = {"x": "n"}, {"y": "1"}
    drawn_anew = ("x",)  # in any order it has the same sum
    dtypes, degree, unit = ("fp32", "bf16"), 1, "vector"
    full = ((2**28,), (2**20,))
    tiny = ((777,), (1,), (4099,), (0,))
    tolerance = SUMS

    def terms(self, n: Sizes) -> int:
        return n.n

    def flops(self, n: Sizes) -> float:
        return n.n

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.sum().view(1)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.array([float(np.add.reduce(np.sort(x)))])

    mistakes = {
        "the last 7 elements left out": lambda p, n, x: x[: max(0, n.n - 7)].sum().view(1),
        "only the first of several blocks' sums": lambda p, n, x: x[: n.n // 2].sum().view(1),
    }


class ArgMax(Expert):
    title, kind, domain = "argmax", "kernel", "reductions"
    formula = "the largest value of each row, and its column"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"value": "rows", "index": "rows : int64"}
    drawn_anew = ("x",)
    dtypes, unit, exactly = ("fp32",), "vector", ("value", "index")
    normals, adversarial = ("normal",), ("negative", "rising")
    full = ((4096, 4096), (64, 131072))
    tiny = ((9, 70), (1, 1), (3, 1025), (0, 8))
    tolerance = CHOSEN

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["cols"] else "needs at least one column"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = distinct(spec.shape, rng, device)
        if case == "rising":
            return x.sort(-1).values
        return x - 2**12 if case == "negative" else x

    def flops(self, n: Sizes) -> float:
        return n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> Any:
        return tuple(x.max(-1))

    def second(self, n: Sizes, x: np.ndarray) -> Any:
        order = np.argsort(x, axis=1)[:, -1]
        return x[np.arange(n.rows), order], order

    mistakes = {
        "the maximum starts at zero": lambda p, n, x: (x.max(-1).values.clamp(min=0), x.argmax(-1)),
        "columns counted from one": lambda p, n, x: (x.max(-1).values, x.argmax(-1) + 1),
        "last column not looked at": lambda p, n, x: tuple(torch.cat([without_last(x, 1), x[:, :1] - 1], 1).max(-1)),
    }


class Moments(Expert):
    title, kind, domain = "moments", "kernel", "reductions"
    formula = "mean and biased variance of each row"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"mean": "rows", "variance": "rows"}
    dtypes, unit = ("fp32", "bf16"), "vector"
    independent = {"rows": 256}
    normals, adversarial = ("normal", "offset"), ("small", "nan")
    full = ((16384, 8192), (128, 1048576))
    tiny = ((9, 70), (3, 1025), (1, 2))
    tolerance = "one rounding of the output and of each float32 step of two passes; E[x^2] - E[x]^2 loses what the mean is large beside"

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["rows"] and w.axes["cols"] else "needs at least one row and column"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        return normal(spec.shape, rng, device) + 300 if case == "offset" else super().draw(n, case, spec, rng, device)

    def terms(self, n: Sizes) -> int:
        return n.cols

    def flops(self, n: Sizes) -> float:
        return 3.0 * n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> Any:
        mean = x.mean(-1)
        return mean, (x - mean[:, None]).square().mean(-1)

    def eager_form(self, n: Sizes, x: torch.Tensor) -> Any:
        variance, mean = torch.var_mean(x, -1, correction=0)
        return mean, variance

    def second(self, n: Sizes, x: np.ndarray) -> Any:
        mean, m2 = np.zeros(n.rows), np.zeros(n.rows)  # Welford's recurrence
        for i in range(n.cols):
            d = x[:, i] - mean
            mean = mean + d / (i + 1)
            m2 = m2 + d * (x[:, i] - mean)
        return mean, m2 / n.cols

    mistakes = {
        "mean of squares less square of the mean": lambda p, n, x: (x.mean(-1), x.square().mean(-1) - x.mean(-1).square()),
        "divided by one less": lambda p, n, x: (x.mean(-1), x.var(-1)),
        "last element of each row left out": lambda p, n, x: p.eager_form(n, without_last(x, 1)),
    }


class LogSumExp(Expert):
    title, kind, domain = "logsumexp", "kernel", "reductions"
    formula = "log(sum(exp(x))) of each row"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"y": "rows"}
    drawn_anew = ("x",)
    dtypes, unit = ("fp32", "bf16"), "vector"
    independent = {"rows": 256}
    adversarial = ("large", "small", "nan")
    full = ((8192, 32768), (65536, 1024))
    tiny = ((9, 70), (3, 1025), (1, 1), (0, 8))
    tolerance = "one rounding of the output and of each float32 step; exp and log may be off by a few units"

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes["cols"] else "needs at least one column"

    def terms(self, n: Sizes) -> int:
        return n.cols

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(x, axis=1)

    mistakes = {
        "no maximum subtracted": lambda p, n, x: x.exp().sum(-1).log(),
        "the maximum alone": lambda p, n, x: x.amax(-1),
        "last element of each row left out": lambda p, n, x: torch.logsumexp(without_last(x, 1), -1),
    }


class Scan(Expert):
    title, kind, domain = "scan", "kernel", "scans"
    formula = "running sum along each row, its own element included"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"y": "rows cols"}
    dtypes, degree, unit = ("fp32", "bf16"), 1, "vector"
    independent = {"rows": 16}
    full = ((1, 2**26), (4096, 16384))
    tiny = ((5, 70), (1, 1), (2, 1025), (0, 8), (8, 0))
    tolerance = SUMS

    def terms(self, n: Sizes) -> int:
        return n.cols

    def flops(self, n: Sizes) -> float:
        return n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return x @ np.triu(np.ones((n.cols, n.cols)))

    mistakes = {
        "its own element left out": lambda p, n, x: x.cumsum(-1) - x,
        "each block of 32 begins anew": lambda p, n, x: torch.cat([b.cumsum(-1) for b in x.split(32, -1)], -1) if n.cols else x,
        "carries on from the row above": lambda p, n, x: x.flatten().cumsum(0).view(x.shape),
    }


class RunningMaximum(Expert):
    title, kind, domain = "running-maximum", "kernel", "scans"
    formula = "largest element so far, along each row"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"y": "rows cols"}
    drawn_anew = ("x",)
    dtypes, unit, exactly = ("fp32", "bf16"), "vector", ("y",)
    independent = {"rows": 64}
    normals, adversarial = ("normal", "rising"), ("negative",)
    full = ((4096, 16384),)
    tiny = ((5, 70), (1, 1), (2, 1025), (0, 8))
    tolerance = CHOSEN

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = normal(spec.shape, rng, device)
        if case == "rising":  # a new maximum in most places
            return x.mul_(0.5) + torch.arange(n.cols, device=device) * (64 / max(1, n.cols))
        return -x.abs() - 1 if case == "negative" else x

    def flops(self, n: Sizes) -> float:
        return n.rows * n.cols

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.cummax(-1).values

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(x, axis=1)

    mistakes = {
        "starts at zero": lambda p, n, x: x.cummax(-1).values.clamp(min=0),
        "each block of 32 begins anew": lambda p, n, x: torch.cat([b.cummax(-1).values for b in x.split(32, -1)], -1) if n.cols else x,
        "the whole row's": lambda p, n, x: x.amax(-1, keepdim=True).expand_as(x) if n.cols else x,
    }


class Histogram(Expert):
    title, kind, domain = "histogram", "kernel", "histograms"
    formula = "how many x lie in [i, i + 1), for i below the number of bins; others are not counted"
    axes = ("n", "bins")
    inputs, outputs = {"x": "n"}, {"counts": "bins : int64"}
    drawn_anew = ("x",)  # in any order it has the same counts
    dtypes, unit, exactly = ("fp32",), "vector", ("counts",)
    normals, adversarial = ("normal", "crowded"), ()
    full = ((2**26, 256), (2**26, 4096))
    tiny = ((700, 16), (1, 1), (999, 130), (0, 8))
    tolerance = "integer counts: equal; bins are one wide, so that no product decides where a value belongs"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        # a few values lie outside; none near an edge; crowded: half in three bins, as atomics like it least, and of 2^26 values less than
        # 2^24 in each: torch.histc counts float32 inputs in float32
        x = normal(spec.shape, rng, device) * (n.bins / 4 if case == "normal" else 2) + n.bins / 2
        return x.floor() + uniform(spec.shape, rng, device) / 2 + 0.25

    def flops(self, n: Sizes) -> float:
        return n.n

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        at = x.floor()
        inside = (at >= 0) & (at < n.bins)
        return torch.zeros(n.bins + 1, dtype=torch.int64, device=x.device).index_add_(
            0, torch.where(inside, at, n.bins).long(), torch.ones_like(x, dtype=torch.int64)
        )[: n.bins]

    def eager_form(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, n.bins, 0, n.bins).long()

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.array([np.count_nonzero((x >= i) & (x < i + 1)) for i in range(n.bins)])

    mistakes = {
        "values outside counted in the last bin": lambda p, n, x: p.define(n, x.clamp(0, n.bins - 0.5)),
        "rounded, not cut": lambda p, n, x: p.define(n, x.round()),
        "last value not counted": lambda p, n, x: p.define(n, without_last(x, 0)),
    }


PROBLEMS = (RowSum, SumAll, ArgMax, Moments, LogSumExp, Scan, RunningMaximum, Histogram)
