"""cuSPARSELt as a rival of `spmm`: a 2:4 weight on sparse tensor cores, by PyTorch's own operators.

It is inexact (`records.INEXACT`): of the non-zeros in each group of four it keeps the two largest, which are 81 % of a random half, so that
it computes with other weights and its results are held against those. Compressing, padding X to whole eights and the search for an
algorithm stay outside the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Run

ROWS, COLUMNS, X_ROWS = 16, 16, 8
"""Multiples that PyTorch asks of M, K and N for 16-bit types."""
WORST = 4e-3
"""Relative Frobenius error against the product with the weights that it keeps: one rounding in bf16 makes 2e-3."""


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """Raises CandidateFault."""
    if w.epilogue:
        raise CandidateFault(Outcome.REFUSED, f"it does the product alone, without {w.epilogue}")
    m, k = w.axes["M"], w.axes["K"]
    if m % ROWS or k % COLUMNS or not (m and k and w.axes["N"]):
        raise CandidateFault(Outcome.REFUSED, f"it needs M and K in whole sixteens, not {m} and {k}")
    if not torch.backends.cusparselt.is_available():
        raise CandidateFault(Outcome.REFUSED, "this PyTorch is built without cuSPARSELt")
    products = [_Product(one) for one in sets]

    def setup() -> None:
        for product in products:
            product.prepare()
        product = products[0]
        algorithm = int(torch._cslt_sparse_mm_search(product.packed, product.x.t(), transpose_result=True))  # pyright: ignore[reportPrivateImportUsage]
        for one in products:
            one.algorithm = algorithm
        product.check()

    return [Run(call=one.call, store=one.store, prepare=one.prepare) for one in products], setup


class _Product:
    def __init__(self, one: Bound) -> None:
        self.given, self.weight, self.y = (one.tensors[name] for name in ("x", "w", "y"))
        self.x = torch.zeros(
            -(-self.given.shape[0] // X_ROWS) * X_ROWS, self.given.shape[1], dtype=self.given.dtype, device=self.given.device
        )
        self.algorithm = 0
        self.packed = self.weight.new_empty(0)

    def prepare(self) -> None:
        packed = torch._cslt_compress(two_of_four(self.weight))  # pyright: ignore[reportPrivateImportUsage]
        # in its place: a CUDA graph reads it there
        self.packed = self.packed.copy_(packed) if self.packed.numel() else packed
        self.x[: self.given.shape[0]].copy_(self.given)

    def call(self) -> torch.Tensor:
        return torch._cslt_sparse_mm(self.packed, self.x.t(), transpose_result=True, alg_id=self.algorithm)  # pyright: ignore[reportPrivateImportUsage]

    def store(self, y: torch.Tensor) -> None:
        self.y.copy_(y[: self.y.shape[0]])

    def check(self) -> None:
        """Raises CandidateFault."""
        got = self.call()[: self.y.shape[0]].double()
        want = self.given.double() @ two_of_four(self.weight).double().t()
        if not (error := float((got - want).norm() / want.norm().clamp_min(1e-30))) < WORST:
            raise CandidateFault(Outcome.WRONG_RESULT, f"relative error {error:.2g} against the product with its own 2:4 weight")


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """(M, K) with the two largest absolute values of each four neighbours in a row, the first where they are equal; zeros elsewhere."""
    groups = weight.reshape(weight.shape[0], -1, 4)
    kept = groups.abs().argsort(dim=2, descending=True, stable=True)[:, :, :2]
    return torch.zeros_like(groups).scatter_(2, kept, groups.gather(2, kept)).view(weight.shape)
