"""Sorting and selecting. Keys are distinct where the order of equal ones would be free."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.products import without_last
from kernelwright.problems.experts.reductions import CHOSEN, distinct
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload


class Ordering(Expert):
    kind, domain, unit = "kernel", "sorting", "vector"
    axes = ("rows", "cols")
    dtypes = ("fp32",)
    normals, adversarial = ("normal",), ("sorted", "reversed")
    tolerance = CHOSEN
    drawn_anew = ("x",)  # a row in another order is sorted to the same

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = distinct(spec.shape, rng, device)
        return x.sort(-1, descending=case == "reversed").values if case in ("sorted", "reversed") else x

    def flops(self, n: Sizes) -> float:
        return n.rows * n.cols


class Sort(Ordering):
    title = "sort"
    formula = "each row in rising order, and the column each came from"
    inputs, outputs = {"x": "rows cols"}, {"y": "rows cols", "order": "rows cols : int64"}
    exactly = ("y", "order")
    full = ((1, 2**24), (4096, 4096))
    tiny = ((4, 70), (1, 1), (2, 1025), (0, 8))

    def define(self, n: Sizes, x: torch.Tensor) -> Any:
        return tuple(x.sort(-1))

    def second(self, n: Sizes, x: np.ndarray) -> Any:
        order = np.argsort(x, axis=1, kind="heapsort")
        return np.sort(x, axis=1), order

    mistakes = {
        "falling": lambda p, n, x: tuple(x.sort(-1, descending=True)),
        "the inverse permutation": lambda p, n, x: (x.sort(-1).values, x.argsort(-1).argsort(-1)),
        "last two elements as they came": lambda p, n, x: (torch.cat([x[:, :-2].sort(-1).values, x[:, -2:]], -1), x.argsort(-1)),
    }


class SortStable(Ordering):
    title = "sort-stable"
    formula = "column order that sorts each row of small integers, equal ones staying in order"
    inputs, outputs = {"x": "rows cols : int32"}, {"order": "rows cols : int64"}
    exactly = ("order",)
    dtypes = ("int32",)
    adversarial = ("two-values",)
    full = ((1, 2**24), (2048, 8192))
    tiny = ((4, 70), (1, 1), (2, 1025), (0, 8))

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        return torch.randint(2 if case == "two-values" else max(2, n.cols // 8), spec.shape, generator=rng, device=device) - 1

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return x.argsort(dim=-1, stable=True)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return np.argsort(x.astype(np.int64) * n.cols + np.arange(n.cols), axis=1)

    mistakes = {
        "equal ones in reverse": lambda p, n, x: n.cols - 1 - x.flip(-1).argsort(dim=-1, stable=True),
        "signs not looked at": lambda p, n, x: x.abs().argsort(dim=-1, stable=True),
        "falling": lambda p, n, x: x.argsort(dim=-1, stable=True, descending=True),
    }


class TopK(Ordering):
    title = "top-k"
    formula = "the k largest of each row in falling order, and their columns"
    axes = ("rows", "cols", "k")
    inputs, outputs = {"x": "rows cols"}, {"values": "rows k", "index": "rows k : int64"}
    exactly = ("values", "index")
    full = ((128, 131072, 64), (4096, 4096, 8))
    tiny = ((4, 70, 9), (1, 1, 1), (2, 1025, 40), (0, 8, 2), (3, 8, 8))

    def refuses(self, w: Workload) -> str | None:
        return None if 0 < w.axes["k"] <= w.axes["cols"] else "needs a k of at least 1 and at most cols"

    def define(self, n: Sizes, x: torch.Tensor) -> Any:
        return tuple(x.topk(n.k, -1))

    def second(self, n: Sizes, x: np.ndarray) -> Any:
        order = np.argsort(-x, axis=1)[:, : n.k]
        return np.take_along_axis(x, order, 1), order

    mistakes = {
        "the smallest": lambda p, n, x: tuple(x.topk(n.k, -1, largest=False)),
        "not in order": lambda p, n, x: tuple(t.flip(-1) for t in x.topk(n.k, -1)),
        "last column not looked at": lambda p, n, x: tuple(torch.cat([without_last(x, 1), x[:, :1] - 2**20], 1).topk(n.k, -1)),
    }


PROBLEMS = (Sort, SortStable, TopK)
