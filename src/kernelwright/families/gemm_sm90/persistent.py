"""Scheme `persistent` for large shapes: persistent blocks, a producer and two or three consumer warpgroups. The kernel: persistent.cuh."""

from __future__ import annotations

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90 import limits, sides
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
    "raster": ("p", "q"),
    "raster_group": (1, 2, 4, 8, 16),
    "evict": ("normal", "keep_p", "keep_q"),
    "split_k": (1, 2, 3, 4, 6, 8),
    "pdl": (False, True),
}
"""`schedule`: cooperative consumers share a tile, consumers_p x consumers_q of them; ping-pong has two with a tile each. `raster`: the side
whose neighbouring tiles form a group. `evict`: which operand L2 keeps, while the other is first to leave."""


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


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why a config of SPACE's values cannot run, or None."""
    bp, bq, bk, cp, cq = ints(c, "block_p", "block_q", "block_k", "cluster_p", "cluster_q")
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
    k_steps = cdiv(w.axes["K"], bk)
    if int(c["split_k"]) > k_steps:
        return f"K = {w.axes['K']} has fewer than {c['split_k']} steps of {bk}"
    return limits.too_much_smem(smem_bytes(c, w), device)


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
        f"static constexpr bool raster_along_q = {'true' if c['raster'] == 'q' else 'false'};",
        f"static constexpr kw::Evict evict_p = kw::Evict::{policies[0]}, evict_q = kw::Evict::{policies[1]};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    p, q = sides.sides(c, w)
    bp, bq, bk, cp, cq, split = ints(c, "block_p", "block_q", "block_k", "cluster_p", "cluster_q", "split_k")
    cluster, width = cp * cq, store_width(c)
    map_c = sides.store_map(64, width, "128B") if c["swap"] else sides.store_map(width, 16, sides.SWIZZLE[width])
    tiles = f"cdiv({p.extent}, {bp * cp}) * cdiv({q.extent}, {bq * cq})"
    # The multiprocessors of an H200 come in groups of 16 or 18, of which clusters of four fill 16: of 132, 128. A cluster that does not
    # fit at first would run when the others have ended.
    resident = "max(1, sms // 4 - 1)" if cluster == 4 else f"max(1, sms // {cluster})"
    grid = f"min({tiles} * {split}, {resident}) * {cluster}"
    workspace = 0
    partials = counters = ScalarArg(ctype="i64", value=0)
    if split > 1:  # a counter for each consumer's share of each tile, then the partial sums of whole tiles
        units = 1 if c["schedule"] == "pingpong" else consumers(c)
        first = f"cdiv({tiles} * {cluster * units * 4}, 256) * 256"
        workspace = f"max(256, {first} + {tiles} * {cluster * split * bp * bq * 4})"
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
        pdl=bool(c["pdl"]),
    )
    requires = (*sides.requires(), *epilogue.requires(w), "ld_c % 8 == 0", "align_c % 16 == 0")
    if split > 1:
        requires += (f"cdiv(K, {bk}) >= {split}",)
    return LaunchPlan(launches=(gemm,), workspace=workspace, workspace_zeroed=split > 1, requires=requires)


TILES = (
    ("pingpong", 1, 1, 128, 128), ("pingpong", 1, 1, 128, 192), ("pingpong", 1, 1, 128, 160), ("pingpong", 1, 1, 64, 256),
    ("pingpong", 1, 1, 64, 128), ("cooperative", 2, 1, 128, 256), ("cooperative", 2, 1, 256, 128), ("cooperative", 2, 1, 128, 320),
    ("cooperative", 1, 2, 192, 192), ("cooperative", 2, 1, 128, 128), ("cooperative", 2, 1, 128, 192),
)  # fmt: skip
"""(schedule, consumers_p, consumers_q, block_p, block_q): what won somewhere on an H200, and the vendor's two largest."""


def seeds(w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
    """One config of each of the eight tiles that a rough model puts first, with as many stages as fit."""
    best: dict[tuple[object, ...], tuple[float, Config]] = {}
    for tile in TILES:
        for swap in (False, True):
            for cp, cq in ((1, 1), (2, 1), (1, 2)):
                for split in (1, 2, 4):
                    c = _seed(tile, swap, cp, cq, split, w, device)
                    if c is not None and (us := _microseconds(c, w, device)) < best.get(tile, (float("inf"),))[0]:
                        best[tile] = us, c
    return tuple(c for _, c in sorted(best.values(), key=lambda x: x[0])[:8])


def _seed(
    tile: tuple[str, int, int, int, int], swap: bool, cp: int, cq: int, split: int, w: Workload, device: DeviceFacts
) -> Config | None:
    schedule, share_p, share_q, bp, bq = tile
    c: Config = {
        "swap": swap, "schedule": schedule, "consumers_p": share_p, "consumers_q": share_q, "block_p": bp,
        "block_q": bq, "block_k": 64, "cluster_p": cp, "cluster_q": cq, "raster": "p", "raster_group": 8, "evict": "normal",
        "split_k": split, "pdl": False,
    }  # fmt: skip
    for buffers in (2, 1):  # a second store buffer where it costs no stage that keeps the ring at three
        for stages in range(8, 2, -1):
            full = c | {"stages": stages, "store_buffers": buffers}
            if illegal(full, w, device) is None:
                return full
    return None


def _microseconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    """The busiest block's time. A multiprocessor does about 5.4 MFLOP/us at the clock that 700 W leave and takes in about 80 KB/us from L2
    (48 B a clock, measured on an H200); a tile's epilogue takes about 1 us, which ping-pong hides but for the last."""
    p, q = sides.sides(c, w)
    bp, bq, bk, cp, cq, split = ints(c, "block_p", "block_q", "block_k", "cluster_p", "cluster_q", "split_k")
    items = cdiv(w.axes[p.extent], bp * cp) * cdiv(w.axes[q.extent], bq * cq) * split
    rounds = cdiv(items, max(1, device.sms // (cp * cq)))
    steps = cdiv(cdiv(w.axes["K"], bk), split)
    multiply, load = 2 * bp * bq * bk / 5.4e6, (bp / cq + bq / cp) * bk * 2 / 80e3
    reduce = 0.0 if split == 1 else 1.5 + split * bp * bq * 8 / 80e3
    hidden = 0.2 if c["schedule"] == "pingpong" else 1.0
    return rounds * (steps * max(multiply, load) + hidden + reduce) + (cp * cq - 1) * 0.1
