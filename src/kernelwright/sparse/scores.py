"""Which weights go: scores and masks. All of this is shape (rows, columns) = (outputs, inputs), fp32.

magnitude   |w|                       Han et al., "Learning both Weights and Connections for Efficient Neural Networks", NeurIPS 2015
wanda       |w| * ||x_column||_2      Sun et al., "A Simple and Effective Pruning Approach for Large Language Models", ICLR 2024
sparsegpt   w^2 / [H^-1]_column^2     `sparsegpt.py`
"""

from __future__ import annotations

import torch
from torch import Tensor


def lowest_in_rows(scores: Tensor, count: int) -> Tensor:
    """bool: exactly `count` of each row, those of the lowest score; of equal ones the leftmost."""
    if not count:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(count, 1, keepdim=True).values
    below, equal = scores < threshold, scores == threshold
    return below | (equal & (equal.cumsum(1) <= count - below.sum(1, keepdim=True)))


def lowest_in_layer(scores: Tensor, count: int) -> Tensor:
    """bool: exactly `count` of the whole matrix."""
    return lowest_in_rows(scores.reshape(1, -1), count).view(scores.shape)


def lowest(scores: Tensor, sparsity: float, scope: str) -> Tensor:
    """bool: round(sparsity * n) of each row (scope "row") or of the layer (scope "layer")."""
    if scope == "row":
        return lowest_in_rows(scores, round(sparsity * scores.shape[1]))
    return lowest_in_layer(scores, round(sparsity * scores.numel()))


def wanda(weight: Tensor, square_sums: Tensor) -> Tensor:
    """Weight (rows, columns) and the sum of x^2 of each input column (columns) over all calibration tokens."""
    return weight.float().abs() * square_sums.sqrt()
