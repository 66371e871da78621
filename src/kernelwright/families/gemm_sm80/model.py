"""A first guess at a config's time: enough to rank tiles by shape before anything is measured. Not a claim about speed.

Time of the busiest multiprocessor = blocks it runs x time of a block, where a block is limited by its multiplications, by the bytes it
has in flight over the latency of memory (Little's law), or by its share of L2; never less than the whole product's bytes over DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80 import space
from kernelwright.records import DTYPES, Workload


@dataclass(frozen=True)
class Chip:
    """Rates per multiprocessor and second, latencies in seconds."""

    sms: int
    tensor: float
    """16-bit multiply-add FLOP/s through mma.sync."""
    fma: float
    """fp32 FLOP/s."""
    l2: float
    """Bytes/s from L2 for the whole chip."""
    dram: float
    smem_per_sm: int
    start: float = 1.3e-6
    """Launch, first loads' latency, last stores."""
    latency: float = 0.7e-6
    """Loaded round trip to L2 or memory."""
    step: float = 0.06e-6
    """Barrier, wait and first fragments of one K step that nothing hides when a block has the multiprocessor to itself."""


def chip(device: DeviceFacts) -> Chip:
    """H200 for sm_90 and later (mma.sync reaches about 62 % of wgmma's 989 TFLOP/s), A100 for the others; data-sheet figures."""
    if device.sm >= 90:
        sms = device.sms if device.sms > 1 else 132
        return Chip(sms, tensor=613e12 / 132, fma=60e12 / 132, l2=5.5e12, dram=4.3e12, smem_per_sm=228 * 1024)
    sms = device.sms if device.sms > 1 else 108
    return Chip(sms, tensor=280e12 / 108, fma=18e12 / 108, l2=4.0e12, dram=1.4e12, smem_per_sm=164 * 1024)


def blocks_per_sm(c: Config, w: Workload, device: DeviceFacts) -> int:
    """How many blocks one multiprocessor holds, by shared memory (1 KB of it is the system's, per block), registers and threads."""
    registers = -(-space.registers(c, w) // 8) * 8 * space.threads(c)
    return max(
        1,
        min(
            chip(device).smem_per_sm // (space.smem_bytes(c, w) + 1024),
            space.REGISTERS_PER_SM // registers,
            2048 // space.threads(c),
            32,
        ),
    )


def seconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    """Predicted device time of one run, data in DRAM."""
    chip_ = chip(device)
    m, n, k = space.shape(w)
    size = DTYPES[w.dtype]
    bm, bn, bk, split = int(c["block_m"]), int(c["block_n"]), int(c["block_k"]), int(c["split_k"])
    tiles = max(1, -(-m // bm) * -(-n // bn))
    blocks = tiles * split
    steps = -(-(-(-k // bk)) // split)
    resident = min(blocks_per_sm(c, w, device), -(-blocks // chip_.sms))
    rounds = -(-blocks // chip_.sms) / resident  # how often a multiprocessor fills up
    if rounds > 1:
        rounds = -(-blocks // (chip_.sms * resident)) if rounds < 4 else rounds
    step_bytes = (bm + bn) * bk * size
    multiply = resident * steps * 2.0 * bm * bn * bk / (_rate(c, w, chip_) * _occupancy(c, resident))
    in_flight = resident * (min(int(c["stages"]), steps + 1) - 1) * step_bytes
    load = resident * steps * step_bytes / (max(in_flight, 1) / chip_.latency)
    active = min(chip_.sms, -(-blocks // resident))
    share = resident * steps * step_bytes / (chip_.l2 / max(1, active))
    issue = steps * chip_.step / resident if w.dtype != "fp32" else steps * 0.3 * chip_.step / resident
    one_round = max(multiply, load, share) + issue
    total = chip_.start + rounds * one_round + rounds * 0.15e-6
    if split > 1:
        partial = tiles * bm * bn * 4.0 * split
        if c["reduction"] == "last-block":  # written by all, read and zeroed by one block in `split`
            total += 1.2e-6 + partial / chip_.l2 + split * bm * bn * 8.0 / (60e9 * 1.7) * max(1.0, tiles / chip_.sms)
        else:
            total += 2.2e-6 + 2 * partial / chip_.l2
    if c["pdl"]:
        total -= 0.3e-6
    return max(total, chip_.start + float(m * k + k * n + m * n) * size / chip_.dram)


def _rate(c: Config, w: Workload, chip_: Chip) -> float:
    """FLOP/s of one multiprocessor for this tile: what shared-memory reads per multiplication leave of the peak."""
    if w.dtype == "fp32":
        tm, tn = int(c["thread_m"]), int(c["thread_n"])
        return chip_.fma * min(1.0, tm * tn / (tm + tn) / 4.0) * 0.85
    warp_m, warp_n = int(c["block_m"]) // int(c["warps_m"]), int(c["block_n"]) // int(c["warps_n"])
    # a warp reads (warp_m + warp_n) x 16 elements for warp_m x warp_n x 16 multiplications; 64 x 64 keeps the tensor cores busy
    harmonic = warp_m * warp_n / (warp_m + warp_n)
    return chip_.tensor * min(1.0, harmonic / 30.0)


def _occupancy(c: Config, resident: int) -> float:
    """Share of the four schedulers that have a warp, and how well waits of one are filled by another."""
    warps = resident * space.threads(c) / 32
    return min(1.0, warps / 4) * (0.82 if warps <= 4 else 0.92 if warps <= 8 else 0.95)
