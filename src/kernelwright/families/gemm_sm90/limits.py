"""What a block can have on Hopper, as the clauses that `illegal` gives back: the same for every scheme."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts

SMEM_PER_BLOCK = 227 * 1024
"""Most dynamic shared memory, bytes (CUDA programming guide, compute capability 9.0)."""
GRID_Y = 65535


RESIDENT = (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7)
"""Clusters of 1 to 16 blocks that an H200 runs at a time, each block with a multiprocessor to itself (cuOccupancyMaxActiveClusters). A
cluster stays inside a group of about 16 multiprocessors, and not every group is whole: of 132 multiprocessors clusters of 4 fill 120."""


LEAST_STEPS = 4
"""Steps of K that make a share of a tile worth its reduction; a guess. Fewer tiles than clusters get no more clusters than this leaves."""


def resident_clusters(blocks: int, sms: int) -> int:
    """Clusters of `blocks` blocks that run at a time, about, on a device with `sms` multiprocessors."""
    return max(1, RESIDENT[blocks - 1] * sms // RESIDENT[0])


def ints(c: Config, *keys: str) -> tuple[int, ...]:
    return tuple(int(c[key]) for key in keys)


def too_much_smem(used: int, device: DeviceFacts) -> str | None:
    limit = device.smem_per_block or SMEM_PER_BLOCK
    return f"it takes {used / 1024:.1f} KB of shared memory, the device has {limit / 1024:.0f}" if used > limit else None


def too_many_registers(need: int, most: int, threads: int) -> str | None:
    return f"about {need} registers a thread are needed, {threads} threads leave {most}" if need > most else None


def too_many_threads(threads: int) -> str | None:
    return f"a block has at most 1024 threads, this {threads}" if threads > 1024 else None


def too_many_along_y(tiles: int) -> str | None:
    return f"a grid has at most {GRID_Y} tiles along y, this has {tiles}" if tiles > GRID_Y else None
