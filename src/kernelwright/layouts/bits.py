"""Masks as bits, and picking the marked elements of a tensor: what all layouts are made of.

Weights are handled as integers of the same size, so that NaN, denormals and -0.0 pass through unchanged. An element counts as zero only
if all its bits are: -0.0 is kept."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# 8 bools are one 64-bit word; this multiplier moves bit 0 of byte i to bit 56 + i, with no two partial products in one place, hence no
# carry.
_GATHER = 0x0102040810204080


def raw(weight: Tensor) -> Tensor:
    """The same memory as integers of the element's size."""
    return weight.view(_INTEGERS[weight.element_size()])


def dtype_name(dtype: torch.dtype) -> str:
    """float16, bfloat16, ..."""
    return str(dtype).removeprefix("torch.")


def negative_zeros(weight: Tensor) -> Tensor:
    """bool: where only the sign's bit is set."""
    bits = raw(weight)
    return bits == (torch.iinfo(bits.dtype).min or 128)  # 8 bits are unsigned


def numbers(width: int, device: torch.device) -> Tensor:
    """The bits of all numbers of so many, int64 (2**width, width); the lowest first."""
    n = torch.arange(1 << width, device=device)
    return (n[:, None] >> n[:width]) & 1


def pack_bits(mask: Tensor) -> Tensor:
    """bool (..., 8 n) -> uint8 (..., n); the first of eight is the lowest bit."""
    return ((mask.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """uint8 (..., n) -> bool (..., 8 n)."""
    table = numbers(8, packed.device).to(torch.uint8).view(torch.int64).view(256)
    words = table.index_select(0, packed.reshape(-1).to(torch.int32))
    return words.view(torch.bool).view(*packed.shape[:-1], packed.shape[-1] * 8)


def count_bits(packed: Tensor) -> Tensor:
    """uint8 of any shape -> int32: how many bits each byte has set."""
    table = numbers(8, packed.device).sum(1, dtype=torch.int32)
    return table.index_select(0, packed.reshape(-1).to(torch.int32)).view(packed.shape)


def select(values: Tensor, mask: Tensor) -> Tensor:
    """The marked elements in row-major order, 1-D. On the CPU through numpy: torch's masked_select took 4 times as long (one core, 45 M
    elements)."""
    if values.device.type != "cpu":
        return torch.masked_select(values, mask)
    where = np.flatnonzero(mask.reshape(-1).numpy())
    out = torch.empty(where.shape[0], dtype=values.dtype)
    values.reshape(-1).numpy().take(where, out=out.numpy(), mode="clip")  # the other modes buffer `out`
    return out


def place(out: Tensor, mask: Tensor, values: Tensor) -> None:
    """Writes `values` into the marked elements of `out` in row-major order; both are contiguous."""
    if out.device.type != "cpu":
        out.masked_scatter_(mask, values)
    else:
        out.view(-1).numpy()[np.flatnonzero(mask.reshape(-1).numpy())] = values.numpy()


def up(n: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below n."""
    return -(-n // multiple) * multiple
