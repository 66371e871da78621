"""A weight in one of the layouts, exact: `compress` makes it, `to_dense` gives the same bits back."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelwright.layouts import bitmask, quad_bitmap, three_layer
from kernelwright.layouts.bits import dtype_name, negative_zeros, raw

LAYOUTS: dict[str, Any] = {module.NAME: module for module in (bitmask, quad_bitmap, three_layer)}
"""By name: modules with PARTS, FACTS, SIZES, pack(weight) -> (parts, facts) and unpack(parts, facts, out)."""

MIN_SPARSITY = 0.3
"""Below it a bitmap saves so little (1.525 of 2 bytes a weight) that compressing is a mistake more often than a wish."""

_WORTH = {torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2}


class SparseError(ValueError):
    """A weight, model or file that cannot be used; the message is one sentence with the fix."""


@dataclass(frozen=True, eq=False)
class Compressed:
    """A weight (rows, columns). `parts` are its tensors by the layout's names, `facts` integers that a kernel needs besides."""

    layout: str
    shape: tuple[int, int]
    dtype: torch.dtype
    nonzeros: int
    parts: dict[str, Tensor]
    facts: dict[str, int]

    def to_dense(self, out: Tensor | None = None) -> Tensor:
        """The weight, bit for bit; written into `out` (contiguous, of this shape and dtype) where it is given."""
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        elif out.shape != self.shape or out.dtype != self.dtype or not out.is_contiguous():
            # it would be filled with other weights, or with bits that mean other numbers
            wanted, given = f"{dtype_name(self.dtype)} {self.shape}", f"{dtype_name(out.dtype)} {tuple(out.shape)}"
            raise SparseError(f"out is {given}, this weight is {wanted}; give a contiguous tensor of that dtype and shape")
        LAYOUTS[self.layout].unpack(self.parts, self.facts, out)
        return out

    @property
    def device(self) -> torch.device:
        return next(iter(self.parts.values())).device

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def bytes_per_weight(self) -> float:
        return self.nbytes / (self.shape[0] * self.shape[1])

    @property
    def sparsity(self) -> float:
        return 1 - self.nonzeros / (self.shape[0] * self.shape[1])

    def to(self, device: torch.device | str) -> Compressed:
        moved = {name: part.to(device) for name, part in self.parts.items()}
        return Compressed(self.layout, self.shape, self.dtype, self.nonzeros, moved, self.facts)

    def as_layout(self, layout: str, **options: Any) -> Compressed:
        """The same weight in another layout; itself where it is in that one already."""
        if layout == self.layout and options.items() <= self.options.items():
            return self
        return _pack(self.to_dense(), layout, **options)

    @property
    def options(self) -> dict[str, Any]:
        """What `compress` was asked for besides the layout."""
        return {"order": quad_bitmap.ORDERS[self.facts["order"]]} if self.layout == quad_bitmap.NAME else {}

    def cast(self, dtype: torch.dtype) -> Compressed:
        """The weight rounded to another dtype; values that become zero are dropped."""
        dense = self.to_dense().to(dtype)
        return _pack(dense, self.layout, **self.options) if dtype.itemsize in LAYOUTS[self.layout].SIZES else _pack(dense, bitmask.NAME)

    def split(self, sizes: Sequence[int], dim: int = 0) -> list[Compressed]:
        """By rows (dim 0) or columns (dim 1) into pieces of these sizes, for tensor parallelism; any boundary. Raises SparseError."""
        if dim not in (0, 1):
            raise SparseError(f"dim={dim} is neither 0 (rows) nor 1 (columns)")
        if sum(sizes) != self.shape[dim] or min(sizes) < 1:
            what = ("rows", "columns")[dim]
            raise SparseError(f"sizes {list(sizes)} are not all positive or do not add up to the {self.shape[dim]} {what} of this weight")
        return [_pack(piece.contiguous(), self.layout, **self.options) for piece in self.to_dense().split(list(sizes), dim)]

    def verify(self, weight: Tensor) -> bool:
        """Whether decompressing gives exactly these bits."""
        same = weight.shape == self.shape and weight.dtype == self.dtype
        return same and torch.equal(raw(self.to_dense()), raw(weight.detach().contiguous()))


def compress(
    weight: Tensor, layout: str = quad_bitmap.NAME, *, min_sparsity: float = MIN_SPARSITY, negative_zero: str = "keep", **options: Any
) -> Compressed:
    """A weight (rows, columns) of fp16 or bf16 (with layout "bitmask" also of 8 or 32 bits), packed exactly.

    `negative_zero`: "keep" stores -0.0 as a value, "drop" turns it into 0.0. Weights that were pruned by multiplying with a mask hold -0.0
    wherever a negative weight was pruned. `order` ("tile" or "lane") is an option of quad-bitmap. Raises SparseError for less sparsity than
    `min_sparsity`, another dtype or other than two dimensions.
    """
    if layout not in LAYOUTS:
        raise SparseError(f"no layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    if weight.ndim != 2:
        raise SparseError(f"a weight has rows and columns, this tensor has {weight.ndim} dimensions; reshape it first")
    if not weight.numel():
        raise SparseError(f"a weight of {weight.shape[0]} rows and {weight.shape[1]} columns holds nothing to compress; keep it dense")
    if weight.dtype not in _WORTH or weight.element_size() not in LAYOUTS[layout].SIZES:
        takes = "float16 and bfloat16" if LAYOUTS[layout].SIZES == (2,) else "floating-point weights up to 32 bits"
        raise SparseError(f"the layout {layout} holds {takes}, this weight is {dtype_name(weight.dtype)}; convert it first")
    if weight.layout != torch.strided or weight.is_meta:
        what = "on the meta device" if weight.is_meta else f"in PyTorch's {weight.layout}"
        raise SparseError(f"this weight is {what}, where its elements cannot be read; load it or make it dense first")
    if unknown := options.keys() - inspect.signature(LAYOUTS[layout].pack).parameters:
        raise SparseError(f"the layout {layout} has no option {min(unknown)!r}")
    if negative_zero not in ("keep", "drop"):
        raise SparseError(f"negative_zero={negative_zero!r} is neither 'keep' nor 'drop'")
    dense = weight.detach().contiguous()
    if negative_zero == "drop":
        dense = torch.where(negative_zeros(dense), 0, raw(dense)).view(dense.dtype)
    nonzeros = int(torch.count_nonzero(raw(dense)))
    if (sparsity := 1 - nonzeros / dense.numel()) < min_sparsity:
        negative = int(negative_zeros(dense).sum()) / dense.numel()
        if sparsity + negative >= min_sparsity:
            raise SparseError(
                f"only {sparsity:.0%} of this weight is zero, but another {negative:.0%} is -0.0, as multiplying with a mask leaves it; "
                "pass negative_zero='drop'"
            )
        raise SparseError(
            f"only {sparsity:.0%} of this {'x'.join(map(str, dense.shape))} weight is zero, below the {min_sparsity:.0%} that make "
            "compressing worth while; prune it first (kernelwright.sparse.prune_), keep it dense, or pass a lower min_sparsity"
        )
    return _pack(dense, layout, nonzeros, **options)


def _pack(dense: Tensor, layout: str, nonzeros: int | None = None, **options: Any) -> Compressed:
    parts, facts = LAYOUTS[layout].pack(dense, **options)
    nonzeros = int(torch.count_nonzero(raw(dense))) if nonzeros is None else nonzeros
    return Compressed(layout, (dense.shape[0], dense.shape[1]), dense.dtype, nonzeros, parts, facts)
