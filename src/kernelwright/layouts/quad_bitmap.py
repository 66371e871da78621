"""The quad-bitmap layout: a bitmap, a prefix for each of its words, and the values in the order of tensor-core fragments.

The matrix is cut into records of 16 rows x 128 columns (padded with zeros), strip by strip, each strip from left to right. A record
stands alone: one bulk copy brings it into shared memory, and every lane finds its values with one population count per four weights,
without a scan and without asking another lane.

    records   uint8, all records back to back, each a multiple of 16 bytes
    offsets   int32 (strips * records in a strip + 1), where each begins, in units of 16 bytes

A record is the headers of its two chunks (64 columns each), its values, and zeros up to the next multiple of 16 bytes:

    chunk's header, 8-bit prefixes: 128 bytes bitmap [w][u] uint32, 32 bytes prefix [w][u] uint8        record's header: 320 bytes
    chunk's header, 16-bit prefixes: 128 bytes bitmap [w][u] uint32, 64 bytes prefix [w][u] uint16      record's header: 384 bytes

Unit u = 2 j + h is two registers of one m16n8k16 (h = 0: a0, a2; h = 1: a1, a3) in k-step j of the chunk. Lane = 4 g + t owns in each
unit a quad: four weights of row g + 8 h, which are bits 4 (lane % 8) ... + 3 of word w = lane / 8. Values follow each other in the order
(chunk, unit, lane, element of the quad). The columns of a quad, within the chunk:

    order "tile"   16 j + {2 t, 2 t + 1, 2 t + 8, 2 t + 9}   what mma and wgmma expect of activations that lie in memory as they are
    order "lane"   16 t + 4 j + {0, 1, 2, 3}                 a lane's columns lie together: 32 consecutive bytes of an activation row

An 8-bit prefix is 128 + the values of the record before this word - expected * (32 chunk + 4 u + w); `expected` is one number for the
matrix. Where a mask is too uneven for that (the padding of rows that are no multiple of 16 and columns that are none of 128 makes it so),
all prefixes have 16 bits and are the value's address in bytes from the record's beginning."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelwright.layouts.bits import count_bits, pack_bits, raw, select, unpack_bits, up

NAME = "quad-bitmap"
PARTS = ("records", "offsets")
FACTS = ("prefix_bits", "expected", "order", "largest")
SIZES = (2,)

ROWS, COLUMNS = 16, 128
WEIGHTS = ROWS * COLUMNS
WORDS = WEIGHTS // 32
ALIGN = 16
ORDERS = ("tile", "lane")

CHUNK, GPU_CHUNK = 1 << 20, 1 << 25
"""Weights packed or unpacked at a time: what is made on the way is 20 bytes for each of them, and stays in a CPU's cache."""


def header(prefix_bits: int) -> int:
    """Bytes before a record's values."""
    return WEIGHTS // 8 + WORDS * prefix_bits // 8


def pack(weight: Tensor, order: str = "tile", expected: int | None = None) -> tuple[dict[str, Tensor], dict[str, int]]:
    """(rows, columns), contiguous, 16-bit elements -> parts, facts (prefix_bits, expected, order, largest: the largest record in bytes).
    `expected` is the matrix's own mean unless it is given."""
    if order not in ORDERS:
        raise ValueError(f"no order {order!r} of quad-bitmap; choose one of {', '.join(ORDERS)}")
    rows, columns = weight.shape
    words = up(rows, ROWS) * up(columns, COLUMNS) // 32
    if expected is None:
        expected = round(int(torch.count_nonzero(raw(weight))) / words)
    for prefix_bits in (8, 16):
        layout = {"prefix_bits": prefix_bits, "expected": expected, "order": ORDERS.index(order)}
        strips = max(1, _chunk(weight) // up(columns, COLUMNS) // ROWS)
        chunks = [_pack_strips(raw(some), layout) for some in weight.split(strips * ROWS)]
        if None not in chunks:
            break
    records, sizes = (torch.cat(some) for some in zip(*(chunk for chunk in chunks if chunk is not None), strict=True))
    offsets = torch.zeros(sizes.shape[0] + 1, dtype=torch.int64, device=weight.device)
    torch.cumsum(sizes // ALIGN, 0, out=offsets[1:])
    if int(offsets[-1]) >= 1 << 31:
        raise ValueError("the packed weight is larger than 32 GiB; split it by rows first")
    return {"records": records, "offsets": offsets.to(torch.int32)}, {**layout, "largest": int(sizes.max())}


def _chunk(weight: Tensor) -> int:
    return CHUNK if weight.device.type == "cpu" else GPU_CHUNK


def _pack_strips(bits: Tensor, layout: dict[str, int]) -> tuple[Tensor, Tensor] | None:
    """Some strips -> records (uint8) and the bytes of each; None where a prefix does not fit into its bits."""
    bits = _padded(bits)
    values = _to_records(bits, layout["order"])
    n, head = values.shape[0], header(layout["prefix_bits"])
    packed = pack_bits(values != 0)
    counts = count_bits(packed).view(n, WORDS, 4).sum(2, dtype=torch.int32)
    ends = counts.cumsum(1, dtype=torch.int32)
    before, nonzeros = ends - counts, ends[:, -1]
    if layout["prefix_bits"] == 8:
        prefix = before - layout["expected"] * torch.arange(WORDS, device=bits.device, dtype=torch.int32) + 128
        if int(prefix.min()) < 0 or int(prefix.max()) > 255:
            return None
        prefix = prefix.to(torch.uint8)
    else:
        prefix = (before * 2 + head).to(torch.int16)

    # every record is laid out at its full width, and what it does not need is left out in one pass over all of them
    sizes = (head + 2 * nonzeros + ALIGN - 1) // ALIGN * ALIGN
    wide = torch.zeros(n, head // 2 + WEIGHTS + ALIGN // 2, dtype=torch.int16, device=bits.device)
    wide[:, : head // 2] = _headers(packed, prefix)
    wide[:, head // 2 : head // 2 + WEIGHTS] = values
    keep = wide != 0
    keep[:, : head // 2] = True
    spare = (sizes - head) // 2 - nonzeros
    keep[:, head // 2 + WEIGHTS :] = torch.arange(ALIGN // 2, device=bits.device) < spare[:, None]
    return select(wide, keep).view(torch.uint8), sizes


def unpack(parts: dict[str, Tensor], facts: dict[str, int], out: Tensor) -> None:
    """Writes every element of `out` (rows, columns), contiguous. Reads the records as a kernel does, through offsets and prefixes, and
    never waits for the device."""
    rows, columns = out.shape
    per_strip = up(columns, COLUMNS) // COLUMNS
    offsets, records = parts["offsets"], parts["records"].view(torch.int16)
    at_once = max(1, _chunk(out) // (per_strip * WEIGHTS))
    for strip in range(0, up(rows, ROWS) // ROWS, at_once):
        few = offsets[strip * per_strip : (strip + at_once) * per_strip]
        few = few[: min(few.shape[0], offsets.shape[0] - 1 - strip * per_strip)].to(torch.int64) * (ALIGN // 2)
        values = _read(records, few, facts)
        dense = _from_records(values, per_strip, facts["order"])
        here = raw(out)[strip * ROWS : (strip + at_once) * ROWS]
        here.copy_(dense[: here.shape[0], :columns])


def _read(records: Tensor, at: Tensor, facts: dict[str, int]) -> Tensor:
    """int16 (n, 2048) in value order, of the records that begin at these 16-bit elements."""
    n, head = at.shape[0], header(facts["prefix_bits"]) // 2
    heads = records[at[:, None] + torch.arange(head, device=at.device)].view(n, 2, head // 2)
    words = heads[:, :, :64].contiguous().view(torch.int32).view(n, 2, 4, 8).permute(0, 1, 3, 2).contiguous()
    mask = unpack_bits(words.view(n, WORDS).view(torch.uint8)).view(n, WORDS, 32)
    prefix = heads[:, :, 64:].contiguous()
    if facts["prefix_bits"] == 8:
        prefix = prefix.view(torch.uint8).view(n, 2, 4, 8).permute(0, 1, 3, 2).reshape(n, WORDS).to(torch.int64)
        start = prefix - 128 + head + facts["expected"] * torch.arange(WORDS, device=at.device)
    else:
        start = prefix.view(n, 2, 4, 8).permute(0, 1, 3, 2).reshape(n, WORDS).to(torch.int64) // 2
    start += at[:, None] - 1
    if records.shape[0] < 1 << 31:  # half the memory to go through
        start = start.to(torch.int32)
    index = start[:, :, None] + mask.cumsum(2, dtype=torch.int8)
    index.clamp_(0, records.shape[0] - 1)  # a quad without values may point past the last record
    return (records.index_select(0, index.view(-1)).view(mask.shape) * mask).view(n, WEIGHTS)


def _headers(packed: Tensor, prefix: Tensor) -> Tensor:
    """Words and prefixes in value order (chunk, u, w) -> int16 (n, header / 2) as [chunk][bitmap [w][u], prefix [w][u]]."""
    n = packed.shape[0]
    words = packed.view(torch.int32).view(n, 2, 8, 4).permute(0, 1, 3, 2).reshape(n, 2, 32)
    prefix = prefix.view(n, 2, 8, 4).permute(0, 1, 3, 2).reshape(n, 2, 32)
    return torch.cat([words.view(torch.int16), prefix.view(torch.int16)], 2).flatten(1)


def _padded(bits: Tensor) -> Tensor:
    rows, columns = bits.shape
    more = (0, up(columns, COLUMNS) - columns, 0, up(rows, ROWS) - rows)
    return torch.nn.functional.pad(bits, more) if any(more) else bits


# In both orders two neighbours stay neighbours, so they move as one 32-bit element: a third of the time of a permutation of 16-bit ones.
_TILE = (0, 3, 4, 5, 1, 2, 7, 6)  # (strip, h, g, record, chunk, j, upper, t) -> (strip, record, chunk, j, h, g, t, upper)
_LANE = (0, 3, 4, 6, 1, 2, 5, 7)  # (strip, h, g, record, chunk, t, j, pair) -> (strip, record, chunk, j, h, g, t, pair)


def _order(order: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return ((4, 2, 4), _TILE) if order == 0 else ((4, 4, 2), _LANE)


def _to_records(bits: Tensor, order: int) -> Tensor:
    """int16 (16 strips, 128 per strip) -> (records, 2048) in value order."""
    inner, axes = _order(order)
    strips, per_strip = bits.shape[0] // ROWS, bits.shape[1] // COLUMNS
    pairs = bits.view(torch.int32).view(strips, 2, 8, per_strip, 2, *inner)
    return pairs.permute(axes).reshape(strips * per_strip, WEIGHTS // 2).view(torch.int16)


def _from_records(values: Tensor, per_strip: int, order: int) -> Tensor:
    """The other way: (records, 2048) -> int16 (16 strips, 128 per strip)."""
    inner, axes = _order(order)
    strips = values.shape[0] // per_strip
    dense = values.new_empty(strips * ROWS, per_strip * COLUMNS)
    pairs = dense.view(torch.int32).view(strips, 2, 8, per_strip, 2, *inner).permute(axes)
    pairs.copy_(values.view(torch.int32).view(pairs.shape))
    return dense
