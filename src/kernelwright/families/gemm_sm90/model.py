"""How long a config takes on an H200, about: the order in which configs are tried. Not a claim about speed.

The constants of ring, persistent and whole_k are fitted by least squares of log(model / measured) to 35,000 screens (device-cold, one H200)
of 1,000 products in layouts nn and nt; a screen repeats within 1.5 %. The nearer a config comes to the best of its product, the more it
weighs, and differences between the configs of a product weigh three times what all of them have in common. Fitted to half of the products,
the models are off by 4 to 5 % rms on the other half's configs within 15 % of the best (by 6 % on all, ring by 9 %), no scheme's mean is
off by more than 0.5 %, and of all configs tried on a product, the best of the first four by the models is within 0.8 % of the best, on
average, and the best of the first eight within 0.2 %. STEP and SHALLOW are read off pairs of configs that differ in block_k alone.

Times are microseconds, sizes bytes, `c` a batch of configs as arrays (columns), `s` their sides; other Hoppers are taken to be alike,
multiprocessor by multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
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
L2 = 87.0
"""Bytes a cycle that L2 hands to each multiprocessor when all ask, neighbours for the same lines at about the same time."""
PARTS = 0.323
"""Where K is in parts, neighbours ask for different lines: L2 then hands out 1 / parts^PARTS of that."""
MULTICAST = 74.9
"""Bytes a cycle that one multiprocessor takes in of what its cluster shares."""
SOFT = 5
"""Of several limits the slowest rules, but not alone: together they take the norm of this order (a maximum is that of order infinity)."""
STEP = 20.0
"""Cycles that a step takes for its barriers (64 x 16 to 64 x 64, block_k 64 against 128)."""
SHALLOW = 0.25
"""A ring of `stages` has one less on the way: it runs dry for SHALLOW / (stages - 1) of the time (128 x 128, 3 stages of 128 against 7 of
64: 9 %)."""
DRAM, FIRST_BYTE = 4.18e6, 2.87
"""Bytes a microsecond from and to memory, for a whole kernel, and the microseconds before and after them."""
POWER = 715e6
"""FLOP a microsecond that 700 W allow on normal data."""
CLUSTER = 14e3
"""Bytes a microsecond into another block's shared memory (store_async)."""
NEAREST = 50
"""Configs tried in place of a suggested one that is not legal."""
RING_START, RING_ROUND, RING_STORE, RING_MEETING = 1.1, 1.48, 24.1e3, 0.489
"""ring: microseconds for launch and end, and for each round of blocks; bytes a microsecond and multiprocessor of C; microseconds for the
barriers of a cluster in which parts of K meet."""
PERSISTENT_START, PERSISTENT_STORE, EXPOSED, NARROW = 2.7, 43.3e3, 0.614, 0.161
"""persistent: microseconds for launch and end; bytes a microsecond and multiprocessor of C; what ping-pong leaves of the stores, the last
apart; what a store gains in cost with every halving of its 64 columns."""
WHOLE_START, WHOLE_ROUND, WARPGROUP, MEMBER = 1.89, 0.389, 0.116, 0.0332
"""whole_k: microseconds for launch and end; for each round of blocks, and for each warpgroup of a block on top; for each block of a
cluster in which parts of K meet."""
WHOLE_LOAD, WHOLE_STORE, WHOLE_DRAM = 84.4, 175e3, 6.44e6
"""whole_k: bytes a cycle that a multiprocessor takes in; bytes a microsecond and multiprocessor of C; bytes a microsecond from and to
memory, which come on top: in a kernel this short nothing else goes on meanwhile."""


def columns(configs: Sequence[Config]) -> Columns:
    return {key: np.array([c[key] for c in configs]) for key in configs[0]} if configs else {}


def ring(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    bp, bq, split, size = c["block_p"], c["block_q"], c["split_k"], c["cluster_p"] * c["cluster_q"] * c["split_k"]
    clusters = _cdiv(s.p, bp * c["cluster_p"]) * _cdiv(s.q, bq * c["cluster_q"])
    rounds, blocks = _cdiv(clusters, _resident(size, device)), np.minimum(clusters * size, device.sms)
    main = _cdiv(_cdiv(k, c["block_k"]), split) * _step(c, s, bq, split, blocks, device)
    meeting = np.where(split > 1, RING_MEETING + _sent(bp * bq, split), 0.0)
    return _limited(RING_START + rounds * (RING_ROUND + main + meeting + bp * bq * 2 / RING_STORE), s, k)


def persistent(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    """Where parts meet, the last block goes through a round for every doubling of their number: it counts itself, reads sums and clears
    them, 8 us for a tile of 128 x 128 (193 screens). Ping-pong hides a third of that behind the whole tiles that follow a shared tail."""
    bp, bq, split, size = c["block_p"], c["block_q"], c["split_k"], c["cluster_p"] * c["cluster_q"]
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
    halvings = np.select([n % 64 == 0, n % 32 == 0], [0, 1], 2)
    store = bp * bq * 2 / PERSISTENT_STORE * (1 + NARROW * halvings) * (1 + (waves - 1) * np.where(pingpong, EXPOSED, 1.0))
    meeting = np.ceil(np.log2(parts)) * (2.1 + bp * bq * 8 / 21e3) * np.where(pingpong & (whole > 0), 0.66, 1.0)
    lent = np.where((shared > 0) & (count > clusters), 1.35, 1.0)  # shares start and end at odd steps, where nothing is coalesced
    main = lent * busiest * _step(c, s, n, split, blocks, device)
    return _limited(PERSISTENT_START + main + store + meeting, s, k)


def whole_k(c: Columns, s: Batch, k: Any, device: DeviceFacts) -> np.ndarray:
    """What a multiprocessor does for its blocks adds up, however many rounds they come in. Half of the time for loads is its own, half that
    of L2, which serves all. Loads hide all products but the last step's."""
    bp, bq, split = c["block_p"], c["block_q"], c["split_k"]
    depth = _cdiv(_cdiv(k, c["block_k"]), split) * c["block_k"]  # of one block
    clusters, resident = _cdiv(s.p, bp) * _cdiv(s.q, bq), _resident(split, device)
    used = depth * (bp + bq) * 2 + bp * bq * np.where(split > 1, 4, 2)
    per_sm = np.clip(np.minimum((device.smem_per_block or SMEM_PER_BLOCK) // (used + 1024), 1024 // bp), 1, None)
    busiest, mean = _cdiv(clusters, resident), clusters * split / max(1, device.sms)  # blocks of a multiprocessor
    # cp.async minds short lines half as much as TMA
    load = (busiest + mean) / 2 * depth * (bp + bq * np.sqrt(s.q_cost)) * 2 / WHOLE_LOAD / CLOCK
    last = busiest * (_products(bp, bq, c["block_k"]) / CLOCK + bp * bq * 2 / WHOLE_STORE)
    start = WHOLE_ROUND + WARPGROUP * bp / 64 + np.where(split > 1, MEMBER * split + _sent(bp * bq, split), 0.0)
    return WHOLE_START + _cdiv(clusters, resident * per_sm) * start + load + last + _bytes(s, k) / WHOLE_DRAM


def tiny(c: Columns, m: Any, n: Any, k: Any, device: DeviceFacts) -> np.ndarray:
    """2.28 and 1.25 were fitted where a warp for each part of K shared a tile (126 screens), and are to be fitted anew. The rest is
    guessed: loads as fast as whole_k's, 0.06 less without a barrier, sums through shared memory twice, rows of Q by L1 to warps that
    share them (64 bytes a cycle), an mma every 8 cycles from each of the multiprocessor's four schedulers."""
    bp, bq, warps_p, warps_k = c["block_p"], c["block_q"], c["warps_p"], c["warps_k"]
    blocks, batches = _cdiv(m, bp) * _cdiv(n, bq), _cdiv(k, c["block_k"] * warps_k)
    together = np.maximum(1, blocks / max(1, device.sms))  # blocks that share a multiprocessor
    load = (bp + bq) * k * 2 / (59 * CLOCK) + (warps_p - 1) * bq * k * 2 / (64 * CLOCK)
    products = bp // warps_p // 16 * (bq // 8) * _cdiv(k, 16 * warps_k) * 8 / CLOCK * np.maximum(1, warps_p * warps_k * together / 4)
    out = np.where(warps_k > 1, 2 * warps_k * bp * bq * 4 / (SMEM * CLOCK) * together, -0.06)
    return 2.28 + 1.25 * (batches - 1) + load * together + products + out


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


def _products(bp: Any, bq: Any, k: Any) -> Any:
    return bp * bq * k / PRODUCTS


def _step(c: Columns, s: Batch, n: Any, split: Any, blocks: Any, device: DeviceFacts) -> Any:
    """Microseconds for block_k of a tile's K, in wgmma of n columns."""
    bp, bq, cp, cq, slabs = c["block_p"], c["block_q"], c["cluster_p"], c["cluster_q"], c["block_k"] / 64
    rows_q = bq * s.q_cost
    read = bp // 64 * (bq // n) * (64 + n) * 128 / SMEM
    asked = (bp / cq + rows_q / cp) * 128 / L2 * split**PARTS * blocks / max(1, device.sms)
    shared = np.where(cp * cq > 1, (bp + rows_q) * 128 / MULTICAST, 0.0)
    slab = _norm(_products(bp, bq, 64), read, asked, shared)
    return (slab * slabs * (1 + SHALLOW / np.maximum(1, c["stages"] - 1)) + STEP) / CLOCK


def _sent(sums: Any, split: Any) -> Any:
    """Microseconds for a block's partial sums to reach the others of its cluster."""
    return sums * 4 * (1 - 1 / split) / CLUSTER


def _bytes(s: Batch, k: Any) -> Any:
    return (s.p * k + s.q * k + s.p * s.q) * 2


def _limited(microseconds: Any, s: Batch, k: Any) -> Any:
    """By memory and by power. Of two configs at the power limit, the one with less to do is a little faster."""
    microseconds = _norm(microseconds, FIRST_BYTE + _bytes(s, k) / DRAM)
    return 0.95 * np.maximum(microseconds, 2.0 * s.p * s.q * k / POWER) + 0.05 * microseconds


def _norm(*terms: Any) -> Any:
    return sum(term**SOFT for term in terms) ** (1 / SOFT)
