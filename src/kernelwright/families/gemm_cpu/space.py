"""The choices of a CPU GEMM kernel, and which of them are legal.

Choice     Meaning
kernel     `fma`: vectors along N, one element of A broadcast; `dot`: vectors along K, summed across lanes at the end (GEMV and
           skinny `nt` products); `dpbf16`: bf16 pairs by AVX512-BF16; `amx`: bf16 tiles by AMX
vector     `avx512`, `avx2`, or `portable` (the compiler's 16-byte vectors)
swap       compute C^T = B^T A^T instead: rows and columns change places
pack_a     copy A's blocks into dense fp32 panels; without either packing the kernel is the `direct` scheme for small products
pack_b     the same for B
mr, nr     accumulators: mr rows x nr vectors (fma, dpbf16), nr columns (dot), 16 x 16 tiles (amx)
mc, kc, nc blocks of rows, of K and of columns; a small kc streams whole rows of B past a small M
unroll     steps of K in one loop iteration
prefetch   steps of K that the right operand is prefetched ahead
threads    slabs of C computed at once
"""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.records import Workload

LANES = {"avx512": 16, "avx2": 8, "portable": 4}
REGISTERS = {"avx512": 32, "avx2": 16, "portable": 16}
_NEEDS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "bmi2"},
    "avx2": {"avx2", "fma", "f16c"},
    "portable": set(),
    "dpbf16": {"avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16"},
}
_LARGEST_BODY = 96
"""Multiply-adds in an unrolled loop body; above it compilation passes 3 s and nothing was gained (Xeon, Emerald Rapids)."""


def vectors(device: DeviceFacts) -> tuple[str, ...]:
    """Instruction sets the device has, narrowest first; the portable one only where there is no other."""
    found = tuple(v for v in ("avx2", "avx512") if device.isa >= _NEEDS[v])
    return found or ("portable",)


def _covering(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The values up to the first that covers `size`: larger ones do the same."""
    return tuple(v for i, v in enumerate(values) if i == 0 or values[i - 1] < size)


def space(w: Workload, device: DeviceFacts) -> Space:
    m, n, k = w.axes["M"], w.axes["N"], w.axes["K"]
    kernels = ["dot", "fma"]
    if w.dtype == "bf16" and "avx512" in vectors(device):
        kernels += [name for name in ("dpbf16", "amx") if device.isa >= _NEEDS[name]]
    threads = tuple(t for t in (1, 2, 4, 8, 16, 32, 64) if t <= max(1, device.threads))
    return {
        "kernel": tuple(kernels),
        "vector": vectors(device),
        "swap": (False, True),
        "pack_a": (False, True),
        "pack_b": (False, True),
        "mr": tuple(range(1, 15)),
        "nr": (1, 2, 3, 4, 5, 6, 8),
        "mc": _covering((32, 64, 128, 256, 512, 1024), max(m, n)),
        "kc": _covering((8, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096), k),
        "nc": _covering((64, 256, 1024, 4096), max(m, n)),
        "unroll": (1, 2, 4),
        "prefetch": (0, 4, 8, 16),
        "threads": threads,
    }


def refuses(w: Workload, device: DeviceFacts) -> str | None:
    if device.target != "cpu":
        return "it writes C++ for CPUs"
    if w.problem == "linear":
        return "it writes plain products, without an epilogue (problem `gemm`)"
    if w.problem != "gemm":
        return "it writes matrix products"
    if w.layout not in ("nn", "nt", "tn", "tt"):
        return f"it knows the layouts nn, nt, tn and tt, not {w.layout!r}"
    if w.dtype not in ("fp32", "bf16", "fp16"):
        return f"it has no {w.dtype} kernels"
    if w.accumulate != "fp32":
        return f"it accumulates in fp32, not {w.accumulate}"
    return None


def illegal(config: Config, w: Workload, device: DeviceFacts) -> str | None:
    c = {name: int(value) for name, value in config.items() if not isinstance(value, str)}
    kernel, vector = str(config["kernel"]), str(config["vector"])
    for name in (kernel, vector):
        if missing := _NEEDS.get(name, set()) - device.isa:
            return f"{name} needs {', '.join(sorted(missing))}, which this CPU lacks"
    if c["threads"] > max(1, device.threads):
        return f"{c['threads']} threads, and the device allows {device.threads}"
    if small := [name for name in ("mr", "nr", "mc", "kc", "nc", "unroll", "threads") if c[name] < 1]:
        return f"{small[0]} = {c[small[0]]} must be at least 1"
    if kernel in ("dpbf16", "amx"):
        return _illegal_bf16(config, w) or _illegal_buffers(c, w, device)
    return _illegal_layout(config, w) or _illegal_registers(c, vector) or _illegal_buffers(c, w, device)


def along_k(w: Workload) -> dict[str, bool]:
    """Whether A and B are stored with K contiguous."""
    return {"a": w.layout[0] == "n", "b": w.layout[1] == "t"}


def _illegal_layout(config: Config, w: Workload) -> str | None:
    stored = along_k(w)
    if config["kernel"] == "dot":
        for name in ("a", "b"):
            if not stored[name] and not config[f"pack_{name}"]:
                return f"dot reads both operands along K, and {name.upper()} is stored across it: pack_{name} must be on"
    else:
        right = "a" if config["swap"] else "b"
        if stored[right] and not config[f"pack_{right}"]:
            return f"fma reads vectors across K, and {right.upper()} is stored along it: pack_{right} must be on"
    return None


def _illegal_registers(c: dict[str, int], vector: str) -> str | None:
    used = c["mr"] * c["nr"] + c["nr"] + 1
    if used > REGISTERS[vector]:
        return f"{c['mr']} x {c['nr']} accumulators and {c['nr'] + 1} operands need {used} registers, {vector} has {REGISTERS[vector]}"
    if (body := c["mr"] * c["nr"] * c["unroll"]) > _LARGEST_BODY and c["unroll"] > 1:
        return f"unroll {c['unroll']} of a {c['mr']} x {c['nr']} tile makes a loop of {body} multiply-adds, at most {_LARGEST_BODY} pay"
    return None


def _illegal_bf16(config: Config, w: Workload) -> str | None:
    kernel = config["kernel"]
    if w.dtype != "bf16":
        return f"{kernel} multiplies bf16, and this workload is {w.dtype}"
    if config["vector"] != "avx512":
        return f"{kernel} comes with AVX-512: vector must be avx512"
    if not (config["pack_a"] and config["pack_b"]):
        return f"{kernel} multiplies pairs of K, which packing lays side by side: pack_a and pack_b must be on"
    if kernel == "amx":
        for name, only in (("mr", 2), ("nr", 2), ("unroll", 1), ("prefetch", 0)):
            if config[name] != only:
                return f"amx keeps 2 x 2 tiles and has no inner vectors to unroll or prefetch: {name} must be {only}"
        return None
    return _illegal_registers({name: int(v) for name, v in config.items() if not isinstance(v, str)}, "avx512")


def _illegal_buffers(c: dict[str, int], w: Workload, device: DeviceFacts) -> str | None:
    m, k = w.axes["N" if c["swap"] else "M"], w.axes["K"]
    left_packed = c["pack_b"] if c["swap"] else c["pack_a"]
    held = 4 * min(c["mc"], m) * min(c["kc"], k)
    if left_packed and device.l2_bytes and held > device.l2_bytes:
        return f"an mc x kc block of {held >> 10} KB does not stay in the L2 of {device.l2_bytes >> 10} KB"
    return None
