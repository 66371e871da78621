"""The space of streams.cuh: which configs are legal and why, its Config and its launch."""

from __future__ import annotations

import math

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.spmm import ring
from kernelwright.families.spmm.ring import Records
from kernelwright.problems.spmm import weights
from kernelwright.records import LaunchPlan, Workload

SPACE: Space = {
    "warps": (4, 8, 12, 16, 20, 24, 32),
    "slots": (1, 2, 3, 4, 6, 8),
    "cluster": (1, 2, 3, 4, 6, 8, 16),
    "packing": ("at_once", "late"),
    "tiles": ring.TILES,
    "prefetch": (0, 1),
}
RECORDS = Records(columns=128, full=4480)
"""Without zeros with 16-bit prefixes."""
REGISTERS = {1: 64, 2: 80, 4: 104}
"""Below which it spills, by tiles (ptxas 13.x)."""
INSTRUCTIONS = 5.1 * 64
"""Of a warp for a record (sm_90a)."""


def ring_bytes(c: Config, w: Workload) -> int:
    kept = 1 - weights(w).zeros / 100
    return RECORDS.ring_bytes(int(c["slots"]), 320 + 2 * (2048 * kept + 5 * math.sqrt(2048 * kept * (1 - kept))))


def mean(w: Workload) -> float:
    """Bytes of a record with 8-bit prefixes; rounding up to 16 adds 7 in the mean."""
    return 327 + 4096 * (1 - weights(w).zeros / 100)


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    if c["prefetch"] and device.sm < 90:
        return "bulk prefetches need sm_90"
    return ring.illegal(c, w, device, RECORDS, ring_bytes(c, w), REGISTERS)


def microseconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    kept = 1 - weights(w).zeros / 100
    return ring.microseconds(c, w, device, RECORDS, 336 + 4096 * kept, INSTRUCTIONS)


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        f"static constexpr int expected = {weights(w).expected};",
        *ring.struct(c, w, device, RECORDS, ring_bytes(c, w), int(c["slots"]) if c["prefetch"] else 0, mean(w)),
        f"static constexpr Packing packing = Packing::{c['packing']};",
    ]


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    return ring.plan(c, w, device, RECORDS, ring_bytes(c, w))


def refuses(w: Workload) -> str | None:
    return None


SEEDS: tuple[Config, ...] = tuple(
    {"warps": warps, "slots": slots, "cluster": cluster, "packing": packing, "tiles": tiles, "prefetch": prefetch}
    for tiles in ring.TILES
    for cluster in (2, 4, 1, 8, 16)
    for warps, slots in ((16, 3), (24, 2), (20, 3), (32, 2), (12, 4), (8, 4), (8, 2), (4, 2))
    for packing, prefetch in (("at_once", 0), ("at_once", 1), ("late", 1))
    if (packing, prefetch) == ("at_once", 1) or (warps == 16 and cluster <= 2 and (prefetch or cluster == 2))
)
"""About what won in scratch kernels on an H200 (clusters of 2, 16 warps, 3 slots), there without a prefetch; larger clusters and fewer
warps as X and sums grow. Packed late, a warp of few has more loads on their way."""
