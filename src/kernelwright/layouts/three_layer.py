"""The three-layer layout: a 2:4 part for sparse tensor cores, its empty slots filled with what did not fit, and a rest.

After the abstract of "Accelerating GPU Inference of Large Language Models with Moderately Unstructured Sparse Weight Matrices" (DAC 2026,
arXiv 2607.08786), whose code is not to be had; what the abstract leaves open (window, codes, the order of fillers) is decided here.

Each group of four neighbouring columns has two slots. Its first two non-zeros take them (Sparse-TC layer); a third and fourth overflow.
Within a window of 256 columns of a row, the k-th overflowing weight goes into the k-th slot that is still empty (Slot-Filling layer), and
a byte says how far its column lies from the column of its slot, modulo 256: every distance is relative to its own slot, so all are
decoded at once. What finds no slot is kept with its column (Residual layer).

    slots       int16 (rows, 2 groups)          the values; an empty slot holds 0
    codes       uint8 (rows, ceil(groups / 2))  4 bits a group, the even one in the low bits
    distances   uint8 (filled slots)            in slot order
    residual    int16 (left over)               row by row
    columns     int16 (left over), to be read as unsigned; int32 where the matrix has more than 65,536 columns
    rows        int32 (rows + 1)                where each row's residual begins

A code with first < second (2 + 2 bits, as mma.sp's metadata) is a group of two; first == second a group of one at that column, whose
second slot is free; 3, 0 a group of none. A free slot with a value that is not zero is filled, and its distance is the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelwright.layouts.bits import numbers, pack_bits, place, raw, select, up

NAME = "three-layer"
PARTS = ("slots", "codes", "distances", "residual", "columns", "rows")
FACTS = ()
SIZES = (2,)
WINDOW = 256
CHUNK = 1 << 20
"""Weights packed at a time."""

EMPTY = 3 | 0 << 2


def pack(weight: Tensor) -> tuple[dict[str, Tensor], dict[str, int]]:
    """(rows, columns), contiguous, 16-bit elements -> parts, no facts."""
    rows_at_once = max(1, CHUNK // weight.shape[1])
    chunks = [_pack_rows(raw(some)) for some in weight.split(rows_at_once)]
    parts = {name: torch.cat([chunk[name] for chunk in chunks]) for name in PARTS}
    counts = parts["rows"]
    parts["rows"] = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return parts, {}


def _pack_rows(bits: Tensor) -> dict[str, Tensor]:
    """Some rows -> parts; "rows" holds the residual's count of each row instead of where it begins."""
    rows, columns = bits.shape
    groups, device = up(columns, 4) // 4, bits.device
    windows = up(columns, WINDOW) // WINDOW
    bits = torch.nn.functional.pad(bits, (0, windows * WINDOW - columns)).view(rows, windows, 64, 4)
    mask = bits != 0

    # the first two non-zeros of each group
    packed = pack_bits(mask.view(rows, windows, WINDOW))
    nibble = torch.stack([packed & 15, packed >> 4], 3).view(rows, windows, 64)
    kept = _own(nibble)
    slots = torch.zeros(rows, windows, 128, dtype=torch.int16, device=device)
    place(slots, _taken(nibble).view(slots.shape), select(bits, kept))
    codes = _table(_code, device).index_select(0, nibble.view(-1).to(torch.int32)).view(rows, 64 * windows)[:, :groups]
    codes = torch.nn.functional.pad(codes, (0, groups % 2)).view(rows, (groups + 1) // 2, 2)

    # overflow meets empty slots, window by window
    over = (mask & ~kept).view(rows, windows, WINDOW)
    free = slots == 0
    exists = torch.arange(windows * 128, device=device).view(windows, 128) < 2 * groups
    free &= exists
    matched = torch.minimum(over.sum(2, dtype=torch.int16), free.sum(2, dtype=torch.int16))[:, :, None]
    taken = over & (over.cumsum(2, dtype=torch.int16) <= matched)
    filled = free & (free.cumsum(2, dtype=torch.int16) <= matched)
    flat = bits.view(rows, windows, WINDOW)
    place(slots, filled, select(flat, taken))
    column = torch.arange(WINDOW, device=device, dtype=torch.int16).to(torch.uint8)
    home = column[::4].repeat_interleave(2)
    distances = select(column.expand(over.shape), taken) - select(home.expand(free.shape), filled)

    # the rest
    left = over & ~taken
    number = torch.arange(windows * WINDOW, device=device).to(_index(columns)).view(windows, WINDOW).expand(left.shape)
    return {
        "slots": slots.view(rows, 128 * windows)[:, : 2 * groups].contiguous(),
        "codes": codes[..., 0] | codes[..., 1] << 4,
        "distances": distances,
        "residual": select(flat, left),
        "columns": select(number, left),
        "rows": left.sum((1, 2), dtype=torch.int32),
    }


def unpack(parts: dict[str, Tensor], facts: dict[str, int], out: Tensor) -> None:
    """Writes every element of `out` (rows, columns), contiguous."""
    rows, columns = out.shape
    groups, device = up(columns, 4) // 4, out.device
    width = groups * 4
    codes = torch.stack([parts["codes"] & 15, parts["codes"] >> 4], 2).flatten(1)[:, :groups].reshape(-1).to(torch.int32)
    nibble = _table(_nibble, device).index_select(0, codes).view(rows, groups)
    slots = parts["slots"]
    own = _taken(nibble).view(rows, 2 * groups)
    dense = torch.zeros(rows, width, dtype=torch.int16, device=device)
    place(dense, _own(nibble).view(rows, width), select(slots, own))

    filled = ~own & (slots != 0)
    slot = select(torch.arange(rows * 2 * groups, device=device), filled)
    row, home = slot // (2 * groups), slot % (2 * groups) // 2 * 4
    column = home // WINDOW * WINDOW + (home + parts["distances"]) % WINDOW
    dense.view(-1)[row * width + column] = select(slots, filled)
    row = torch.repeat_interleave(torch.arange(rows, device=device), parts["rows"].diff())
    dense.view(-1)[row * width + _unsigned(parts["columns"])] = parts["residual"]
    raw(out).copy_(dense[:, :columns])


def _index(columns: int) -> torch.dtype:
    return torch.int16 if columns <= 1 << 16 else torch.int32


def _unsigned(index: Tensor) -> Tensor:
    return index.to(torch.int64) & (0xFFFF if index.dtype == torch.int16 else 0xFFFFFFFF)


def _own(nibble: Tensor) -> Tensor:
    """The first two set bits of each nibble, bool (..., 4)."""
    bits = numbers(4, nibble.device)
    return _look_up(((bits != 0) & (bits.cumsum(1) <= 2)).view(torch.int32), nibble)


def _taken(nibble: Tensor) -> Tensor:
    """Which of its two slots a group takes itself, bool (..., 2)."""
    counts = numbers(4, nibble.device).sum(1)
    return _look_up((counts[:, None] > torch.arange(2, device=nibble.device)).view(torch.int16), nibble)


def _look_up(table: Tensor, nibble: Tensor) -> Tensor:
    """From a table of 16 groups of bools, each seen as one integer."""
    found = table.view(16).index_select(0, nibble.reshape(-1).to(torch.int32))
    return found.view(torch.bool).view(*nibble.shape, table.element_size())


def _code(nibble: int) -> int:
    """Bits 0 and 1: the column of the first slot; bits 2 and 3: of the second."""
    columns = [i for i in range(4) if nibble >> i & 1][:2]
    return columns[0] | columns[-1] << 2 if columns else EMPTY


def _nibble(code: int) -> int:
    return 0 if code == EMPTY else 1 << (code & 3) | 1 << (code >> 2)


def _table(entry, device: torch.device) -> Tensor:
    values = [entry(i) for i in range(16)]
    return torch.tensor(values, dtype=torch.uint8, device=device)
