"""Readers written from the documentation alone, an element at a time, as a kernel's lanes and a matrix instruction would do it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from masks import weight

from kernelwright.sparse import compress


def lanes_read(records: np.ndarray, begin: int, facts: dict[str, int]):
    """Yields (chunk, j, lane, register a0..a3 as two 16-bit patterns) of one record, lane by lane: one population count for each quad."""
    wide = facts["prefix_bits"] == 16
    stride = 192 if wide else 160
    for c in range(2):
        head = begin + c * stride
        words = records[head : head + 128].view(np.uint32).reshape(4, 8)
        prefixes = records[head + 128 : head + stride].view(np.uint16 if wide else np.uint8).reshape(4, 8)
        for lane in range(32):
            for j in range(4):
                a: list[tuple[int, int]] = [(0, 0)] * 4
                for h in range(2):
                    u, w, shift = 2 * j + h, lane // 8, 4 * (lane % 8)
                    below = (int(words[w, u]) & ((1 << shift) - 1)).bit_count()
                    if wide:
                        address = begin + int(prefixes[w, u]) + 2 * below
                    else:
                        address = begin + 320 + 2 * (int(prefixes[w, u]) - 128 + facts["expected"] * (32 * c + 4 * u + w) + below)
                    quad = []
                    for e in range(4):
                        present = int(words[w, u]) >> (shift + e) & 1
                        quad.append(int(records[address : address + 2].view(np.uint16)[0]) if present else 0)
                        address += 2 * present
                    a[h], a[h + 2] = (quad[0], quad[1]), (quad[2], quad[3])
                yield c, j, lane, a


@pytest.mark.parametrize("order", ["tile", "lane"])
@pytest.mark.parametrize("kind", ["random", "half", "one row", "full"])
def test_quad_bitmap_is_what_lanes_and_mma_expect(kind, order):
    rows, columns = 32, 256
    w = weight(kind, rows, columns)
    packed = compress(w, min_sparsity=0, order=order)
    assert packed.facts["prefix_bits"] == (16 if kind == "half" else 8)
    records, offsets = packed.parts["records"].numpy(), packed.parts["offsets"].tolist()
    assert offsets[0] == 0 and offsets[-1] * 16 == len(records)
    assert max(b - a for a, b in pairwise(offsets)) * 16 == packed.facts["largest"]
    dense = np.zeros((rows, columns), np.uint16)
    for r, begin in enumerate(offsets[:-1]):
        strip, k0 = divmod(r, columns // 128)
        for c, j, lane, a in lanes_read(records, begin * 16, packed.facts):
            g, t = divmod(lane, 4)
            for register, pair in enumerate(a):
                # PTX ISA, m16n8k16: a0, a2 are row g, a1, a3 row g + 8; a0, a1 the columns 2 t, 2 t + 1, a2, a3 those + 8
                row, k = g + 8 * (register & 1), 2 * t + 8 * (register >> 1)
                for i in range(2):
                    column = 16 * j + k + i if order == "tile" else 16 * t + 4 * j + 2 * (register >> 1) + i
                    dense[16 * strip + row, 128 * k0 + 64 * c + column] = pair[i]
    assert np.array_equal(dense, w.view(torch.int16).numpy().view(np.uint16))


@pytest.mark.parametrize("kind", ["random", "rows", "half", "columns", "one row", "empty", "full"])
def test_the_three_layers_read_one_by_one(kind):
    """Lane by lane as mma.sp.m16n8k32 has its registers, filler by filler, residual by residual."""
    rows, columns = 19, 531
    w = weight(kind, rows, columns)
    packed = compress(w, "three-layer", min_sparsity=0)
    records, offsets = packed.parts["records"].numpy(), packed.parts["offsets"].tolist()
    dense = np.zeros((32, 768), np.int16)
    layer = {"tensor core": 0, "filled": 0, "residual": 0}
    for number in range(6):
        record = records[offsets[number] * 16 : offsets[number + 1] * 16]
        slots, codes = record[:4096].view(np.int16).copy(), record[4096:4608].view(np.uint32)
        ends = record[4608:4640].view(np.uint16).tolist()
        places = np.zeros(2048, np.int16)
        at = 4640
        for step in range(8):
            for entry in record[at : ends[step]].view(np.uint16).tolist():
                slot = step * 256 + (entry & 255)
                place = slot + (entry >> 8) - 128
                assert places[place] == 0 and slots[slot] != 0
                places[place], slots[slot] = slots[slot], 0
                layer["filled"] += 1
            at = ends[step]
        here = dense[number // 3 * 16 :, number % 3 * 256 :]
        for step in range(8):
            for lane in range(32):
                g, t = lane // 4, lane % 4
                for register in range(4):  # a0: row g, a1: row g + 8, a2 and a3: 16 columns further
                    h, upper = register % 2, register // 2
                    first = ((step * 32 + lane) * 4 + register) * 2
                    word = int(codes[(g * 4 + step % 2 * 2 + upper) * 4 + step // 2])
                    code = word >> 16 * h + 4 * t & 15
                    assert code & 3 < code >> 2, "ascending"
                    base = 32 * step + 16 * upper + 4 * t
                    for i, column in enumerate((code & 3, code >> 2)):
                        if slots[first + i]:
                            here[g + 8 * h, base + column] = slots[first + i]
                            layer["tensor core"] += 1
                        if places[first + i]:
                            here[g + 8 * h, base + 2 + i] = places[first + i]
        at = (ends[7] + 3) // 4 * 4
        for g in range(8):
            for entry in record[at : ends[8 + g]].view(np.uint32).tolist():
                here[g + 8 * (entry >> 24), entry >> 16 & 255] = np.uint16(entry & 0xFFFF).view(np.int16)
                layer["residual"] += 1
            at = ends[8 + g]
        assert 0 <= record.size - at < 16 and len(record) <= packed.facts["largest"]
    assert np.array_equal(dense[:rows, :columns], w.view(torch.int16).numpy())
    kept = int((w != 0).sum())
    assert sum(layer.values()) == kept
    if kind == "columns":
        assert layer["tensor core"] == kept
    if kind == "random":  # 81.3 % fit 2:4, and of the rest nearly all find a slot
        assert layer["tensor core"] / kept == pytest.approx(0.813, abs=0.02) and layer["filled"] > 10 * layer["residual"]
