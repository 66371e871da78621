"""The tiniest products: mma.sync on fragments that come straight from global memory (tiny.cuh)."""

from __future__ import annotations

from itertools import product

import numpy as np

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90 import limits, model, sides
from kernelwright.families.gemm_sm90.limits import ints
from kernelwright.plan import cdiv
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorArg, Workload

SPACE: Space = {
    "swap": (False, True),
    "block_p": (16, 32, 64),
    "block_q": (8, 16, 32, 64),
    "block_k": (32, 64, 128),
    "warps": (1, 2, 4, 8, 16),
}

SIZES = ("block_p", "block_q", "block_k", "warps")

OTHER_REGISTERS = 40
"""What addresses and loop state take beside sums and fragments."""


def batches(c: Config, w: Workload) -> int:
    """Loads of block_k that each warp makes one after the other."""
    return cdiv(w.axes["K"], int(c["block_k"]) * int(c["warps"]))


def registers(c: Config) -> int:
    block_p, block_q, block_k, _ = ints(c, *SIZES)
    return block_p * block_q // 32 + block_k // 32 * (block_p + block_q) // 2 + OTHER_REGISTERS


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    p, q = sides.sides(c, w)
    _, block_q, block_k, warps = ints(c, *SIZES)
    if not (p.k_contiguous and q.k_contiguous):
        return "fragments come straight from global memory only where both operands are contiguous along K (layout nt)"
    if w.axes["K"] % 8:
        return f"K = {w.axes['K']} cuts loads of 8 elements"
    if warps > 1 and (warps - 1) * batches(c, w) * block_k >= w.axes["K"]:
        return f"K = {w.axes['K']} leaves some of {warps} warps nothing to do"
    return (
        limits.too_many_registers(registers(c), min(255, 65536 // (32 * warps)), 32 * warps)
        or limits.too_many_along_y(cdiv(w.axes[q.extent], block_q))
        or limits.too_much_smem(smem_bytes(c, w), device)
    )


def smem_bytes(c: Config, w: Workload) -> int:
    """Each warp's partial sums, as rows of C with 16 bytes of padding."""
    block_p, block_q, _, warps = ints(c, *SIZES)
    rows, columns = (block_q, block_p) if c["swap"] else (block_p, block_q)
    return warps * rows * (columns + 4) * 4


def _full_tiles(c: Config, w: Workload) -> bool:
    p, q = sides.sides(c, w)
    block_p, block_q, block_k, warps = ints(c, *SIZES)
    return not (w.axes[p.extent] % block_p or w.axes[q.extent] % block_q) and w.axes["K"] == batches(c, w) * block_k * warps


def _wide_store(w: Workload) -> bool:
    return w.axes["N"] % 8 == 0


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        *sides.struct(c, w),
        f"static constexpr int warps = {c['warps']}, batches = {batches(c, w)};",
        f"static constexpr bool full_tiles = {'true' if _full_tiles(c, w) else 'false'};",
        f"static constexpr bool wide_store = {'true' if _wide_store(w) else 'false'};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    p, q = sides.sides(c, w)
    block_p, block_q, block_k, warps = ints(c, *SIZES)
    capacity = batches(c, w) * block_k * warps
    requires = [*sides.requires(), *epilogue.requires(w), "K % 8 == 0"]
    if _full_tiles(c, w):
        requires += [f"{p.extent} % {block_p} == 0", f"{q.extent} % {block_q} == 0", f"K == {capacity}"]
    else:
        requires.append(f"K <= {capacity}")
    if _wide_store(w):
        requires += ["N % 8 == 0", "ld_c % 8 == 0", "align_c % 16 == 0"]
    tensors = (TensorArg(name=p.tensor), TensorArg(name=q.tensor), TensorArg(name="c"))
    scalars = (p.extent, q.extent, "K", f"ld_{p.tensor}", f"ld_{q.tensor}", "ld_c")
    launch = Launch(
        kernel="gemm",
        args=(*tensors, *(ScalarArg(ctype="i32", value=name) for name in scalars), *epilogue.args(w)),
        grid=(f"cdiv({p.extent}, {block_p})", f"cdiv({q.extent}, {block_q})", 1),
        block=(32 * warps, 1, 1),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(requires))


SEEDS, TILE = 8, ("block_p", "block_q")


def microseconds(c: model.Columns, w: Workload | sides.Products, device: DeviceFacts) -> np.ndarray:
    return model.tiny(c, sides.batch(c, c["block_q"], w), w.axes["K"], device)


def menu(large: Workload, device: DeviceFacts) -> list[Config]:
    return [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
