"""A vendor's product with the operands stored otherwise than the Workload has them: `cublas-nt` beside a Workload of layout nn.

Whoever may choose how weights are stored compares with the faster of the two. The other storage is made before each sample, outside the
clock. `nt` is what BLAS calls TN: both operands K contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.records import Workload
from kernelwright.rivals import cublas, cublaslt
from kernelwright.targets.target import Bound, Run


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """`VENDOR-LAYOUT`, where VENDOR is cublas or one of cuBLASLt's rivals. Takes memory for a second copy of the operands."""
    vendor, _, layout = name.rpartition("-")
    other = w.replace(layout=layout)
    copies = [_stored(w, other, one) for one in sets]
    runs, setup = (cublas if vendor == "cublas" else cublaslt).load(vendor, other, [copy for copy, _ in copies])
    return [Run(call=run.call, store=run.store, prepare=convert) for run, (_, convert) in zip(runs, copies, strict=True)], setup


def _stored(w: Workload, other: Workload, one: Bound) -> tuple[Bound, Callable[[], Any]]:
    """The set with operands in the other layout, and what copies them there."""
    tensors, names, moves = dict(one.tensors), dict(one.names), []
    for name, mine, theirs in zip("ab", w.layout, other.layout, strict=True):
        if mine == theirs:
            continue
        source = one.tensors[name].t()
        copy = torch.empty(source.shape, dtype=source.dtype, device=source.device)
        tensors[name] = copy
        names |= {f"ld_{name}": copy.shape[1], f"align_{name}": 256}
        moves.append((copy, source))

    def convert() -> None:
        for copy, source in moves:
            copy.copy_(source)

    return Bound(tensors=tensors, names=names), convert
