"""The three-layer layout: a 2:4 part for sparse tensor cores, its empty slots filled with what did not fit, and a rest.

After the abstract of "Accelerating GPU Inference of Large Language Models with Moderately Unstructured Sparse Weight Matrices" (DAC 2026,
arXiv 2607.08786), whose code is not to be had; what the abstract leaves open (records, codes, order, distances) is decided here.

Each group of four neighbouring columns has two slots. Its first two non-zeros take them (Sparse-TC layer); a third and fourth overflow, and
as they are the later ones they stand in column 2 or 3 of the group: they have two places of their own, and those are a 2:4 matrix, too,
whose positions are always 2 and 3. An overflowing weight is kept in a slot that stayed empty, at most 127 slots away (Slot-Filling layer),
with that distance: all are put into their places at once. What finds no slot is kept with its column (Residual layer).

A record is 16 rows x 256 columns; they lie strip by strip, from left to right. `offsets` (int32, one more than records) says where each
begins, in units of 16 bytes.

    slots     2048 x 16 bits   [k-step of 32 columns][g][t][upper][h][slot]: row g + 8 h, group t + 4 upper of the k-step; an empty one
                               is 0. Of a k-step lane 4 g + t of mma.sp.m16n8k32 loads its four registers by 16 bytes
    codes     128 words        [lane 4 g + t][k-step / 2]: metadata of k-step % 2 = t / 2, groups 4 (t % 2) ... + 3, 4 bits each; row g in
                               the low half, row g + 8 in the high one. Columns of the two slots, the first the smaller one
    ends      16 x 16 bits     where the fillers of each k-step end, and the residual of each g; bytes from the record's beginning
    fillers   16 bits each     8 bits: the slot, of its 256; 8 bits: the place of the overflow minus the slot, plus 128. In order of slots;
                               then up to 2 bytes of zeros
    residual  32 bits each     the value; 8 bits: column; 1 bit: h. By g; then up to 12 bytes of zeros"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelwright.layouts.bits import numbers, raw, up

NAME = "three-layer"
PARTS = ("records", "offsets")
FACTS = ("largest",)
SIZES = (2,)

ROWS, COLUMNS = 16, 256
WEIGHTS = ROWS * COLUMNS
SLOTS = WEIGHTS // 2
GROUPS = WEIGHTS // 4
BLOCKS = 8
"""Of 256 slots, each a k-step."""
ALIGN = 16
FIXED = 2 * SLOTS + GROUPS // 2 + 32
"""Bytes of slots, codes and ends."""
REACH = 128
END = 1 << 14
"""Behind the last place of overflow: no slot reaches it."""
CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Weights packed or unpacked at a time."""


def pack(weight: Tensor) -> tuple[dict[str, Tensor], dict[str, int]]:
    """(rows, columns), contiguous, 16-bit elements -> parts, facts (largest: the largest record in bytes)."""
    strips = max(1, _chunk(weight) // up(weight.shape[1], COLUMNS) // ROWS)
    chunks = [_pack_strips(raw(some)) for some in weight.split(strips * ROWS)]
    records, sizes = (torch.cat(some) for some in zip(*chunks, strict=True))
    offsets = torch.zeros(sizes.shape[0] + 1, dtype=torch.int64, device=weight.device)
    torch.cumsum(sizes // ALIGN, 0, out=offsets[1:])
    if int(offsets[-1]) >= 1 << 31:
        raise ValueError("the packed weight is larger than 32 GiB; split it by rows first")
    return {"records": records, "offsets": offsets.to(torch.int32)}, {"largest": int(sizes.max())}


def _chunk(weight: Tensor) -> int:
    return CHUNK if weight.device.type == "cpu" else GPU_CHUNK


def _pack_strips(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Some strips -> records (uint8) and the bytes of each."""
    rows, columns = bits.shape
    missing = (0, up(columns, COLUMNS) - columns, 0, up(rows, ROWS) - rows)
    groups = _to_records(torch.nn.functional.pad(bits, missing) if any(missing) else bits)
    n, device = groups.shape[0], bits.device
    mask = groups != 0
    nibble = (mask * torch.tensor([1, 2, 4, 8], dtype=torch.uint8, device=device)).sum(2, dtype=torch.int32)
    own, taken, first = _Tables.own(device)[nibble], _Tables.taken(device)[nibble], _Tables.columns(device)[nibble]
    slots = (groups.gather(2, first) * taken).view(n, SLOTS)
    over = (mask & ~own)[:, :, 2:].reshape(n, SLOTS)
    overflow = groups[:, :, 2:].reshape(n, SLOTS)

    home = _match(over, ~taken.view(n, SLOTS))
    filled = home >= 0
    record, slot = filled.nonzero(as_tuple=True)
    place = home[record, slot].to(torch.int64)
    slots[record, slot] = overflow[record, place]
    fillers = ((slot % 256) | (place - slot + REACH) << 8).to(torch.int16)
    over[record, place] = False

    # the rest, by g
    left = over.view(n, 8, 8, 32).permute(0, 2, 1, 3)
    where, g, step, within = left.nonzero(as_tuple=True)
    value = overflow.view(n, 8, 8, 32)[where, step, g, within]
    residual = torch.stack([value, (step * 32 + _Tables.column(device)[within]).to(torch.int16)], 1)

    fill_ends = FIXED + 2 * filled.view(n, BLOCKS, 256).sum(2).cumsum(1)
    rest = (fill_ends[:, -1:] + 3) // 4 * 4
    rest_ends = rest + 4 * left.flatten(2).sum(2).cumsum(1)
    sizes = (rest_ends[:, -1] + ALIGN - 1) // ALIGN * ALIGN
    base = (sizes.cumsum(0) - sizes) // 2
    out = torch.zeros(int(sizes.sum()) // 2, dtype=torch.int16, device=device)
    ends = torch.cat([fill_ends, rest_ends], 1).to(torch.int16)
    fixed = torch.cat([slots, _codes(_Tables.code(device)[nibble]), ends], 1)
    out[base[:, None] + torch.arange(FIXED // 2, device=device)] = fixed
    out[_at(base + FIXED // 2, record)] = fillers
    out[(_at((base + rest[:, 0] // 2) // 2, where) * 2)[:, None] + torch.arange(2, device=device)] = residual
    return out.view(torch.uint8), sizes


def _match(over: Tensor, free: Tensor) -> Tensor:
    """int16 (n, slots): the place of the overflow that a free slot keeps, -1 where it keeps none. Both are gone through in order: the next
    two of them belong together if they are near enough, else the one behind stays alone; no other choice fills more slots."""
    n, device = over.shape[0], over.device
    places, slots = _listed(over, END), _listed(free, SLOTS)
    home = torch.full((n, SLOTS + 1), -1, dtype=torch.int16, device=device)
    i = torch.zeros(n, 1, dtype=torch.int64, device=device)
    j = torch.zeros_like(i)
    for turn in range(places.shape[1] + slots.shape[1]):
        if turn % 64 == 0 and bool(((places.gather(1, i) == END) | (slots.gather(1, j) == SLOTS)).all()):
            break
        place, slot = places.gather(1, i), slots.gather(1, j)
        distance = place - slot
        behind, ahead = distance < -REACH, distance >= REACH
        home.scatter_(1, torch.where(behind | ahead, SLOTS, slot).to(torch.int64), place)
        i += ~ahead
        j = (j + ~behind).clamp_(max=slots.shape[1] - 1)
    return home[:, :SLOTS]


def _listed(mask: Tensor, end: int) -> Tensor:
    """int16 (n, most + 1): where the marked ones of each row are, in order, then `end`."""
    record, index = mask.nonzero(as_tuple=True)
    counts = mask.sum(1)
    lists = torch.full((mask.shape[0], int(counts.max()) + 1), end, dtype=torch.int16, device=mask.device)
    lists[record, _at(torch.zeros_like(counts), record)] = index.to(torch.int16)
    return lists


def _at(base: Tensor, record: Tensor) -> Tensor:
    """Where the elements of a list go whose records ascend: one after the other from each record's base on."""
    number = torch.arange(record.shape[0], device=record.device)
    first = torch.searchsorted(record, torch.arange(base.shape[0], device=record.device))
    return base[record] + number - first[record]


def unpack(parts: dict[str, Tensor], facts: dict[str, int], out: Tensor) -> None:
    """Writes every element of `out` (rows, columns), contiguous. Reads the records as a kernel does, and never waits for the device."""
    rows, columns = out.shape
    per_strip = up(columns, COLUMNS) // COLUMNS
    offsets, records = parts["offsets"], parts["records"].view(torch.int16)
    at_once = max(1, _chunk(out) // (per_strip * WEIGHTS))
    for strip in range(0, up(rows, ROWS) // ROWS, at_once):
        few = offsets[strip * per_strip : (strip + at_once) * per_strip]
        few = few[: min(few.shape[0], offsets.shape[0] - 1 - strip * per_strip)].to(torch.int64) * (ALIGN // 2)
        dense = _from_records(_read(records, few), per_strip)
        here = raw(out)[strip * ROWS : (strip + at_once) * ROWS]
        here.copy_(dense[: here.shape[0], :columns])


def _read(records: Tensor, at: Tensor) -> Tensor:
    """int16 (n, groups, 4) of the records that begin at these 16-bit elements."""
    n, device = at.shape[0], at.device
    fixed = records[at[:, None] + torch.arange(FIXED // 2, device=device)]
    ends = fixed[:, -16:].to(torch.int64) & 0xFFFF
    number = torch.arange(SLOTS, device=device)
    lost = torch.full((n, 1), SLOTS, dtype=torch.int64, device=device)  # where what a shorter list lacks is written
    slots = torch.nn.functional.pad(fixed[:, :SLOTS], (0, 1))

    bytes_at = FIXED + 2 * number.expand(n, SLOTS)
    block = torch.searchsorted(ends[:, :8].contiguous(), bytes_at, right=True)
    entry = records[(at[:, None] + bytes_at // 2).clamp_(max=records.shape[0] - 1)].to(torch.int64) & 0xFFFF
    slot = torch.where(block < BLOCKS, block * 256 + (entry & 255), lost)
    place = torch.where(block < BLOCKS, slot + (entry >> 8) - REACH, lost)
    overflow = torch.zeros_like(slots).scatter_(1, place, slots.gather(1, slot))
    slots.scatter_(1, slot, 0)

    dense = torch.zeros(n, GROUPS, 4, dtype=torch.int16, device=device)
    codes = _from_codes(fixed[:, SLOTS:-16])
    dense.scatter_(2, torch.stack([codes & 3, codes >> 2], 2), slots[:, :SLOTS].reshape(n, GROUPS, 2))
    places = overflow[:, :SLOTS].reshape(n, GROUPS, 2)
    dense[:, :, 2:] += places  # one of the two is 0

    bytes_at = (ends[:, 7:8] + 3) // 4 * 4 + 4 * number
    g = torch.searchsorted(ends[:, 8:].contiguous(), bytes_at, right=True)
    entry = records[(at[:, None] + bytes_at // 2)[:, :, None].add(torch.arange(2, device=device)).clamp_(max=records.shape[0] - 1)]
    column, h = entry[:, :, 1].to(torch.int64) & 255, entry[:, :, 1].to(torch.int64) >> 8 & 1
    group = ((column // 32 * 8 + g) * 4 + column // 4 % 4) * 4 + column // 16 % 2 * 2 + h
    flat = torch.nn.functional.pad(dense.view(n, WEIGHTS), (0, 1))
    flat.scatter_(1, torch.where(g < 8, group * 4 + column % 4, 2 * lost), entry[:, :, 0])
    return flat[:, :WEIGHTS].contiguous().view(n, GROUPS, 4)


_AXES = (0, 3, 4, 2, 6, 5, 1)  # (strip, h, g, record, k-step, upper, t) -> (strip, record, k-step, g, t, upper, h)


def _to_records(bits: Tensor) -> Tensor:
    """int16 (16 strips, 256 per strip) -> (records, groups, 4): a group moves as one element of 64 bits."""
    strips, per_strip = bits.shape[0] // ROWS, bits.shape[1] // COLUMNS
    groups = bits.view(torch.int64).view(strips, 2, 8, per_strip, 8, 2, 4).permute(_AXES)
    return groups.reshape(strips * per_strip, GROUPS).view(torch.int16).view(-1, GROUPS, 4)


def _from_records(groups: Tensor, per_strip: int) -> Tensor:
    """The other way: (records, groups, 4) -> int16 (16 strips, 256 per strip)."""
    strips = groups.shape[0] // per_strip
    dense = groups.new_empty(strips * ROWS, per_strip * COLUMNS)
    places = dense.view(torch.int64).view(strips, 2, 8, per_strip, 8, 2, 4).permute(_AXES)
    places.copy_(groups.view(groups.shape[0], WEIGHTS).view(torch.int64).view(places.shape))
    return dense


def _codes(code: Tensor) -> Tensor:
    """int64 (n, groups) -> int16 (n, 256): [k-step / 2][k-step % 2][g][t][upper][h] to [g][k-step % 2][upper][k-step / 2][h] of all t."""
    n = code.shape[0]
    by = code.view(n, 4, 2, 8, 4, 2, 2).permute(0, 3, 2, 5, 1, 6, 4)
    return (by << torch.arange(0, 16, 4, device=code.device)).sum(6).to(torch.int16).reshape(n, 256)


def _from_codes(words: Tensor) -> Tensor:
    """The other way, int64."""
    n = words.shape[0]
    by = words.view(n, 8, 2, 2, 4, 2, 1).to(torch.int64) >> torch.arange(0, 16, 4, device=words.device) & 15
    return by.permute(0, 4, 2, 1, 6, 3, 5).reshape(n, GROUPS)


class _Tables:
    """What follows from which of a group's four columns are non-zero (16 ways)."""

    @staticmethod
    def own(device: torch.device) -> Tensor:
        """Its first two, bool (16, 4)."""
        bits = numbers(4, device)
        return (bits != 0) & (bits.cumsum(1) <= 2)

    @staticmethod
    def columns(device: torch.device) -> Tensor:
        """Of its two slots, int64 (16, 2); ascending, as mma.sp wants them: beside a single weight any other column."""
        return torch.tensor([_pair(nibble) for nibble in range(16)], device=device)

    @staticmethod
    def taken(device: torch.device) -> Tensor:
        """Which slots its first two take, bool (16, 2)."""
        return torch.tensor([[bool(nibble >> column & 1) for column in _pair(nibble)] for nibble in range(16)], device=device)

    @staticmethod
    def code(device: torch.device) -> Tensor:
        columns = _Tables.columns(device)
        return columns[:, 0] | columns[:, 1] << 2

    @staticmethod
    def column(device: torch.device) -> Tensor:
        """Of each of the 32 places for overflow [t][upper][h][0, 1] of a k-step's rows g and g + 8; h in bit 8."""
        t, upper, h, which = torch.unravel_index(torch.arange(32, device=device), (4, 2, 2, 2))
        return upper * 16 + t * 4 + 2 + which | h << 8


def _pair(nibble: int) -> tuple[int, int]:
    own = [column for column in range(4) if nibble >> column & 1][:2]
    if len(own) == 2:
        return own[0], own[1]
    first = min(own[0], 2) if own else 0
    return first, first + 1
