"""One output tile per block, fed by a deep TMA ring: middle shapes. ring.cuh."""

from __future__ import annotations

from itertools import product

import numpy as np

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90 import limits, model, sides
from kernelwright.families.gemm_sm90.limits import ints
from kernelwright.plan import cdiv
from kernelwright.records import Expr, Launch, LaunchPlan, ScalarArg, TensorArg, Workload

WGMMA_N = (8, 16, 32, 48, *range(64, 257, 16))
OTHER_REGISTERS = 28
"""What a consumer needs beside its sums: 26 with ptxas 13.0."""

SPACE: Space = {
    "swap": (False, True),
    "block_p": (64, 128, 192, 256),
    "block_q": WGMMA_N,
    "block_k": (64, 128),
    "stages": (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16),
    "subtiles": (1, 2),
    "cluster_p": (1, 2, 4),
    "cluster_q": (1, 2, 4),
    "split_k": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16),
    "raster_group": (0, 1, 2, 4, 8, 16),
}


def _extents(c: Config, w: Workload) -> tuple[int, int]:
    p, q = sides.sides(c, w)
    return w.axes[p.extent], w.axes[q.extent]


def threads(c: Config) -> int:
    return int(c["block_p"]) // int(c["subtiles"]) * 2 + 32


def registers(c: Config, w: Workload) -> tuple[int, int]:
    """(about what a consumer needs, what a thread can have). Warps get registers in fours, one for each quarter of the multiprocessor: the
    producer warp takes as many as a warpgroup."""
    subtiles, bq, split = ints(c, "subtiles", "block_q", "split_k")
    sums = subtiles * bq // 2
    more = epilogue.registers(w) if split == 1 else 0  # else it comes after the sums have left their registers
    return sums + OTHER_REGISTERS + (2 * more if sums > 160 else more), min(255, 65536 // (cdiv(threads(c), 128) * 128) // 8 * 8)


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    bp, bq, bk, subtiles = ints(c, "block_p", "block_q", "block_k", "subtiles")
    cp, cq, split = ints(c, "cluster_p", "cluster_q", "split_k")
    if bp % (64 * subtiles):
        return f"block_p = {bp} is no multiple of {subtiles} subtiles of 64 rows"
    if cp * cq > 4:
        return f"{cp} x {cq} tiles in a cluster; at most 4 share loads"
    if cp * cq * split > 16:
        return f"a cluster of {cp * cq * split} blocks; Hopper has at most 16"
    for name, side, rows, parts in zip("pq", sides.sides(c, w), (bp, bq), (cq, cp), strict=True):
        if side.k_contiguous:
            if rows % (8 * parts):
                return f"block_{name} = {rows} in {parts} parts cuts the 8 rows of a swizzle pattern"
        elif rows % 16:
            return f"block_{name} = {rows}: an operand with contiguous rows needs a multiple of 16"
    p, q = _extents(c, w)
    for name, extent, block, cluster in (("p", p, bp, cp), ("q", q, bq, cq)):
        if cluster > max(1, cdiv(extent, block)):
            return f"cluster_{name} = {cluster}, but there are only {cdiv(extent, block)} tiles"
    steps = cdiv(w.axes["K"], bk)
    if split > max(1, steps):
        return f"K = {w.axes['K']} has fewer than {split} steps of {bk}"
    if c["raster_group"] == 0 and (reason := limits.too_many_along_y(cdiv(q, bq * cq))):
        return reason
    return limits.too_many_registers(*registers(c, w), threads(c)) or limits.too_much_smem(smem_bytes(c, w), device)


def _partial_bytes(c: Config) -> int:
    """The area where partial sums arrive: `split_k` times the largest share, in units of 16 x 8 sums."""
    split = int(c["split_k"])
    return split * cdiv(int(c["block_p"]) // 16 * int(c["block_q"]) // 8, split) * 512 if split > 1 else 0


def _ring_bytes(c: Config, overlaid: int) -> int:
    return max(int(c["stages"]) * (int(c["block_p"]) + int(c["block_q"])) * int(c["block_k"]) * 2, overlaid)


def partials_apart(c: Config) -> bool:
    """Partial sums have room beside the ring: no block need wait until the others' rings are empty."""
    return int(c["split_k"]) > 1 and _ring_bytes(c, 0) + _partial_bytes(c) + _barrier_bytes(c) <= limits.SMEM_PER_BLOCK


def _barrier_bytes(c: Config) -> int:
    return int(c["stages"]) * 16 + 8


def smem_bytes(c: Config, w: Workload) -> int:
    partials = _partial_bytes(c)
    if partials_apart(c):
        return _ring_bytes(c, 0) + partials + _barrier_bytes(c)
    return _ring_bytes(c, partials or int(c["block_p"]) * int(c["block_q"]) * 2) + _barrier_bytes(c)


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        *sides.struct(c, w),
        f"static constexpr int split_k = {c['split_k']};",
        f"static constexpr int stages = {c['stages']}, subtiles = {c['subtiles']};",
        f"static constexpr int cluster_p = {c['cluster_p']}, cluster_q = {c['cluster_q']};",
        f"static constexpr int raster_group = {c['raster_group']};",
        f"static constexpr bool partials_apart = {'true' if partials_apart(c) else 'false'};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    bp, bq, bk, cp, cq, split = ints(c, "block_p", "block_q", "block_k", "cluster_p", "cluster_q", "split_k")
    p, q = sides.sides(c, w)
    blocks = cp * cq * split
    clusters_p, clusters_q = f"cdiv({p.extent}, {bp * cp})", f"cdiv({q.extent}, {bq * cq})"
    grid: tuple[Expr, Expr, Expr] = (f"{clusters_p} * {clusters_q} * {blocks}", 1, 1)
    requires = (*sides.requires(), *epilogue.requires(w))
    if c["raster_group"] == 0:
        grid = (f"{clusters_p} * {blocks}", clusters_q, 1)
        requires = (*requires, f"{clusters_q} <= {limits.GRID_Y}")
    launch = Launch(
        kernel="gemm",
        args=(
            sides.load_map(p, bp, bk, cq),
            sides.load_map(q, bq, bk, cp),
            TensorArg(name="c"),
            *(ScalarArg(ctype="i32", value=name) for name in (p.extent, q.extent, "K", "ld_c")),
            *epilogue.args(w),
        ),
        grid=grid,
        block=(threads(c), 1, 1),
        cluster=(blocks, 1, 1),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    return LaunchPlan(launches=(launch,), requires=requires)


SEEDS, TILE = 8, ("block_p", "block_q", "split_k")


def microseconds(c: model.Columns, w: Workload | sides.Products, device: DeviceFacts) -> np.ndarray:
    return model.ring(c, sides.batch(c, c["block_q"], w), w.axes["K"], device)


def menu(large: Workload, device: DeviceFacts) -> list[Config]:
    """Every tile, cluster and split, with as many stages as fit: what is legal where the matrices are large."""
    found: list[Config] = []
    for bp, bq, subtiles in product(SPACE["block_p"], SPACE["block_q"], SPACE["subtiles"]):
        for bk, (cp, cq), split, swap in product(SPACE["block_k"], ((1, 1), (2, 1), (1, 2)), SPACE["split_k"], SPACE["swap"]):
            c: Config = {
                "swap": swap, "block_p": bp, "block_q": bq, "block_k": bk, "subtiles": subtiles, "cluster_p": cp, "cluster_q": cq,
                "split_k": split, "raster_group": 8,
            }  # fmt: skip
            if illegal(c | {"stages": 2}, large, device) is not None:
                continue
            stages = max(s for s in SPACE["stages"] if limits.too_much_smem(smem_bytes(c | {"stages": s}, large), device) is None)
            if int(stages) > 2:
                found.append(c | {"stages": stages})
    return found
