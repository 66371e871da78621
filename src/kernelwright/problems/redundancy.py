"""How redundant a tensor is: copies among its slices, periods, and numerical rank below its size, from samples of it.

CUDAHercules' task 48 fills its operands with a short period; of 1024 rows ten are distinct and the product has 97 values, so a kernel
that computes a few rows and copies them passes. Slices are compared by a 64-bit hash of their bits, which is exact for our purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SLICES = 4096
"""At most so many neighbouring slices of an axis are looked at."""
PER_SLICE = 4096
"""Elements of a slice that are hashed, drawn at random: equal slices stay equal."""
LEAST = 8
"""An axis shorter than this says nothing, nor do slices of fewer elements."""
BLOCK = 256
"""Rank is that of a random block of at most so many rows and columns: the rank of a block of low rank is as low."""


@dataclass(frozen=True)
class Repetition:
    """Along one axis."""

    axis: int
    slices: int
    """Looked at."""
    distinct: int
    period: int
    """The smallest shift under which all of them agree; 0 for none up to half of the axis."""


def repetition(x: torch.Tensor) -> list[Repetition]:
    """Of each axis on which slices repeat: more than half of them are copies of others, or they have a period."""
    found = []
    rng = torch.Generator().manual_seed(0)
    for axis, size in enumerate(x.shape):
        if size < 2 * LEAST or not x.numel():
            continue
        hashes = _hashes(x.narrow(axis, 0, min(size, SLICES)), axis, rng)
        distinct = int(hashes.unique().numel())
        wide = x.numel() // size >= LEAST
        period = _period(hashes) if distinct <= len(hashes) // 2 else 0
        if period or (wide and distinct <= len(hashes) // 2 and x.is_floating_point()):
            found.append(Repetition(axis, len(hashes), distinct, period))
    return found


def _hashes(x: torch.Tensor, axis: int, rng: torch.Generator) -> torch.Tensor:
    """One number for each slice across `axis`."""
    rows = x.movedim(axis, 0).reshape(x.shape[axis], -1)
    if rows.shape[1] > PER_SLICE:
        rows = rows[:, torch.randint(rows.shape[1], (PER_SLICE,), generator=rng).to(x.device)]
    if rows.is_floating_point():
        rows = rows + 0.0  # minus zero is zero
    bits = rows.contiguous().view(_INTEGERS[rows.element_size()]).long()
    weights = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=rng).mul_(2).add_(1).to(x.device)
    return (bits * weights).sum(1)


def _period(h: torch.Tensor) -> int:
    for shift in (h[1:] == h[0]).nonzero().flatten()[: len(h) // 2].tolist():
        period = shift + 1
        if period <= len(h) // 2 and torch.equal(h[period:], h[:-period]):
            return period
    return 0


def rank(x: torch.Tensor) -> tuple[int, int] | None:
    """(numerical rank, largest possible) of a random block of the tensor as a matrix, its last axis in columns; None for one too small.

    Singular values count above max(m, n) roundings of float32 of the largest, as `numpy.linalg.matrix_rank` counts.
    """
    if x.ndim < 2 or not x.is_floating_point() or not x.numel():
        return None
    matrix = x.reshape(-1, x.shape[-1])
    rng = torch.Generator().manual_seed(0)
    rows, cols = (torch.randperm(min(n, 2**20), generator=rng)[:BLOCK].to(x.device) for n in matrix.shape)
    block = matrix[rows][:, cols].double()
    most = min(block.shape)
    if most < LEAST or not bool(torch.isfinite(block).all()):
        return None
    values = torch.linalg.svdvals(block)
    return int((values > values[0] * max(block.shape) * 2.0**-23).sum()), most
