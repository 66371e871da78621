"""The canonical layout: the values of all non-zeros, row by row, and one bit for each weight. What is kept on disk.

values        (nonzeros,)              as integers of the weight's element size
bitmask       (rows, ceil(columns/8))  uint8, column 8 i + b is bit b of byte i
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelwright.layouts.bits import pack_bits, place, raw, select, unpack_bits, up

NAME = "bitmask"
PARTS = ("values", "bitmask")
FACTS = ()
SIZES = (1, 2, 4)
"""Bytes of an element that the layout holds."""


def pack(weight: Tensor) -> tuple[dict[str, Tensor], dict[str, int]]:
    """(rows, columns), contiguous -> parts, facts."""
    bits = raw(weight)
    mask = bits != 0
    values, missing = select(bits, mask), up(mask.shape[1], 8) - mask.shape[1]
    return {"values": values, "bitmask": pack_bits(torch.nn.functional.pad(mask, (0, missing)) if missing else mask)}, {}


def unpack(parts: dict[str, Tensor], facts: dict[str, int], out: Tensor) -> None:
    """Writes every element of `out` (rows, columns), contiguous."""
    out.zero_()
    mask = unpack_bits(parts["bitmask"])[:, : out.shape[1]]
    place(raw(out), mask, parts["values"])
