"""The space of three_layer.cuh: which configs are legal and why, its Config and its launch."""

from __future__ import annotations

import math

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.spmm import ring
from kernelwright.families.spmm.ring import Records
from kernelwright.layouts.three_layer import COLUMNS, FIXED, SLOTS, WEIGHTS
from kernelwright.problems.spmm import weights
from kernelwright.records import LaunchPlan, Workload

SPACE: Space = {"warps": (4, 6, 8, 10, 12, 14, 16), "slots": (1, 2, 3, 4), "cluster": (1, 2, 3, 4, 6, 8, 16), "tiles": ring.TILES}
RECORDS = Records(columns=COLUMNS, full=FIXED + 4 * SLOTS, scratch=2 * SLOTS)
"""Without zeros half of the weights are residual; the scratch is the overflow in its places."""
REGISTERS = {1: 80, 2: 96, 4: 128}
"""Below which it spills, by tiles (ptxas 13.x)."""
INSTRUCTIONS = 190
"""Of a warp for a record without fillers and residual (sm_90a); 9 for a filler of each lane, 27 for a residual of each four lanes."""


def _counts(w: Workload) -> tuple[float, float, float]:
    """Of a record of a random mask: weights that overflow, slots that stay empty, and what finds none of them."""
    kept = 1 - weights(w).zeros / 100
    groups = WEIGHTS / 4
    over = groups * (4 * kept**3 * (1 - kept) + 2 * kept**4)
    free = groups * (2 * (1 - kept) ** 4 + 4 * kept * (1 - kept) ** 3)
    return over, free, max(0.0, over - free) + 13 * min(1.0, over / free)


def ring_bytes(c: Config, w: Workload) -> int:
    over, free, residual = _counts(w)
    return RECORDS.ring_bytes(int(c["slots"]), FIXED + 2 * min(over, free) + 4 * (residual + 5 * math.sqrt(over)))


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    return ring.illegal(c, w, device, RECORDS, ring_bytes(c, w), REGISTERS)


def microseconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    over, free, residual = _counts(w)
    fillers, left = min(over, free), residual
    return ring.microseconds(
        c, w, device, RECORDS, FIXED + 2 * fillers + 4 * left + 8, INSTRUCTIONS + 9 * fillers / 32 + 27 * (left / 8 + 2)
    )


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return ring.struct(c, w, device, RECORDS, ring_bytes(c, w))


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    return ring.plan(c, w, device, RECORDS, ring_bytes(c, w))


def refuses(w: Workload) -> str | None:
    return None


SEEDS: tuple[Config, ...] = tuple(
    {"warps": warps, "slots": slots, "cluster": cluster, "tiles": tiles}
    for tiles in ring.TILES
    for cluster in (2, 4, 1, 8, 16)
    for warps, slots in ((12, 2), (10, 2), (8, 3), (8, 2), (6, 3), (6, 2), (4, 2))
)
"""Guesses from the bytes that a multiprocessor must have on their way."""
