"""A GEMM Candidate in the emulator: operands whose products are exact, and what C and the workspace must be afterwards."""

from __future__ import annotations

import emulate
import torch

from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Candidate, Workload


def integers(rows: int, columns: int, dtype: str, generator: torch.Generator, *, pad: int = 0, aligned: bool = True) -> torch.Tensor:
    """Small integers, exact in every type and sum; the padding of each row is NaN, which any read of it would spread. Rows are multiples
    of 16 bytes where they are `aligned` or padded."""
    row = -(-(columns + pad) // 8) * 8 if aligned or pad else columns
    stored = torch.full((rows, row), float("nan"), dtype=TORCH_DTYPES[dtype])
    stored[:, :columns] = torch.randint(-2, 3, (rows, columns), generator=generator).to(stored.dtype)
    return stored[:, :columns]


def check(
    candidate: Candidate,
    w: Workload,
    *,
    sm: int,
    inputs: int = 1,
    order: int = 1,
    repeats: int = 1,
    pad: int = 0,
    aligned: bool = True,
    sms: int = 4,
) -> emulate.Result:
    """Asserts that C is exact, its padding untouched and a zeroed workspace left zeroed. `inputs` seeds the operands, `order` the turns of
    threads and blocks, `sms` is the plan's. The candidate must have been prepared."""
    m, n, k = (w.axes[x] for x in "MNK")
    generator = torch.Generator().manual_seed(inputs)

    def stored(rows: int, columns: int) -> torch.Tensor:
        return integers(rows, columns, w.dtype, generator, pad=pad, aligned=aligned)

    a = stored(m, k) if w.layout[0] == "n" else stored(k, m)
    b = stored(k, n) if w.layout[1] == "n" else stored(n, k)
    c = stored(m, n).fill_(float("nan"))
    result = emulate.run(candidate, {"a": a, "b": b, "c": c}, w.axes, sm=sm, seed=order, repeats=repeats, sms=sms)
    expected = (a if w.layout[0] == "n" else a.t()).double() @ (b if w.layout[1] == "n" else b.t()).double()
    assert torch.equal(c, expected.to(c.dtype)), f"{int((c != expected).sum())} of {c.numel()} elements are wrong"
    if m and n and c.stride(0) > n:
        assert torch.as_strided(c, (m, c.stride(0) - n), (c.stride(0), 1), n)[:-1].isnan().all(), "padding of C was written"
    assert candidate.plan is not None
    if candidate.plan.workspace_zeroed:
        assert not result.workspace.any(), "the workspace was not left zeroed"
    return result
