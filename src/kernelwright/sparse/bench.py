"""Times of the layouts and of the layer's product, beside dense: what `kernelwright sparse bench` shows.

Host times, medians of `repeats` after one call that does not count. On a GPU each call is waited for, so that launch and waiting are in
the figure: kernels are to be judged with `kernelwright bench`, not with this."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.sparse.compressed import LAYOUTS, SparseError, compress
from kernelwright.sparse.product import free_scratch, linear
from kernelwright.sparse.scores import lowest

LAYER_ROWS = (1, 16, 128)
"""Activation rows at which the layer is timed."""

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def bench_shape(rows: int, columns: int, *, sparsity: float, dtype: str, repeats: int, device: str) -> list[dict[str, Any]]:
    """One row for each layout; random weights, the smallest of each row pruned. Raises SparseError."""
    if dtype not in DTYPES:
        raise SparseError(f"dtype {dtype!r} is not timed; choose one of {', '.join(DTYPES)}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise SparseError(f"device {device!r} is not to be had here; choose cpu{', or cuda' if torch.cuda.is_available() else ''}")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator)
    weight = weight.masked_fill(lowest(weight.abs(), sparsity, "row"), 0).to(DTYPES[dtype]).to(device)
    inputs = {n: torch.randn(n, columns, generator=generator).to(weight) for n in LAYER_ROWS}
    dense = {n: _seconds(lambda x=x: torch.nn.functional.linear(x, weight), repeats) * 1e3 for n, x in inputs.items()}
    out = []
    for name in LAYOUTS:
        packed = compress(weight, name, min_sparsity=0)
        if not packed.verify(weight):
            raise AssertionError(f"{name} does not give back the weight that it was given")
        buffer = torch.empty_like(weight)
        out.append(
            {
                "weight": f"{rows}x{columns}",
                "layout": name,
                "bytes_per_weight": packed.bytes_per_weight,
                "pack_seconds": _seconds(lambda name=name: compress(weight, name, min_sparsity=0), repeats),
                "unpack_seconds": _seconds(lambda packed=packed, buffer=buffer: packed.to_dense(buffer), repeats),
                "layer_ms": {n: _seconds(lambda x=x, packed=packed: linear(x, packed), repeats) * 1e3 for n, x in inputs.items()},
                "dense_ms": dense,
            }
        )
        free_scratch()
    return out


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        _wait()
        begin = time.perf_counter()
        call()
        _wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
