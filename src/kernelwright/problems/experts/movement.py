"""Moving data: transposing, gathering, scattering, adding rows up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import DTYPES, Workload

MOVED = "values are moved, not computed: bit-equal"


class Movement(Expert):
    kind, domain, unit = "kernel", "data movement", "vector"
    tolerance = MOVED
    normals, adversarial = ("normal",), ("nan",)
    exactly = ("y",)

    def flops(self, n: Sizes) -> float:
        return 0.0


class Transpose(Movement):
    title = "transpose"
    formula = "y[j, i] = x[i, j]"
    axes = ("rows", "cols")
    inputs, outputs = {"x": "rows cols"}, {"y": "cols rows"}
    full = ((16384, 16384), (65536, 1000))
    tiny = ((9, 70), (1, 1), (33, 65), (0, 8))

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.T.contiguous()

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.array([[x[i, j] for i in range(n.rows)] for j in range(n.cols)]).reshape(n.cols, n.rows)

    mistakes = {
        "read as the other shape": lambda p, n, x: x.reshape(n.cols, n.rows),
        "blocks of 8 not transposed inside": lambda p, n, x: torch.cat([b.flip(1) if b.shape[1] > 1 else b for b in x.T.split(8, 1)], 1),
    }


class Permute(Movement):
    title = "permute"
    formula = "y[b, h, t, d] = x[b, t, h, d]"
    axes = ("B", "T", "H", "D")
    inputs, outputs = {"x": "B T H D"}, {"y": "B H T D"}
    independent = {"B": 2}
    full = ((16, 4096, 32, 128), (64, 1024, 16, 64))
    tiny = ((2, 6, 5, 8), (1, 1, 1, 1), (3, 7, 2, 3), (0, 2, 2, 2))

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous()

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.einsum("bthd->bhtd", x)

    mistakes = {
        "read as the other shape": lambda p, n, x: x.reshape(n.B, n.H, n.T, n.D),
        "heads in reverse": lambda p, n, x: p.define(n, x).flip(1),
    }


class Indexed(Movement):
    """With T row numbers below V."""

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "index":
            return torch.randint(n.V, spec.shape, generator=rng, device=device)
        return super().draw(n, case, spec, rng, device)

    def refuses(self, w: Workload) -> str | None:
        return None if w.axes.get("V", 1) else "needs at least one row to take from or add to (V)"


class Gather(Indexed):
    title = "gather"
    formula = "y[t] = table[index[t]], rows of an embedding table"
    axes = ("T", "V", "D")
    inputs, outputs = {"table": "V D", "index": "T : int64"}, {"y": "T D"}
    full = ((65536, 131072, 4096), (1048576, 1000000, 64))
    tiny = ((20, 50, 12), (1, 1, 1), (7, 3, 33), (0, 4, 8))
    independent = {"T": 1024}
    adversarial = ()

    def traffic(self, w: Workload) -> float:
        """Rows are read once each: at least those that T random numbers meet, less a tenth for luck."""
        n = self.sizes(w)
        met = 0.9 * n.V * -math.expm1(-n.T / n.V)
        return (n.T + met) * n.D * DTYPES[w.dtype] + 8 * n.T

    def define(self, n: Sizes, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table.index_select(0, index)

    def second(self, n: Sizes, table: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.array([table[i] for i in index]).reshape(n.T, n.D)

    mistakes = {
        "the row after": lambda p, n, table, index: p.define(n, table.roll(-1, 0), index) if n.V > 1 else table.new_zeros(n.T, n.D),
        "index of the token before": lambda p, n, table, index: p.define(n, table, index.roll(1)),
        "numbers cut to 4 bits": lambda p, n, table, index: p.define(n, table, index % 16),
    }


class Scatter(Movement):
    title = "scatter"
    formula = "y[index[t]] = x[t], index a permutation"
    axes = ("T", "D")
    inputs, outputs = {"x": "T D", "index": "T : int64"}, {"y": "T D"}
    drawn_anew = ("index",)
    full = ((131072, 2048), (1048576, 64))
    tiny = ((20, 12), (1, 1), (7, 33), (0, 8))

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "index":
            return torch.randperm(n.T, generator=rng, device=device)
        return super().draw(n, case, spec, rng, device)

    def define(self, n: Sizes, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).index_copy_(0, index, x)

    def second(self, n: Sizes, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        return x[np.argsort(index)]

    mistakes = {
        "gathered, not scattered": lambda p, n, x, index: x[index],
        "last row of x left out": lambda p, n, x, index: torch.zeros_like(x).index_copy_(0, index[:-1], x[:-1]),
    }


class IndexAdd(Indexed):
    title = "index-add"
    formula = "y = base; y[index[t]] += x[t], as an embedding's gradient"
    axes = ("T", "V", "D")
    inputs, outputs = {"base": "V D", "x": "T D", "index": "T : int64"}, {"y": "V D"}
    exactly, degree, normals, adversarial = (), 1, ("normal", "spread"), ("small", "nan")
    dtypes = ("fp32",)
    full = ((65536, 32768, 1024), (1048576, 100000, 64))
    tiny = ((20, 11, 12), (1, 1, 1), (40, 3, 5), (0, 4, 8))
    tolerance = "the random walk of the float32 additions to one row, in any order"

    def terms(self, n: Sizes) -> int:
        # the fullest of V rows: twice the mean, and a margin for few
        return 1 + min(n.T, 2 * (n.T // n.V) + 8)

    def flops(self, n: Sizes) -> float:
        return n.T * n.D

    def define(self, n: Sizes, base: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return base.index_add(0, index, x)

    def second(self, n: Sizes, base: np.ndarray, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        y = base.copy()
        np.add.at(y, index, x)
        return y

    mistakes = {
        "the last of several wins": lambda p, n, base, x, index: base + torch.zeros_like(base).index_copy_(0, index, x),
        "last row of x left out": lambda p, n, base, x, index: base.index_add(0, index[:-1], x[:-1]),
    }


PROBLEMS = (Transpose, Permute, Gather, Scatter, IndexAdd)
