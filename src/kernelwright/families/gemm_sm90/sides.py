"""The two operands as wgmma sees them, and their tensor maps: what operands.cuh expects.

The product is D = P Q^T. P gives wgmma's 64-row side, Q its N side. Unswapped, P is A and Q is B; swapped, P is B, Q is A and D is C
transposed, which puts the longer side of a matrix with few rows where wgmma wants 64 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernelwright.families import epilogue
from kernelwright.families.family import Axes, Config
from kernelwright.records import TensorMapArg, Workload

Swizzle = Literal["32B", "64B", "128B"]
SWIZZLE: dict[int, Swizzle] = {64: "128B", 32: "64B", 16: "32B"}
"""By elements of a row in shared memory."""

ELEMENT = {"fp16": "kw::f16", "bf16": "kw::bf16"}


@dataclass(frozen=True)
class Side:
    """One operand."""

    tensor: str
    """`a` or `b`."""
    extent: str
    """Its axis beside K: `M` or `N`."""
    k_contiguous: bool


def sides(c: Config, w: Workload) -> tuple[Side, Side]:
    """(P, Q). A scheme without the choice never swaps."""
    a = Side("a", "M", w.layout[0] == "n")
    b = Side("b", "N", w.layout[1] == "t")
    return (b, a) if c.get("swap", False) else (a, b)


@dataclass(frozen=True)
class Batch:
    """The sides of a batch of configs."""

    p: np.ndarray
    q: np.ndarray
    """The product's rows and columns."""
    q_cost: np.ndarray
    """What a row of Q's tile costs to load, in rows of 128 bytes along K: more where rows are contiguous and the tile is no multiple of 64,
    since TMA then moves pieces of 64 or 32 bytes (1024x1024x8192, 64 x 144: 93 us; by the other operand, 52)."""


@dataclass(frozen=True)
class Products:
    """What the models need of a Workload, for many at once."""

    axes: Axes
    layout: str


def batch(c: dict[str, np.ndarray], n: np.ndarray, w: Workload | Products) -> Batch:
    """`n`: rows of Q in one tensor map."""
    swap, rows, cols = c["swap"], w.axes["M"], w.axes["N"]
    a, b = w.layout[0] == "n", w.layout[1] == "t"  # contiguous along K
    pieces = np.where(n % 64 == 0, 1.0, np.where(n % 32 == 0, 2.0, 4.0))
    return Batch(np.where(swap, cols, rows), np.where(swap, rows, cols), np.where(np.where(swap, a, b), 1.0, pieces))


def load_map(side: Side, rows: int, block_k: int, parts: int = 1) -> TensorMapArg:
    """Map for `Operand<rows, block_k, k_contiguous>::load<parts>`."""
    strides = (f"ld_{side.tensor} * 2",)
    if side.k_contiguous:
        return TensorMapArg(name=side.tensor, dims=("K", side.extent), strides=strides, box=(64, rows // parts), swizzle="128B")
    width = 64 if rows % 64 == 0 else 32 if rows % 32 == 0 else 16
    return TensorMapArg(name=side.tensor, dims=(side.extent, "K"), strides=strides, box=(width, block_k // parts), swizzle=SWIZZLE[width])


def store_map(columns: int, rows: int, swizzle: Swizzle) -> TensorMapArg:
    """Map of C for boxes of rows x columns."""
    return TensorMapArg(name="c", dims=("N", "M"), strides=("ld_c * 2",), box=(columns, rows), swizzle=swizzle)


def requires() -> tuple[str, ...]:
    """What TMA asks of the operands: rows that start at multiples of 16 bytes, and no empty tensor."""
    return (*(f"{e}_{t} % {n} == 0" for t in "ab" for e, n in (("ld", 8), ("align", 16))), "K > 0")


def struct(c: Config, w: Workload) -> list[str]:
    """The lines of Config that all schemes share."""
    p, q = sides(c, w)

    def flag(x: object) -> str:
        return "true" if x else "false"

    return [
        f"using Element = {ELEMENT[w.dtype]};",
        f"static constexpr bool p_k_contiguous = {flag(p.k_contiguous)}, q_k_contiguous = {flag(q.k_contiguous)};",
        f"static constexpr bool swap = {flag(c.get('swap', False))};",
        f"static constexpr bool fp16_accumulate = {flag(w.accumulate == 'fp16')};",
        f"static constexpr int block_p = {c['block_p']}, block_q = {c['block_q']}, block_k = {c['block_k']};",
        epilogue.steps(w),
    ]
