"""Scheme `persistent` for large shapes: persistent blocks, a producer and two or three consumer warpgroups. The kernel: persistent.cuh."""

from __future__ import annotations

from itertools import product

import numpy as np

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90 import limits, model, sides
from kernelwright.families.gemm_sm90.limits import ints
from kernelwright.plan import cdiv
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorMapArg, Workload, WorkspaceArg

MOST_SUMS = {2: 192, 3: 128}
"""Sums one thread can hold, by consumer warpgroups, of 232 and 160 registers (ptxas 13.0: 208 spill and serialise wgmma)."""
WIDEST_WGMMA = {2: 256, 3: 192}
"""With 512 threads ptxas starts from 128 registers, which hold no wgmma of 208 columns (it asks for 130)."""

SPACE: Space = {
    "swap": (False, True),
    "schedule": ("cooperative", "pingpong"),
    "consumers_p": (1, 2, 3),
    "consumers_q": (1, 2),
    "block_p": (64, 128, 192, 256, 320, 384),
    "block_q": (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 320, 384),
    "block_k": (64, 128),
    "stages": (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    "store_buffers": (1, 2),
    "cluster_p": (1, 2, 4),
    "cluster_q": (1, 2, 4),
    "raster": ("p", "q", "hilbert"),
    "raster_group": (1, 2, 4, 8, 16),
    "evict": ("normal", "keep_p", "keep_q"),
    "split_k": (1, 2, 3, 4, 6, 8),
    "tail": ("tiles", "stream", "two_tile"),
}
"""`schedule`: cooperative consumers share a tile, consumers_p x consumers_q of them; ping-pong has two with a tile each. `raster`: the side
whose neighbouring tiles form a group, or the curve that all tiles lie on. `evict`: which operand L2 keeps, while the other is first to
leave. `split_k`: parts of every tile's K. `tail`: what is shared along K by all clusters, instead of dealt out as tiles: the last, partial
wave (stream), the last full wave too (two_tile)."""
SHARED_WAVES = {"tiles": 0, "stream": 1, "two_tile": 2}


def consumers(c: Config) -> int:
    """Consumer warpgroups of a block."""
    return 2 if c["schedule"] == "pingpong" else int(c["consumers_p"]) * int(c["consumers_q"])


def wgmma_n(c: Config) -> int:
    """Columns of one wgmma: a consumer's columns, in as few equal slices as its limit of 256 allows."""
    columns = int(c["block_q"]) // int(c["consumers_q"])
    return columns // cdiv(columns, 256)


def store_width(c: Config) -> int:
    """TileStore::width."""
    n = wgmma_n(c)
    return 64 if n % 64 == 0 else 32 if n % 32 == 0 else 16


def tiles(c: Config, w: Workload) -> int:
    """Tiles of a cluster, of block_p * cluster_p x block_q * cluster_q elements."""
    p, q = sides.sides(c, w)
    bp, bq, cp, cq = ints(c, "block_p", "block_q", "cluster_p", "cluster_q")
    return cdiv(w.axes[p.extent], bp * cp) * cdiv(w.axes[q.extent], bq * cq)


def k_steps(c: Config, w: Workload) -> int:
    return cdiv(w.axes["K"], int(c["block_k"]))


def _cluster(c: Config) -> int:
    return int(c["cluster_p"]) * int(c["cluster_q"])


def resident(c: Config) -> str:
    """limits.resident_clusters as an expression. One that does not fit at first would run when the others have ended."""
    cluster = _cluster(c)
    return f"max(1, sms * {limits.RESIDENT[cluster - 1]} // {limits.RESIDENT[0]})"


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why a config of SPACE's values cannot run, or None."""
    bp, bq, cp, cq = ints(c, "block_p", "block_q", "cluster_p", "cluster_q")
    share_p, share_q = ints(c, "consumers_p", "consumers_q")
    if c["schedule"] == "pingpong" and (share_p, share_q) != (1, 1):
        return "consumers in ping-pong share no tile: consumers_p and consumers_q are 1"
    if c["schedule"] == "cooperative" and (share_p, share_q) not in ((2, 1), (1, 2), (3, 1)):
        return f"{share_p} x {share_q} consumers do not share a tile; 2 x 1, 1 x 2 and 3 x 1 do"
    if bp % (64 * share_p):
        return f"{bp} rows over {share_p} consumers are not multiples of 64"
    n = wgmma_n(c)
    if bq % (n * share_q) or n % 16:
        return f"{bq} columns over {share_q} consumers are not equal multiples of 16"
    sums = bp * bq // (share_p * share_q) // 128
    if sums > (most := MOST_SUMS[consumers(c)] - epilogue.registers(w)):
        return f"{sums} sums a thread; registers hold {most}"
    if n > (widest := WIDEST_WGMMA[consumers(c)]):
        return f"wgmma of {n} columns; {consumers(c)} consumers have registers for {widest}"
    if cp * cq > 4:
        return f"a cluster of {cp * cq} blocks; at most 4 are of use"
    for side, rows, parts in zip(sides.sides(c, w), (bp, n), (cq, cp), strict=True):
        if side.k_contiguous and (rows % (8 * parts) or rows // parts > 256):
            return f"{rows} rows of {side.tensor} do not divide into {parts} boxes of 8 to 256 rows in eights"
    if c["raster"] == "hilbert" and int(c["raster_group"]) != 1:
        return "a Hilbert curve has no groups: raster_group is 1"
    return cut_in_vain(c, w, device) or limits.too_much_smem(smem_bytes(c, w), device)


def cut_in_vain(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why K cannot be cut like this, or need not be."""
    split, count, steps, clusters = int(c["split_k"]), tiles(c, w), k_steps(c, w), limits.resident_clusters(_cluster(c), device.sms)
    if split > steps:
        return f"K = {w.axes['K']} has fewer than {split} steps of {c['block_k']}"
    if split > 1 and c["tail"] != "tiles":
        return "K is cut in one way: by split_k or by a shared tail"
    if split > 1 and count * split > 4 * clusters:
        return f"{count} tiles in {split} parts are over four waves of {clusters} clusters: fewer parts fill them"
    if c["tail"] == "tiles":
        return None
    if count % clusters == 0:
        return f"{count} tiles fill all waves of {clusters} clusters: there is no tail to share"
    if c["tail"] == "two_tile" and count < clusters:
        return f"{count} tiles on {clusters} clusters have no full wave for two_tile"
    if steps == 1 or (count < clusters and count * steps // limits.LEAST_STEPS <= count):
        return f"K = {w.axes['K']} has too few steps of {c['block_k']} to share"
    return None


def smem_bytes(c: Config, w: Workload) -> int:
    """Dynamic shared memory, as the kernel lays it out: stages, store buffers, two barriers a stage, a word for each consumer."""
    bp, bq, bk, stages, buffers = ints(c, "block_p", "block_q", "block_k", "stages", "store_buffers")
    return stages * (bp + bq) * bk * 2 + consumers(c) * buffers * store_width(c) * 128 + stages * 16 + consumers(c) * 4


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    """The lines of Config."""
    policies = {"normal": ("normal", "normal"), "keep_p": ("last", "first"), "keep_q": ("first", "last")}[str(c["evict"])]
    numbers = ("split_k", "consumers_p", "consumers_q", "stages", "store_buffers", "cluster_p", "cluster_q", "raster_group")
    return [
        *sides.struct(c, w),
        f"static constexpr bool pingpong = {'true' if c['schedule'] == 'pingpong' else 'false'};",
        *(f"static constexpr int {key} = {c[key]};" for key in numbers),
        f"static constexpr int shared_waves = {SHARED_WAVES[str(c['tail'])]};",
        f"static constexpr bool raster_along_q = {'true' if c['raster'] == 'q' else 'false'};",
        f"static constexpr bool raster_hilbert = {'true' if c['raster'] == 'hilbert' else 'false'};",
        f"static constexpr kw::Evict evict_p = kw::Evict::{policies[0]}, evict_q = kw::Evict::{policies[1]};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    p, q = sides.sides(c, w)
    bp, bq, bk, cp, cq, split = ints(c, "block_p", "block_q", "block_k", "cluster_p", "cluster_q", "split_k")
    cluster, width = cp * cq, store_width(c)
    map_c = sides.store_map(64, width, "128B") if c["swap"] else sides.store_map(width, 16, sides.SWIZZLE[width])
    count, steps = f"(cdiv({p.extent}, {bp * cp}) * cdiv({q.extent}, {bq * cq}))", f"cdiv(K, {bk})"
    stream = c["tail"] != "tiles"
    items = f"max({count}, {count} * {steps} // {limits.LEAST_STEPS})" if stream else f"{count} * {split}"
    grid = f"min({items}, {resident(c)}) * {cluster}"
    workspace = 0
    partials = counters = ScalarArg(ctype="i64", value=0)
    cut = stream or split > 1
    if cut:  # for each share of K and each block's consumers (ping-pong: consumer) a counter; then room for two of their partial sums
        shares = grid if stream else f"{count} * {split * cluster}"
        first = f"cdiv({shares} * {4 * (1 if c['schedule'] == 'pingpong' else consumers(c))}, 256) * 256"
        workspace = f"max(256, {first} + {shares} * {2 * bp * bq * 4})"
        partials, counters = WorkspaceArg(offset=first), WorkspaceArg()
    maps: tuple[TensorMapArg, ...] = (
        sides.load_map(p, bp, bk, parts=cq),
        sides.load_map(q, wgmma_n(c), bk, parts=cp),
        map_c,
    )
    gemm = Launch(
        kernel="gemm",
        args=(*maps, *(ScalarArg(ctype="i32", value=x) for x in (p.extent, q.extent, "K")), partials, counters, *epilogue.args(w)),
        grid=(grid, 1, 1),
        block=(128 * (1 + consumers(c)), 1, 1),
        cluster=(cluster, 1, 1),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    requires = (*sides.requires(), *epilogue.requires(w), "ld_c % 8 == 0", "align_c % 16 == 0")
    if cut:
        requires += (f"{steps} >= {split}", f"{count} * {steps} < {2**31}")
    return LaunchPlan(launches=(gemm,), workspace=workspace, workspace_zeroed=cut, requires=requires)


TILES = (
    ("pingpong", 1, 1, 128, 128), ("pingpong", 1, 1, 128, 192), ("pingpong", 1, 1, 128, 160), ("pingpong", 1, 1, 64, 256),
    ("pingpong", 1, 1, 64, 128), ("cooperative", 2, 1, 128, 256), ("cooperative", 2, 1, 256, 128), ("cooperative", 2, 1, 128, 320),
    ("cooperative", 1, 2, 192, 192), ("cooperative", 2, 1, 128, 128), ("cooperative", 2, 1, 128, 192), ("cooperative", 3, 1, 192, 128),
    ("pingpong", 1, 1, 192, 128), ("pingpong", 1, 1, 128, 176), ("pingpong", 1, 1, 64, 160), ("pingpong", 1, 1, 64, 192),
    ("cooperative", 2, 1, 128, 224), ("cooperative", 2, 1, 256, 160), ("cooperative", 2, 1, 128, 64), ("cooperative", 2, 1, 256, 96),
)  # fmt: skip
"""(schedule, consumers_p, consumers_q, block_p, block_q): what won somewhere on an H200, and the vendor's two largest."""
SPLITS = (1, 2, 3, 4, 8)
"""No shared tails: on 18 shapes measured on an H200 (4104x2056x1032 to 8192x12288x12288) each lost to whole tiles, by 3 % (two_tile, 78
waves) to 60 %."""


SEEDS, TILE = 12, ("schedule", "block_p", "block_q")
"""Two of a tile are its raster orders, between which the model cannot tell."""


def microseconds(c: model.Columns, w: Workload | sides.Products, device: DeviceFacts) -> np.ndarray:
    columns = c["block_q"] // c["consumers_q"]
    return model.persistent(c, sides.batch(c, columns // -(-columns // 256), w), w.axes["K"], device)


def menu(large: Workload, device: DeviceFacts) -> list[Config]:
    """Every tile, cluster and split, with as many stages as fit."""
    found: list[Config] = []
    for (schedule, share_p, share_q, bp, bq), (cp, cq), swap in product(TILES, ((1, 1), (2, 1), (1, 2)), (False, True)):
        c: Config = {
            "swap": swap, "schedule": schedule, "consumers_p": share_p, "consumers_q": share_q, "block_p": bp,
            "block_q": bq, "block_k": 64, "cluster_p": cp, "cluster_q": cq, "raster_group": 8, "evict": "normal",
        }  # fmt: skip
        # a second store buffer where it costs no stage that keeps the ring at three
        sizes = product((2, 1), range(8, 2, -1))
        whole = (c | {"raster": "p", "split_k": 1, "tail": "tiles", "store_buffers": b, "stages": s} for b, s in sizes)
        if (full := next((x for x in whole if illegal(x, large, device) is None), None)) is not None:
            found += [full | {"split_k": split, "raster": raster} for split, raster in product(SPLITS, "pq")]
    return found
