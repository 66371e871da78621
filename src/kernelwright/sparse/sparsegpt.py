"""SparseGPT: prunes a layer and changes the weights that stay so that its outputs on the calibration data change least.

After Frantar and Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot", ICML 2023. Columns are handled from
left to right. A weight that is pruned at column c leaves an error, which the optimal brain surgeon's update spreads over the columns
right of c of the same row. All rows share one inverse Hessian for each c, that of the columns from c on, and the rows of the Cholesky
factor of H^-1 hold all of them. Masks are chosen for a block of columns at a time, from the weights as they are then; the columns right
of the block are updated once for the whole block."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelwright.sparse.scores import lowest_in_layer, lowest_in_rows

BLOCK = 128
"""Columns in a block: the paper's."""
DAMPING = 0.01
"""Added to the Hessian's diagonal, as a part of its mean: the paper's."""


def prune(weight: Tensor, hessian: Tensor, sparsity: float, scope: str = "layer", block: int = BLOCK, damping: float = DAMPING) -> Tensor:
    """The pruned weight, fp32. Weight (rows, columns), hessian (columns, columns) = the sum of x x^T over all calibration tokens, fp32.

    Scope "layer": each block of columns loses the same part, chosen among all its weights, as in the paper. Scope "row": each row loses
    the same part of each block, so that it ends with exactly round(sparsity * columns) zeros. Raises ValueError where the Hessian is not
    positive."""
    weight = weight.to(torch.float32, copy=True)
    rows, columns = weight.shape
    factor = _inverse_factor(weight, hessian.to(torch.float32, copy=True), damping)
    done = 0
    for begin in range(0, columns, block):
        end = min(begin + block, columns)
        here, small = weight[:, begin:end], factor[begin:end, begin:end]
        scores = (here / small.diagonal()) ** 2
        total = round(sparsity * end * (rows if scope == "layer" else 1))  # so far, so that rounding does not add up
        mask = (lowest_in_layer if scope == "layer" else lowest_in_rows)(scores, total - done)
        done = total
        errors = torch.zeros_like(here)
        for column in range(end - begin):
            error = torch.where(mask[:, column], here[:, column], 0) / small[column, column]
            errors[:, column] = error
            here[:, column:] -= torch.outer(error, small[column, column:])
        here.masked_fill_(mask, 0)
        weight[:, end:] -= errors @ factor[begin:end, end:]
    return weight


def _inverse_factor(weight: Tensor, hessian: Tensor, damping: float) -> Tensor:
    """Upper triangular U with U^T U = H^-1. Columns that saw no input get no weight and a Hessian of one."""
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    weight[:, dead] = 0
    hessian.diagonal().add_(damping * hessian.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(hessian)
    upper, failed_too = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if int(failed) or int(failed_too):
        raise ValueError("the calibration data's second moments are not positive definite; give more or other data, or a larger damping")
    return upper
