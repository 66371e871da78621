"""How long a config takes on an H200, about: the order in which configs are tried. Not a claim about speed.

Every constant is fitted by least squares of log(model / measured) to screens of 3,550 configs on 95 shapes (device-cold, one H200): the
model is off by 8 % (ring), 11 % (persistent) and 10 % (whole_k) rms, and the best of its first eight is within 1 % of the best of all, on
average. Times are microseconds, sizes bytes, `c` a batch of configs as arrays (columns), p and q the product's rows and columns for each;
other Hoppers are taken to be alike, multiprocessor by multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90.limits import resident_clusters

Columns = dict[str, np.ndarray]
CLOCK = 1780.0
"""Cycles a microsecond, under load."""
PRODUCTS = 2048.0
"""A multiprocessor's wgmma multiply-adds a cycle."""
SMEM = 128.0
"""Bytes that wgmma reads of shared memory a cycle."""
MULTICAST = 46.5
"""Bytes a cycle and multiprocessor that L2 hands out by multicast when all ask: each of the cluster's blocks asks for its part."""
COALESCED = 26.8
"""The same for loads without multicast, where the 16 blocks of a group, in lock step and neighbours in the raster, count as one reader of
what they have in common: that is how L2 behaves (64 x 128 tiles of 1024 x 1024 x 8192: 25 us without multicast, 32 with it)."""
NEIGHBOURS = 16
NEAREST = 50
"""Configs tried in place of a suggested one that is not legal."""
TAKEN_IN = 99.0, 76.5
"""Bytes a cycle that one multiprocessor takes in, by its own loads and by multicast."""
CLUSTER = 20e3
"""Bytes a microsecond into another block's shared memory (store_async)."""
STORE = 24e3
"""Bytes a microsecond and multiprocessor of C."""
POWER = 700e6
"""FLOP a microsecond that 700 W allow on normal data."""
DRAM = 3.45e6
"""Bytes a microsecond from and to memory, for a whole kernel of these sizes."""


def columns(configs: Sequence[Config]) -> Columns:
    return {key: np.array([c[key] for c in configs]) for key in configs[0]} if configs else {}


def ring(c: Columns, p: np.ndarray, q: np.ndarray, k: int, device: DeviceFacts) -> np.ndarray:
    bp, bq, split, slabs = c["block_p"], c["block_q"], c["split_k"], c["block_k"] / 64
    shared, size = c["cluster_p"] * c["cluster_q"], c["cluster_p"] * c["cluster_q"] * split
    clusters = _cdiv(p, bp * c["cluster_p"]) * _cdiv(q, bq * c["cluster_q"])
    rounds, blocks = _cdiv(clusters, _resident(size, device)), np.minimum(clusters * size, device.sms)
    rows = (bp + bq) * 128 * slabs
    taken_in = rows / np.where(shared > 1, TAKEN_IN[1], TAKEN_IN[0])
    read = bp // 64 * (64 + bq) * 128 * slabs / SMEM
    step = _largest(_products(bp, bq, slabs), read, taken_in, _asked(c, split, p, blocks, device) * slabs) + 81
    reduction = np.where(split > 1, 0.41 + 1.21 * bp * bq * 4 * (1 - 1 / split) / CLUSTER, 0.0)
    main = _cdiv(_cdiv(k, c["block_k"]), split) * step / CLOCK
    return np.maximum(1.74 + rounds * (0.84 + main + reduction + 1.1 * bp * bq * 2 / STORE), _memory(p, q, k))


def persistent(c: Columns, p: np.ndarray, q: np.ndarray, k: int, device: DeviceFacts) -> np.ndarray:
    """Where parts meet, the last block goes through a round for every doubling of their number: it counts itself, reads sums and clears
    them. Ping-pong hides that behind the whole tiles that follow a shared tail. These costs are guesses."""
    bp, bq, split, slabs, size = c["block_p"], c["block_q"], c["split_k"], c["block_k"] / 64, c["cluster_p"] * c["cluster_q"]
    clusters, pingpong = _resident(size, device), c["schedule"] == "pingpong"
    count, steps = _cdiv(p, bp * c["cluster_p"]) * _cdiv(q, bq * c["cluster_q"]), _cdiv(k, c["block_k"])
    shared = np.select([c["tail"] == "stream", c["tail"] == "two_tile"], [1, 2], 0)
    whole = np.where(shared > 0, np.maximum(0, count // clusters - (shared - 1)), 0)
    shares = np.where(whole > 0, clusters, np.minimum(clusters, np.maximum(count, count * steps // 4)))
    share = np.maximum(1, _cdiv((count - whole * clusters) * steps, shares))  # steps of a shared tail that each cluster does
    waves = np.where(shared > 0, whole + _cdiv(share, steps), _cdiv(count * split, clusters))
    busiest = np.where(shared > 0, whole * steps + share, waves * _cdiv(steps, split))
    parts = np.where(shared > 0, _cdiv(steps, share) + 1, split)
    blocks = np.minimum(np.where(shared > 0, shares, count * split) * size, device.sms)

    columns = bq // c["consumers_q"]  # of a warpgroup, in one wgmma or several
    n = columns // _cdiv(columns, 256)
    rows = (bp + bq) * 128 * slabs
    read = (bp // 64 * (bq // n) * (64 + n) * 128 * slabs + 0.88 * rows) / SMEM
    taken_in = rows / np.where(size > 1, TAKEN_IN[1], TAKEN_IN[0])
    step = _largest(_products(bp, bq, slabs), read, taken_in, _asked(c, split, p, blocks, device) * slabs) + 30
    store = 0.63 * bp * bq * 2 / STORE * (1 + (waves - 1) * np.where(pingpong, 0.6, 1.0))
    meeting = np.ceil(np.log2(parts)) * (1.0 + bp * bq * 8 / 80e3) * np.where(pingpong & (whole > 0), 0.3, 1.0)
    lent = np.where((shared > 0) & (count > clusters), 1.03, 1.0)  # where power limits the clock, blocks that idle lend theirs
    total = 3.07 + lent * busiest * step / CLOCK + store + meeting
    # the limits are soft: of two configs at one of them, the one with less to do is a little faster
    return 0.95 * np.maximum(np.maximum(total, _memory(p, q, k)), 2.0 * p * q * k / POWER) + 0.05 * total


def whole_k(c: Columns, p: np.ndarray, q: np.ndarray, k: int, device: DeviceFacts) -> np.ndarray:
    bp, bq, split = c["block_p"], c["block_q"], c["split_k"]
    depth = _cdiv(_cdiv(k, c["block_k"]), split) * c["block_k"]  # of one block
    blocks = _cdiv(p, bp) * _cdiv(q, bq) * split
    used = depth * (bp + bq) * 2 + bp * bq * np.where(split > 1, 4, 2)
    per_sm = np.clip(np.minimum(device.smem_per_block // (used + 1024), 1024 // bp), 1, None)
    rounds = _cdiv(blocks, _resident(split, device) * split * per_sm)
    together = np.minimum(per_sm, np.maximum(1, blocks / device.sms))  # blocks that share a multiprocessor
    load = depth * (bp + bq) * 2 / CLOCK / 59 * together
    reduction = np.where(split > 1, 0.54 + bp * bq * 4 * (1 - 1 / split) / CLUSTER, 0.0)
    start = 0.78 * np.where(c["load"] == "tma", 1.27, 1.0)
    once = start + load + 0.35 * _products(bp, bq, depth / 64) / CLOCK + reduction + 0.53 * bp * bq * 2 / STORE * together
    return 1.28 + rounds * once


def tiny(c: Columns, p: np.ndarray, q: np.ndarray, k: int, device: DeviceFacts) -> np.ndarray:
    """Off by 14 % rms, of 126 screens."""
    bp, bq, warps = c["block_p"], c["block_q"], c["warps"]
    blocks, batches = _cdiv(p, bp) * _cdiv(q, bq), _cdiv(k, c["block_k"] * warps)
    return 2.28 + 1.25 * (batches - 1) + (bp + bq) * k * 2 / 51e3 * np.maximum(1, blocks / max(1, device.sms))


def first(
    configs: Sequence[Config],
    microseconds: Iterable[float],
    tile: Callable[[Config], object],
    legal: Callable[[Config], bool],
    *,
    count: int = 8,
    per_tile: int = 2,
) -> tuple[Config, ...]:
    """The legal configs with the least time, at most `per_tile` of one tile: a start should not be one guess eight times."""
    chosen: list[Config] = []
    tiles: dict[object, int] = {}
    for i in np.argsort(np.asarray(list(microseconds)), kind="stable"):
        c = configs[int(i)]
        if tiles.get(tile(c), 0) < per_tile and legal(c):
            tiles[tile(c)] = tiles.get(tile(c), 0) + 1
            chosen.append(c)
            if len(chosen) == count:
                break
    return tuple(chosen)


def nearest(configs: Sequence[Config], c: Columns, bm: int, bn: int, split_k: int, legal: Callable[[Config], bool]) -> Config | None:
    """The legal config with about this tile of C and these parts of K: what to make of another model's suggestion."""
    distance = sum(np.abs(np.log2(c[key] / x)) for key, x in (("block_p", bm), ("block_q", bn), ("split_k", split_k)))
    order = np.argsort(distance + 9.0 * c["swap"], kind="stable")[:NEAREST]
    return next((configs[i] for i in order if legal(configs[i])), None)


def _cdiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _resident(size: np.ndarray, device: DeviceFacts) -> np.ndarray:
    table = np.array([1] + [resident_clusters(n, device.sms) for n in range(1, 17)])
    return table[size]


def _products(bp: Any, bq: Any, slabs: Any) -> Any:
    return bp * bq * 64 * slabs / PRODUCTS


def _asked(c: Columns, split: Any, p: Any, blocks: Any, device: DeviceFacts) -> Any:
    """Cycles of L2 for 64 of K."""
    bp, bq, cp, cq = c["block_p"], c["block_q"], c["cluster_p"], c["cluster_q"]
    tiles = np.maximum(1, NEIGHBOURS // split)  # of the group, eight along P first; the other parts of K read something else
    along_p = np.minimum(np.minimum(8, _cdiv(p, bp)), tiles)
    alone = (bp / np.maximum(1, tiles / along_p) + bq / along_p) / COALESCED
    return np.where(cp * cq > 1, (bp / cq + bq / cp) / MULTICAST, alone) * 128 * blocks / max(1, device.sms)


def _memory(p: Any, q: Any, k: int) -> Any:
    return 2.75 + (p * k + q * k + p * q) * 2 / DRAM


def _largest(*terms: Any) -> Any:
    return np.maximum.reduce(np.broadcast_arrays(*terms))
