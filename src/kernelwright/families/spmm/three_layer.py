"""The space of three_layer.cuh: which configs are legal and why, its Config and its launch."""

from __future__ import annotations

import math

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.spmm import ring
from kernelwright.families.spmm.ring import Records
from kernelwright.layouts.three_layer import COLUMNS, FIXED, SLOTS
from kernelwright.problems.spmm import weights
from kernelwright.records import LaunchPlan, Workload

SPACE: Space = {"warps": (4, 6, 8, 10, 12, 14, 16), "slots": (1, 2, 3, 4), "cluster": (1, 2, 3, 4, 6, 8, 16)}
RECORDS = Records(columns=COLUMNS, full=FIXED + 4 * SLOTS, scratch=2 * SLOTS)
"""Without zeros half of the weights are residual; the scratch is the overflow in its places."""
REGISTERS = {1: 80, 2: 96, 4: 128}
"""Below which it spills, by tiles (ptxas 13.x)."""
refuses = ring.refuses


def ring_bytes(c: Config, w: Workload) -> int:
    kept = 1 - weights(w).zeros / 100
    three, four = 4 * kept**3 * (1 - kept), kept**4
    over = (three + 2 * four) * 1024
    free = ((1 - kept) ** 4 * 2 + 4 * kept * (1 - kept) ** 3) * 1024
    residual = max(0.0, over - free) + 0.04 * min(over, free) + 5 * math.sqrt(over)
    return RECORDS.ring_bytes(int(c["slots"]), FIXED + 2 * min(over, free) + 4 * residual)


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    return ring.illegal(c, w, device, RECORDS, ring_bytes(c, w), REGISTERS[ring.tiles(w)])


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return ring.struct(c, w, device, RECORDS, ring_bytes(c, w))


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    return ring.plan(c, w, device, RECORDS, ring_bytes(c, w))


SEEDS: tuple[Config, ...] = tuple(
    {"warps": warps, "slots": slots, "cluster": cluster}
    for cluster in (2, 4, 1, 8)
    for warps, slots in ((12, 2), (10, 2), (8, 3), (8, 2), (6, 3))
)
"""Guesses from the bytes that a multiprocessor must have on their way."""
