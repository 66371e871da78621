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
    "block_p": (16, 32, 64),
    "block_q": (8, 16, 32, 64),
    "block_k": (32, 64, 128, 256),
    "warps_p": (1, 2, 4),
    "warps_k": (1, 2, 4, 8, 16),
}
"""A block's tile, in rows for warps_p warps and in K for warps_k; each warp loads block_k at a time."""

OTHER_REGISTERS = 40
"""What addresses and loop state take beside sums and loads, at most (ptxas 13.0, 400 configs)."""
KEPT_REGISTERS = 16
"""More of it where it lives from batch to batch."""


def batches(c: Config, w: Workload) -> int:
    """Loads of block_k that each warp makes one after the other."""
    return cdiv(w.axes["K"], int(c["block_k"]) * int(c["warps_k"]))


def threads(c: Config) -> int:
    return 32 * int(c["warps_p"]) * int(c["warps_k"])


def registers(c: Config, w: Workload) -> int:
    """Where there is one batch, its loads are gone before the second chain of sums begins."""
    block_p, block_q, block_k, warps_p, _ = ints(c, *SPACE)
    rows, steps, several = block_p // warps_p, block_k // 32, batches(c, w) > 1
    fragments = rows // 16 * (block_q // 8)
    chains = min(2 * steps, max(2, 4 // fragments)) if several and fragments <= 8 else 1
    other = OTHER_REGISTERS + (KEPT_REGISTERS if several else 0)
    return 4 * fragments * chains + steps * (rows + block_q) // 2 + other


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    p, q = sides.sides(c, w)
    block_p, block_q, block_k, warps_p, warps_k = ints(c, *SPACE)
    k = w.axes["K"]
    if block_p < 16 * warps_p:
        return f"{block_p} rows are less than 16 for each of {warps_p} warps"
    if (p.k_contiguous or q.k_contiguous) and k % 8:
        return f"K = {k} cuts loads of 8 elements"
    if block_k > 32 and block_k // 2 * warps_k >= k:
        return f"half of block_k = {block_k} does for K = {k} on {warps_k} warps"
    if (warps_k - 1) * batches(c, w) * block_k >= k:
        return f"K = {k} leaves some of {warps_k} warps nothing to do"
    return (
        limits.too_many_threads(threads(c))
        or limits.too_many_registers(registers(c, w), min(255, 65536 // threads(c)), threads(c))
        or limits.too_many_along_y(cdiv(w.axes["N"], block_q))
        or limits.too_much_smem(smem_bytes(c, w), device)
    )


def smem_bytes(c: Config, w: Workload) -> int:
    """Partial sums of each part of K, as rows of C with 16 bytes of padding."""
    block_p, block_q, _, _, warps_k = ints(c, *SPACE)
    return warps_k * block_p * (block_q + 4) * 4 if warps_k > 1 else 0


def _full_tiles(c: Config, w: Workload) -> bool:
    block_p, block_q, block_k, _, warps_k = ints(c, *SPACE)
    return not (w.axes["M"] % block_p or w.axes["N"] % block_q) and w.axes["K"] == batches(c, w) * block_k * warps_k


def _wide_store(w: Workload) -> bool:
    return w.axes["N"] % 8 == 0


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        *sides.struct(c, w),
        f"static constexpr int warps_p = {c['warps_p']}, warps_k = {c['warps_k']}, batches = {batches(c, w)};",
        f"static constexpr bool full_tiles = {'true' if _full_tiles(c, w) else 'false'};",
        f"static constexpr bool wide_store = {'true' if _wide_store(w) else 'false'};",
    ]


def plan(c: Config, w: Workload) -> LaunchPlan:
    block_p, block_q, block_k, _, warps_k = ints(c, *SPACE)
    capacity = batches(c, w) * block_k * warps_k
    requires = [*sides.requires(), *epilogue.requires(w)]
    contiguous = {side.extent if not side.k_contiguous else "K" for side in sides.sides(c, w)}
    requires += [f"{axis} % 8 == 0" for axis in sorted(contiguous)]  # loads are whole or absent
    if _full_tiles(c, w):
        requires += [f"M % {block_p} == 0", f"N % {block_q} == 0", f"K == {capacity}"]
    else:
        requires.append(f"K <= {capacity}")
    if _wide_store(w):
        requires += ["N % 8 == 0", "ld_c % 8 == 0", "align_c % 16 == 0"]
    scalars = ("M", "N", "K", "ld_a", "ld_b", "ld_c")
    launch = Launch(
        kernel="gemm",
        args=(
            *(TensorArg(name=name) for name in "abc"),
            *(ScalarArg(ctype="i32", value=name) for name in scalars),
            *epilogue.args(w),
        ),
        grid=(f"cdiv(M, {block_p})", f"cdiv(N, {block_q})", 1),
        block=(threads(c), 1, 1),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(dict.fromkeys(requires)))


SEEDS, SPLIT_SEEDS, TILE = 8, 3, ("block_p", "block_q")


def microseconds(c: model.Columns, w: Workload | sides.Products, device: DeviceFacts) -> np.ndarray:
    return model.tiny(c, w.axes["M"], w.axes["N"], w.axes["K"], device)


def menu(large: Workload, device: DeviceFacts) -> list[Config]:
    return [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
