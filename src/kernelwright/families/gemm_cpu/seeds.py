"""First guesses for a CPU GEMM, by the shape's class. Figures: one thread of an Emerald Rapids Xeon against MKL through
torch.mm, November 2026."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_cpu.space import LANES, along_k, illegal, space, vectors
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


def seeds(w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
    vector = vectors(device)[-1]
    choices = space(w, device)
    threads = int(choices["threads"][-1]) if 2 * w.axes["M"] * w.axes["N"] * w.axes["K"] > 2**24 else 1
    guesses = [{**_BASE, "vector": vector, "threads": threads, **guess} for guess in _guesses(w, vector, choices["kernel"])]
    for guess in guesses:
        for name in ("mc", "kc", "nc"):  # larger than the axis does the same as the last value of the space
            guess[name] = min(guess[name], choices[name][-1])
    unique = {tuple(sorted(guess.items())): guess for guess in guesses if illegal(guess, w, device) is None}
    return tuple(unique.values())


def _guesses(w: Workload, vector: str, kernels: tuple) -> list[Config]:
    m, n, k = w.axes["M"], w.axes["N"], w.axes["K"]
    wide, tall = ({"mr": 6, "nr": 4}, {"mr": 14, "nr": 2}) if vector == "avx512" else ({"mr": 4, "nr": 2}, {"mr": 6, "nr": 2})
    stored = along_k(w)
    packed = {"pack_a": True, "pack_b": True}
    dot = {"kernel": "dot", "pack_a": not stored["a"], "pack_b": not stored["b"], "kc": 4096}
    direct = {"pack_b": stored["b"]}
    swapped = {"swap": True, "pack_a": stored["a"]}
    guesses: list[Config] = []
    if m == 1 or n == 1:
        row = {"mr": 1, "nr": 8}
        streams = {"mr": 1, "nr": 4} if m == 1 else {"mr": 4, "nr": 1}
        guesses += [{**dot, **streams}, {**direct, **row, "kc": 32}, {**swapped, **row, "kc": 32}]
    elif min(m, n) < LANES[vector]:
        guesses += [{**direct, **wide, "kc": 64}] if m <= n else [{**swapped, **wide, "kc": 64}]
        guesses += [{**dot, "mr": 4, "nr": 4}, {**dot, "mr": 2, "nr": 4}]
    if m * n * k < 2**21:
        guesses += [{**direct, **wide}, {**direct, **tall}]
    if "amx" in kernels:
        guesses += [{**packed, "kernel": "amx", "mr": 2, "nr": 2, "kc": 1024}]
    if "dpbf16" in kernels:
        guesses += [{**packed, **wide, "kernel": "dpbf16", "kc": 512}]
    guesses += [{**direct, **wide}, {**packed, **wide}, {**packed, **tall}, {**dot, "mr": 4, "nr": 4}, {**packed, "mr": 4, "nr": 2}]
    return guesses
