"""Layouts of half-empty weights: what is stored, and how it is packed and unpacked. torch alone; docs/sparse.md has pictures."""

from __future__ import annotations

import torch

TURN = 16
"""Rows: all layouts have strips of so many."""


def in_turn(gate: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two weights (M, K) as one (2 M, K): 16 rows of the one, 16 of the other and so on, so that a kernel has both results of a gated layer
    in one place. M is a multiple of 16. Works for biases (M), too."""
    return torch.stack([gate.unflatten(0, (-1, TURN)), other.unflatten(0, (-1, TURN))], 1).flatten(0, 2)
