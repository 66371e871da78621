"""How long a config takes on an H200, about: the order in which configs are tried. Not a claim about speed.

Every constant is fitted by least squares of log(model / measured) to screens of 8,000 configs on 306 products (device-cold, one H200): the
models are off by 10 % (ring) to 14 % (tiny) rms, and of all configs tried on a product, the best of the first eight by the models is within
0.8 % of the best, on average (on the screens of the fit themselves). Times are microseconds, sizes bytes, `c` a batch of configs as arrays
(columns), `s` their sides; other Hoppers are taken to be alike, multiprocessor by multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90.limits import LEAST_STEPS, SMEM_PER_BLOCK, resident_clusters
from kernelwright.families.gemm_sm90.sides import Batch

Columns = dict[str, np.ndarray]
CLOCK = 1780.0
"""Cycles a microsecond, under load."""
PRODUCTS = 2048.0
"""A multiprocessor's wgmma multiply-adds a cycle."""
SMEM = 128.0
"""Bytes that wgmma reads of shared memory a cycle."""
MULTICAST = 47.0
"""Bytes a cycle and multiprocessor that L2 hands out by multicast when all ask: each of the cluster's blocks asks for its part."""
COALESCED = 28.5
"""The same for loads without multicast, where the 16 blocks of a group, in lock step and neighbours in the raster, count as one reader of
what they have in common: that is how L2 behaves (64 x 128 tiles of 1024 x 1024 x 8192: 25 us without multicast, 32 with it)."""
NEIGHBOURS = 16
NEAREST = 50
"""Configs tried in place of a suggested one that is not legal."""
TAKEN_IN = 90.0, 74.0
"""Bytes a cycle that one multiprocessor takes in, by its own loads and by multicast."""
CLUSTER = 20e3
"""Bytes a microsecond into another block's shared memory (store_async)."""
STORE = 24e3
"""Bytes a microsecond and multiprocessor of C."""
POWER = 690e6
"""FLOP a microsecond that 700 W allow on normal data."""
DRAM = 3.6e6
"""Bytes a microsecond from and to memory, for a whole kernel of these sizes."""


def columns(configs: Sequence[Config]) -> Columns:
    return {key: np.array([c[key] for c in configs]) for key in configs[0]} if configs else {}


def ring(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    bp, bq, split, slabs = c["block_p"], c["block_q"], c["split_k"], c["block_k"] / 64
    shared, size = c["cluster_p"] * c["cluster_q"], c["cluster_p"] * c["cluster_q"] * split
    clusters = _cdiv(s.p, bp * c["cluster_p"]) * _cdiv(s.q, bq * c["cluster_q"])
    rounds, blocks = _cdiv(clusters, _resident(size, device)), np.minimum(clusters * size, device.sms)
    taken_in = _rows(c, s) * 128 * slabs / np.where(shared > 1, TAKEN_IN[1], TAKEN_IN[0])
    read = bp // 64 * (64 + bq) * 128 * slabs / SMEM
    step = _largest(_products(bp, bq, slabs), read, taken_in, _asked(c, s, split, blocks, device) * slabs) + 55
    reduction = np.where(split > 1, 0.42 + 1.3 * bp * bq * 4 * (1 - 1 / split) / CLUSTER, 0.0)
    main = _cdiv(_cdiv(k, c["block_k"]), split) * step / CLOCK
    return _limited(1.78 + rounds * (0.79 + main + reduction + 1.1 * bp * bq * 2 / STORE), s, k)


def persistent(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    """Where parts meet, the last block goes through a round for every doubling of their number: it counts itself, reads sums and clears
    them, 6 us for a tile of 128 x 128. Ping-pong hides a third of that behind the whole tiles that follow a shared tail."""
    bp, bq, split, slabs, size = c["block_p"], c["block_q"], c["split_k"], c["block_k"] / 64, c["cluster_p"] * c["cluster_q"]
    clusters, pingpong = _resident(size, device), c["schedule"] == "pingpong"
    count, steps = _cdiv(s.p, bp * c["cluster_p"]) * _cdiv(s.q, bq * c["cluster_q"]), _cdiv(k, c["block_k"])
    shared = np.select([c["tail"] == "stream", c["tail"] == "two_tile"], [1, 2], 0)
    whole = np.where(shared > 0, np.maximum(0, count // clusters - (shared - 1)), 0)
    shares = np.where(whole > 0, clusters, np.minimum(clusters, np.maximum(count, count * steps // LEAST_STEPS)))
    share = np.maximum(1, _cdiv((count - whole * clusters) * steps, shares))  # steps of a shared tail that each cluster does
    waves = np.where(shared > 0, whole + _cdiv(share, steps), _cdiv(count * split, clusters))
    busiest = np.where(shared > 0, whole * steps + share, waves * _cdiv(steps, split))
    parts = np.where(shared > 0, _cdiv(steps, share) + 1, split)
    blocks = np.minimum(np.where(shared > 0, shares, count * split) * size, device.sms)

    columns = bq // c["consumers_q"]  # of a warpgroup, in one wgmma or several
    n = columns // _cdiv(columns, 256)
    read = (bp // 64 * (bq // n) * (64 + n) + 0.7 * (bp + bq)) * 128 * slabs / SMEM
    taken_in = _rows(c, s) * 128 * slabs / np.where(size > 1, TAKEN_IN[1], TAKEN_IN[0])
    step = _largest(_products(bp, bq, slabs), read, taken_in, _asked(c, s, split, blocks, device) * slabs) + 30
    store = 0.89 * bp * bq * 2 / STORE * (1 + (waves - 1) * np.where(pingpong, 0.54, 1.0))
    meeting = np.ceil(np.log2(parts)) * (2.1 + 2.6 * bp * bq * 8 / 80e3) * np.where(pingpong & (whole > 0), 0.66, 1.0)
    lent = np.where((shared > 0) & (count > clusters), 1.35, 1.0)  # shares start and end at odd steps, where nothing is coalesced
    return _limited(2.52 + lent * busiest * step / CLOCK + store + meeting, s, k)


def whole_k(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    bp, bq, split = c["block_p"], c["block_q"], c["split_k"]
    depth = _cdiv(_cdiv(k, c["block_k"]), split) * c["block_k"]  # of one block
    blocks = _cdiv(s.p, bp) * _cdiv(s.q, bq) * split
    used = depth * (bp + bq) * 2 + bp * bq * np.where(split > 1, 4, 2)
    per_sm = np.clip(np.minimum((device.smem_per_block or SMEM_PER_BLOCK) // (used + 1024), 1024 // bp), 1, None)
    rounds = _cdiv(blocks, _resident(split, device) * split * per_sm)
    together = np.minimum(per_sm, np.maximum(1, blocks / device.sms))  # blocks that share a multiprocessor
    load = depth * (bp + bq) * 2 / CLOCK / 59 * together
    reduction = np.where(split > 1, 0.54 + bp * bq * 4 * (1 - 1 / split) / CLUSTER, 0.0)
    start = 0.78 * np.where(c["load"] == "tma", 1.27, 1.0)
    once = start + load + 0.35 * _products(bp, bq, depth / 64) / CLOCK + reduction + 0.53 * bp * bq * 2 / STORE * together
    return 1.28 + rounds * once


def tiny(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    """Off by 14 % rms, of 126 screens."""
    bp, bq, warps = c["block_p"], c["block_q"], c["warps"]
    blocks, batches = _cdiv(s.p, bp) * _cdiv(s.q, bq), _cdiv(k, c["block_k"] * warps)
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
    return _clusters(device.sms)[size]


@cache
def _clusters(sms: int) -> np.ndarray:
    return np.array([1] + [resident_clusters(n, sms) for n in range(1, 17)])


def _products(bp: Any, bq: Any, slabs: Any) -> Any:
    return bp * bq * 64 * slabs / PRODUCTS


def _rows(c: Columns, s: Batch) -> Any:
    """Of both tiles, each as many times as it costs one of 128 bytes."""
    return c["block_p"] * s.p_cost + c["block_q"] * s.q_cost


def _asked(c: Columns, s: Batch, split: Any, blocks: Any, device: DeviceFacts) -> Any:
    """Cycles of L2 for 64 of K."""
    p_rows, q_rows, cp, cq = c["block_p"] * s.p_cost, c["block_q"] * s.q_cost, c["cluster_p"], c["cluster_q"]
    tiles = np.maximum(1, NEIGHBOURS // split)  # of the group, eight along P first; the other parts of K read something else
    along_p = np.minimum(np.minimum(8, _cdiv(s.p, c["block_p"])), tiles)
    alone = (p_rows / np.maximum(1, tiles / along_p) + q_rows / along_p) / COALESCED
    return np.where(cp * cq > 1, (p_rows / cq + q_rows / cp) / MULTICAST, alone) * 128 * blocks / max(1, device.sms)


def _limited(microseconds: Any, s: Batch, k: Any) -> Any:
    """By memory and by power. Both are soft: of two configs at a limit, the one with less to do is a little faster."""
    memory = 2.75 + (s.p * k + s.q * k + s.p * s.q) * 2 / DRAM
    return 0.95 * np.maximum(np.maximum(microseconds, memory), 2.0 * s.p * s.q * k / POWER) + 0.05 * microseconds


def _largest(*terms: Any) -> Any:
    return reduce(np.maximum, terms)
