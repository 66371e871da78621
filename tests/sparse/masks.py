"""Masks and weights that the layouts are tried on."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("random", "rows", "banded", "empty", "full", "single", "one row", "columns", "half")


def mask(kind: str, rows: int, columns: int, sparsity: float = 0.5, seed: int = 0) -> Tensor:
    """bool (rows, columns), True where a weight is kept."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, columns, generator=g)
    keep = torch.zeros(rows, columns, dtype=torch.bool)
    match kind:
        case "random":
            keep = scores >= sparsity
        case "rows":  # as many in each row
            keep.scatter_(1, scores.argsort(1)[:, round(sparsity * columns) :], True)
        case "banded":
            keep = (torch.arange(rows)[:, None] - torch.arange(columns)).abs() < 1 + columns // 4
        case "full":
            keep[:] = True
        case "single":
            keep.view(-1)[int(torch.randint(keep.numel(), (1,), generator=g))] = True
        case "one row":
            keep[int(torch.randint(rows, (1,), generator=g))] = True
        case "columns":  # of four neighbours the first two: what 2:4 slots hold without overflow
            keep[:] = torch.arange(columns) % 4 < 2
        case "half":  # dense on the left, empty on the right: too uneven for 8-bit prefixes
            keep[:, : (columns + 1) // 2] = True
    return keep


def weight(kind: str, rows: int, columns: int, dtype: torch.dtype = torch.float16, sparsity: float = 0.5, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed + 1)
    values = torch.randn(rows, columns, generator=g).mul(0.02).to(dtype)
    values[values == 0] = 1
    values[~mask(kind, rows, columns, sparsity, seed)] = 0
    return values
