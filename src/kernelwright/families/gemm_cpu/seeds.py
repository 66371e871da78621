"""First guesses for a CPU GEMM, by the class of its shape.

Ratios in comments: time of torch.mm (MKL, oneDNN) / ours on one thread of an Emerald Rapids Xeon, November 2026.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_cpu.space import along_k, illegal, space, vectors
from kernelwright.records import Workload

_BASE: Config = {
    "kernel": "fma",
    "swap": False,
    "pack_a": False,
    "pack_b": False,
    "mc": 256,
    "kc": 256,
    "nc": 4096,
    "unroll": 1,
    "prefetch": 0,
    "threads": 1,
}
_WIDTHS = {
    "avx512": {1: 8, 2: 8, 3: 6, 4: 6, 6: 4, 8: 3, 14: 2},
    "avx2": {1: 6, 2: 4, 3: 3, 4: 2, 6: 2, 12: 1},
    "portable": {1: 4, 2: 4, 3: 3, 4: 2, 6: 2, 12: 1},
}
"""Most rows of a tile to its vectors: what the registers hold."""
_SMALL_ROWS = 16
"""Fewer rows or columns than this leave most of a wide tile empty."""


def seeds(w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
    vector = vectors(device)[-1]
    choices = space(w, device)
    worth_threads = w.axes["M"] * w.axes["N"] * w.axes["K"] > 2**23  # below, about 0.1 ms, starting threads costs more
    base = {**_BASE, "vector": vector, "threads": choices["threads"][-1] if worth_threads else 1}
    found: list[Config] = []
    for guess in _guesses(w, vector, choices["kernel"]):
        config = {**base, **guess}
        for name in ("mc", "kc", "nc"):  # larger than the axis does the same as the last value of the space
            config[name] = min(config[name], choices[name][-1])
        if config not in found and illegal(config, w, device) is None:
            found.append(config)
    return tuple(found)


def _even(size: int, most: int) -> int:
    """The tile of at most `most` that cuts `size` evenly: 33 rows by 14 are 3 x 11."""
    return max(1, -(-size // max(1, -(-size // most))))


def _tile(rows: int, most: int, vector: str) -> Config:
    """At most `most` rows, evenly cut, and the vectors that the registers leave."""
    mr = _even(rows, most)
    widths = _WIDTHS[vector]
    return {"mr": mr, "nr": widths[min(limit for limit in widths if limit >= mr)]}


def _guesses(w: Workload, vector: str, kernels: tuple) -> Iterator[Config]:
    m, n, k = w.axes["M"], w.axes["N"], w.axes["K"]
    half = w.dtype != "fp32"
    stored = along_k(w)
    wide, tall = (6, 14) if vector == "avx512" else (4, 6)
    dot = {"kernel": "dot", "pack_a": not stored["a"], "pack_b": not stored["b"], "kc": 4096}
    dots = {"mr": _even(m, 4), "nr": _even(n, 6 if vector == "avx512" else 2)}
    swapped = {"swap": True, "pack_a": stored["a"], "pack_b": half}
    direct = {"pack_a": half, "pack_b": stored["b"]}  # 16-bit elements of A are widened once, by packing
    packed = {"pack_a": True, "pack_b": True}
    amx = {**packed, "kernel": "amx", "mr": 2, "nr": 2, "mc": 512, "kc": 1024}

    if m == 1:  # rows of B stream past; nn, nt: 1.04, bf16, fp16: 3
        if stored["b"]:
            yield {**dot, "mr": 1, "nr": 4, "unroll": 4}
            yield {**dot, "mr": 1, "nr": 4, "prefetch": 16}
        yield {**direct, **_tile(1, 1, vector), "kc": 32}
    elif n == 1:  # nn: 1.04
        if stored["a"]:
            yield {**dot, "mr": 4, "nr": 1, "unroll": 2}
            yield {**dot, "mr": 8, "nr": 1}
        yield {**swapped, **_tile(1, 1, vector), "kc": 32}
    elif "amx" in kernels and m * n * k > 0:  # bf16 64^3: 9, 8x512x512: 2, 128^3: 2.7, 512^3: 0.9, 1024^3: 0.87
        yield amx
        yield {**amx, "kc": 512}
    if 1 < m <= _SMALL_ROWS or 1 < n <= _SMALL_ROWS:
        if m <= n and not stored["b"]:  # 8x512x512 nn: 1.06
            yield {**direct, **_tile(m, 8, vector), "kc": 512, "prefetch": 8}
        elif n < m and not stored["a"]:  # 512x8x512 tn: 2.6
            yield {**swapped, **_tile(n, 8, vector)}
        yield {**dot, **dots}  # 8x512x512 nt: 1.2, tt: 2.3; 512x8x512 nn: 2.0, nt: 2.2; 16x1024x256 nt: 1.3
        yield {**dot, "mr": _even(m, 4), "nr": _even(n, 4 if vector == "avx512" else 2)}
    if "dpbf16" in kernels and "amx" not in kernels:
        yield {**packed, **_tile(m, tall, vector), "kernel": "dpbf16", "kc": 512}
    if m * n * k <= 2**27 and not half:  # 64^3: 1.38, 33x65x17: 1.35, 100^3: 1.10, 128^3: 1.02, 512^3: 1.01, nt 64^3: 1.3
        yield {**direct, **_tile(m, wide, vector)}
        yield {**direct, **_tile(m, 8, vector)}
    yield {**packed, **_tile(m, tall, vector)}  # 1024^3: 0.95; fp16 64^3: 5.2, 512^3: 0.91
    yield {**direct, **_tile(m, wide, vector)}
    yield {**packed, **_tile(m, 8, vector), "kc": 192}
