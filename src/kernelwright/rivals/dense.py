"""Dense rivals of `spmm`: the same layer with its weight as a plain matrix.

NAME           the product Y = X W^T by one of cuBLAS's or cuBLASLt's rivals, no epilogue
NAME-swapped   the operands the other way round, Y^T = W X^T: the long side is then the one that the library tiles first, and Y comes out
               transposed, which a model that keeps it so pays nothing for
NAME-nn        with a copy of W that is stored K x M
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernelwright.records import Outcome, Workload
from kernelwright.rivals import cublas, cublaslt, stored
from kernelwright.targets.target import Bound, CandidateFault, Run

SWAPPED, TRANSPOSED = "-swapped", "-nn"
ROLES = {"a": "x", "b": "w", "c": "y"}


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """Raises CandidateFault."""
    if w.epilogue:
        raise CandidateFault(Outcome.REFUSED, f"it does the product alone, without {w.epilogue}")
    vendor, swapped = name.removesuffix(SWAPPED), name.endswith(SWAPPED)
    transposed = vendor.endswith(TRANSPOSED)
    n, m, k = (w.axes[x] for x in "NMK")
    axes = {"M": m, "N": n, "K": k} if swapped else {"M": n, "N": m, "K": k}
    gemm = Workload(problem="gemm", axes=axes, dtype=w.dtype, layout="nt")
    bounds = [_bound(one, axes, swapped) for one in sets]
    runs, setup = (stored if transposed else cublas if vendor == "cublas" else cublaslt).load(vendor, gemm, bounds)
    if not swapped:
        return runs, setup
    outs = [(one.tensors["y"], bound.tensors["c"]) for one, bound in zip(sets, bounds, strict=True)]

    def run(call: Callable[[], object], y: torch.Tensor, out: torch.Tensor) -> Run:
        def store(_: object) -> None:
            y.copy_(out.t())

        return Run(call=call, store=store)

    return [run(r.call, *out) for r, out in zip(runs, outs, strict=True)], setup


def _bound(one: Bound, axes: dict[str, int], swapped: bool) -> Bound:
    roles = {"a": "w", "b": "x", "c": "y"} if swapped else ROLES
    tensors = {mine: one.tensors[theirs] for mine, theirs in roles.items()}
    names = {**axes, "sms": one.names["sms"]}
    for mine, theirs in roles.items():
        names |= {f"{what}_{mine}": one.names[f"{what}_{theirs}"] for what in ("ld", "numel", "align")}
    if swapped:
        y = one.tensors["y"]
        tensors["c"] = torch.empty(y.shape[1], y.shape[0], dtype=y.dtype, device=y.device)
        names |= {"ld_c": y.shape[0], "align_c": 256}
    return Bound(tensors=tensors, names=names)
