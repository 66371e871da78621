"""How the tensors of a call lie in memory, as plans and libraries ask for it."""

from __future__ import annotations

from torch import Tensor

ALIGNED = 16
"""Bytes: what TMA and 16-byte loads need. Larger alignments are not told apart."""


def stored(t: Tensor) -> tuple[str, int]:
    """How a tensor lies in memory: ("n", elements between its rows), or ("t", ...) for the transposed view of such a matrix.

    Raises ValueError for anything else, rows that overlap, and axes before the last two that are not just more rows."""
    shape, strides = t.shape, t.stride()
    if t.dim() < 2 and (t.dim() == 0 or strides[0] == 1 or shape[0] == 1):
        return "n", t.numel()
    if t.dim() >= 2 and strides[-1] == 1 and (strides[-2] >= shape[-1] or shape[-2] == 1):
        if all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(t.dim() - 2)):
            return "n", strides[-2]
    elif t.dim() == 2 and strides[0] == 1 and (strides[1] >= shape[0] or shape[1] == 1):
        return "t", strides[1]
    raise ValueError(f"a tensor of shape {tuple(shape)} with strides {strides} is not served; call .contiguous() on it")


def alignment(t: Tensor) -> int:
    """Of its address, bytes, at most ALIGNED."""
    address = t.data_ptr() | ALIGNED
    return address & -address
