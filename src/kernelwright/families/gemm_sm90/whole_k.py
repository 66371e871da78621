"""Small and narrow products: all of a block's K in shared memory at once (whole_k.cuh)."""

from __future__ import annotations

from itertools import product

import numpy as np

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90 import limits, model, sides
from kernelwright.families.gemm_sm90.limits import ints
from kernelwright.families.gemm_sm90.sides import Side
from kernelwright.plan import cdiv
from kernelwright.records import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, Workload

SPACE: Space = {
    "load": ("cp_async", "tma"),
    "swap": (False, True),
    "block_p": (64, 128),
    "block_q": (8, 16, 32, 48, 64, 96, 128),
    "block_k": (64, 128, 256),
    "split_k": (1, 2, 3, 4, 6, 8, 12, 16),
}

SIZES = ("block_p", "block_q", "block_k", "split_k")

MOST_STAGES = {"cp_async": 16, "tma": 25}
"""The stages are unrolled. cp_async: 16 of 64 are twice the K up to which it won over TMA (512, measured on an H200), and more would
be more code than the load saves; tma: what 227 KB hold of the smallest tile."""


def _extents(c: Config, w: Workload) -> tuple[Side, Side, int, int, int]:
    p, q = sides.sides(c, w)
    return p, q, w.axes[p.extent], w.axes[q.extent], w.axes["K"]


def stages(c: Config, w: Workload) -> int:
    """Steps of block_k that each block holds."""
    return cdiv(cdiv(w.axes["K"], int(c["block_k"])), int(c["split_k"]))


def tails(c: Config, w: Workload) -> str:
    """How much cp_async must check; `Tails` of whole_k.cuh."""
    p, q, rows_p, rows_q, k = _extents(c, w)
    block_p, block_q, block_k, split = ints(c, *SIZES)
    if rows_p % block_p == 0 and rows_q % block_q == 0 and k == stages(c, w) * block_k * split:
        return "none"
    contiguous = (k if p.k_contiguous else rows_p, k if q.k_contiguous else rows_q)
    return "chunk" if all(n % 8 == 0 for n in contiguous) else "any"


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    _, q, _, rows_q, k = _extents(c, w)
    block_p, block_q, block_k, split = ints(c, *SIZES)
    if not q.k_contiguous and block_q % 16:
        return f"block_q = {block_q} is no multiple of 16, the narrowest tile of an operand whose rows are contiguous"
    lines = block_p // 4  # of 128 bytes, that one pass of all threads copies
    if c["load"] == "cp_async" and q.k_contiguous and block_q % lines and lines % block_q:
        return f"{block_q} rows of Q do not divide into passes of {lines}"
    if split > 1 and (split - 1) * stages(c, w) * block_k >= k:
        return f"K = {k} leaves some of {split} blocks nothing to do"
    if stages(c, w) > (most := MOST_STAGES[str(c["load"])]):
        return f"{stages(c, w)} stages a block; {c['load']} has at most {most}"
    return limits.too_many_along_y(cdiv(rows_q, block_q)) or limits.too_much_smem(smem_bytes(c, w), device)


def smem_bytes(c: Config, w: Workload) -> int:
    """Stages; the tile of C on its way out, or what the blocks of the cluster send (16 x 8 sums of fp32 a unit); mbarriers."""
    block_p, block_q, block_k, split = ints(c, *SIZES)
    tiles = stages(c, w) * (block_p + block_q) * block_k * 2
    area = block_p * block_q * 2 if split == 1 else split * cdiv(block_p * block_q // 128, split) * 512
    return tiles + area + 8 + (8 * stages(c, w) if c["load"] == "tma" else 0)


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        *sides.struct(c, w),
        f"static constexpr int split_k = {c['split_k']};",
        f"static constexpr int stages = {stages(c, w)};",
        f"static constexpr Load load = Load::{c['load']};",
        f"static constexpr Tails tails = Tails::{tails(c, w) if c['load'] == 'cp_async' else 'none'};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    p, q, *_ = _extents(c, w)
    block_p, block_q, block_k, split = ints(c, *SIZES)
    capacity = stages(c, w) * block_k * split
    requires = [*sides.requires(), *epilogue.requires(w)]
    operands: tuple[Arg, Arg]
    if c["load"] == "tma":
        operands = (sides.load_map(p, block_p, block_k), sides.load_map(q, block_q, block_k))
        requires.append(f"K <= {capacity}")
    else:
        operands = (TensorArg(name=p.tensor), TensorArg(name=q.tensor))
        match tails(c, w):
            case "none":
                requires += [f"{p.extent} % {block_p} == 0", f"{q.extent} % {block_q} == 0", f"K == {capacity}"]
            case "chunk":
                contiguous = {"K" if side.k_contiguous else side.extent for side in (p, q)}
                requires += [f"K <= {capacity}", *(f"{axis} % 8 == 0" for axis in sorted(contiguous))]
            case _:
                requires.append(f"K <= {capacity}")
    scalars = (p.extent, q.extent, "K", f"ld_{p.tensor}", f"ld_{q.tensor}", "ld_c")
    launch = Launch(
        kernel="gemm",
        args=(*operands, TensorArg(name="c"), *(ScalarArg(ctype="i32", value=name) for name in scalars), *epilogue.args(w)),
        grid=(f"cdiv({p.extent}, {block_p})", f"cdiv({q.extent}, {block_q})", split),
        block=(2 * block_p, 1, 1),
        cluster=(1, 1, split),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(requires))


SEEDS, TILE = 8, ("block_p", "block_q", "split_k")


def microseconds(c: model.Columns, w: Workload | sides.Products, device: DeviceFacts) -> np.ndarray:
    return model.whole_k(c, sides.batch(c, c["block_q"], w), w.axes["K"], device)


def menu(large: Workload, device: DeviceFacts) -> list[Config]:
    return [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
