"""Which configs of gemm_sm80 exist and which are legal: plain conditions, each with its reason.

Two kinds of config, by dtype: `tensor core` (fp16, bf16: kernel.cuh) and `SIMT` (fp32: simt.cuh). Both share the keys block_m, block_n,
block_k, stages, split_k, reduction, raster_group and vector_bytes.
"""

from __future__ import annotations

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.plan import cdiv
from kernelwright.records import Workload

REGISTERS_PER_SM = 65536
REGISTERS_PER_THREAD = 255
ADDRESS_REGISTERS = 40
"""What addresses, loop state and copies take beside sums and fragments (ptxas 13.0: 30 to 60 over the whole menu)."""
SMEM_PER_BLOCK = {80: 163 * 1024, 86: 99 * 1024, 87: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""CUDA programming guide, technical specifications per compute capability; for devices whose facts name no limit."""

SMEM_PER_SM = {80: 164 * 1024, 86: 100 * 1024, 87: 164 * 1024, 89: 100 * 1024, 90: 228 * 1024, 100: 228 * 1024, 120: 100 * 1024}

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def shape(w: Workload) -> tuple[int, int, int]:
    return w.axes["M"], w.axes["N"], w.axes["K"]


def smem_limit(device: DeviceFacts) -> int:
    return device.smem_per_block or SMEM_PER_BLOCK.get(device.sm, 99 * 1024)


def contiguous(w: Workload) -> tuple[int, int]:
    """Lengths of the contiguous rows of A and of B as they are stored."""
    m, n, k = shape(w)
    return (k if w.layout[0] == "n" else m), (n if w.layout[1] == "n" else k)


def widest_vector(w: Workload) -> int:
    """Largest copy, bytes, that unpadded rows of both operands divide into."""
    row_a, row_b = contiguous(w)
    if w.dtype == "fp32":  # k-contiguous operands are always copied element by element
        rows = ([] if w.layout[0] == "n" else [row_a]) + ([row_b] if w.layout[1] == "n" else [])
        return 16 if all(row % 4 == 0 for row in rows) else 4
    return next(v for v in (16, 8, 4, 2) if row_a % (v // 2) == 0 and row_b % (v // 2) == 0)


def space(w: Workload, device: DeviceFacts) -> Space:
    vector = widest_vector(w)
    common: Space = {
        "split_k": SPLITS,
        "reduction": ("last-block",) if w.epilogue else ("last-block", "second-kernel"),  # the second kernel only adds
        "raster_group": (0, 4, 8, 16),
    }
    if w.dtype == "fp32":
        return {
            "block_m": (32, 64, 128, 256),
            "block_n": (32, 64, 128, 256),
            "block_k": (8, 16, 32),
            "thread_m": (4, 8),
            "thread_n": (4, 8),
            "stages": (2, 3, 4, 5),
            "vector_bytes": tuple(v for v in (4, 16) if v <= vector),
            **common,
        }
    return {
        "block_m": (16, 32, 48, 64, 96, 128, 192, 256),
        "block_n": (16, 32, 48, 64, 96, 128, 160, 192, 256),
        "block_k": (32, 64, 128),
        "warps_m": (1, 2, 3, 4, 8),
        "warps_n": (1, 2, 3, 4, 8),
        "warps_k": (1, 2, 4),
        "stages": (2, 3, 4, 5, 6, 7, 8),
        "vector_bytes": tuple(v for v in (2, 4, 8, 16) if v <= vector),
        "tails": ("none", "chunk", "any"),
        "staged_store": (False, True) if w.axes["N"] % 8 == 0 else (False,),
        **common,
    }


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run, or None."""
    values = space(w, device)
    if missing := sorted(set(values) - set(c)):
        return f"it lacks {', '.join(missing)}"
    if unknown := sorted(set(c) - set(values)):
        return f"{', '.join(unknown)} is not a choice here"
    for key, value in c.items():
        if key not in ("vector_bytes", "tails", "staged_store") and value not in values[key]:
            return f"{key} = {value} is not among {', '.join(map(str, values[key]))}"
    _, n, k = shape(w)
    if c["raster_group"] == 0 and cdiv(n, int(c["block_n"])) > 65535:
        return f"a grid without raster order has at most 65535 tiles along N, this has {cdiv(n, int(c['block_n']))}"
    if int(c["split_k"]) > max(1, cdiv(k, int(c["block_k"]))):
        return f"K = {k} has fewer than {c['split_k']} steps of {c['block_k']}"
    reason = _illegal_simt(c, w) if w.dtype == "fp32" else _illegal_tensor_core(c, w)
    if reason:
        return reason
    used, limit = smem_bytes(c, w), smem_limit(device)
    if used > limit:
        return f"it takes {used / 1024:.0f} KB of shared memory, the device has {limit / 1024:.0f}"
    if (need := registers(c, w)) > (most := register_limit(c)):
        return f"about {need} registers a thread are needed, {threads(c)} threads leave {most}"
    return None


def _illegal_tensor_core(c: Config, w: Workload) -> str | None:
    bm, bn, bk = int(c["block_m"]), int(c["block_n"]), int(c["block_k"])
    wm, wn, wk = int(c["warps_m"]), int(c["warps_n"]), int(c["warps_k"])
    if bm % (16 * wm) or bn % (16 * wn):
        return f"a warp's tile must be a multiple of 16 x 16; {bm} x {bn} over {wm} x {wn} warps is not"
    if bk % (32 * wk):
        return f"a warp needs a multiple of two 16-wide slices a step; block_k = {bk} over {wk} warps is not"
    if threads(c) > 1024:
        return f"{threads(c)} threads; a block has at most 1024"
    for operand, row in (("A", bk if w.layout[0] == "n" else bm), ("B", bn if w.layout[1] == "n" else bk)):
        if threads(c) % (row // 8):
            return f"{threads(c)} threads do not divide into {operand}'s tile rows of {row // 8} chunks"
    vector, tails = c["vector_bytes"], c["tails"]
    if vector not in (2, 4, 8, 16):
        return f"vector_bytes = {vector} is not among 2, 4, 8, 16"
    if tails not in ("none", "chunk", "any"):
        return f"tails = {tails} is not among none, chunk, any"
    m, n, k = shape(w)
    if tails == "none" and (m % bm or n % bn or k % bk):
        return f"{m} x {n} x {k} is not a multiple of {bm} x {bn} x {bk}, so tails must be handled"
    if tails == "chunk" and any(row % (int(vector) // 2) for row in contiguous(w)):
        return f"rows of {' and '.join(map(str, contiguous(w)))} elements cut copies of {vector} bytes"
    return None


def _illegal_simt(c: Config, w: Workload) -> str | None:
    bm, bn, tm, tn = (int(c[x]) for x in ("block_m", "block_n", "thread_m", "thread_n"))
    count = threads(c)
    if count % 32 or not 32 <= count <= 1024:
        return f"{bm} x {bn} over {tm} x {tn} a thread is {count} threads; it must be a multiple of 32 up to 1024"
    if c["vector_bytes"] not in (4, 16):
        return f"vector_bytes = {c['vector_bytes']} is not among 4, 16"
    width = int(c["vector_bytes"]) // 4
    for operand, across in (
        ("A", int(c["block_k"]) if w.layout[0] == "n" else bm // width),
        ("B", bn // width if w.layout[1] == "n" else int(c["block_k"])),
    ):
        if count % across:
            return f"{count} threads do not divide into {operand}'s tile rows of {across} copies"
    return None


def threads(c: Config) -> int:
    if "thread_m" in c:
        return (int(c["block_m"]) // int(c["thread_m"])) * (int(c["block_n"]) // int(c["thread_n"]))
    return 32 * int(c["warps_m"]) * int(c["warps_n"]) * int(c["warps_k"])


def smem_bytes(c: Config, w: Workload) -> int:
    """Dynamic shared memory, as the kernels lay it out: stages, over them the epilogue's data, one word for the last-block flag."""
    bm, bn, bk, stages = (int(c[x]) for x in ("block_m", "block_n", "block_k", "stages"))
    if "thread_m" in c:
        padding = (4 if w.layout[0] == "n" else 0) + (4 if w.layout[1] == "t" else 0)
        return stages * (bm + bn + padding) * bk * 4 + 16
    epilogue = max((int(c["warps_k"]) - 1) * bm * bn * 4, bm * bn * 2 if c["staged_store"] else 0)
    return max(stages * (bm + bn) * bk * 2, epilogue) + 16


def registers(c: Config, w: Workload) -> int:
    """Estimate: sums + two buffers of fragments + addresses."""
    bm, bn = int(c["block_m"]), int(c["block_n"])
    if "thread_m" in c:
        tm, tn = int(c["thread_m"]), int(c["thread_n"])
        return tm * tn + 2 * (tm + tn) + ADDRESS_REGISTERS
    fragments_m, fragments_n = bm // int(c["warps_m"]) // 16, bn // int(c["warps_n"]) // 8
    count = fragments_m * fragments_n * 4 + 2 * (fragments_m * 4 + fragments_n * 2) + ADDRESS_REGISTERS
    # with 64 x 64 a warp, either of these spilled 4 to 16 bytes (ptxas 13.0): copies that pass through registers, and what the last
    # block's sum over parts keeps alive
    if c["vector_bytes"] == 2 or (int(c["split_k"]) > 1 and c["reduction"] == "last-block"):
        count += 24
    return count + epilogue.registers(w)


def register_limit(c: Config) -> int:
    return min(REGISTERS_PER_THREAD, REGISTERS_PER_SM // threads(c) // 8 * 8)


def blocks_per_sm(c: Config, w: Workload, device: DeviceFacts) -> int:
    """How many blocks one multiprocessor shall hold, by shared memory (1 KB per block is the system's), registers and threads. The kernel
    is compiled for it: left alone, ptxas either spills a few bytes to fit one block more or takes twice the registers it needs."""
    spare = 24  # how far ptxas went beyond the estimate where nothing bound it
    need = min(REGISTERS_PER_THREAD + 1, cdiv(registers(c, w) + spare, 8) * 8)
    by_smem = SMEM_PER_SM.get(device.sm, 100 * 1024) // (smem_bytes(c, w) + 1024)
    by_threads = (2048 if device.sm in (80, 90, 100) else 1536) // threads(c)
    return max(1, min(by_smem, by_threads, REGISTERS_PER_SM // (need * threads(c)), 16))
