"""A first guess at a config's time: enough to rank tiles by shape before anything is measured. Not a claim about speed.

Time of the busiest multiprocessor = blocks it runs x time of a block, where a block is limited by its multiplications, by the
latency of memory over the steps that hide it, or by its share of L2; never less than the whole product's bytes over DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80 import space
from kernelwright.plan import cdiv
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
    start: float = 1.3e-6
    """Launch, first loads' latency, last stores."""
    latency: float = 0.6e-6
    """Loaded round trip to L2 or memory."""
    step: float = 0.03e-6
    """Barrier, wait and first fragments of one K step that nothing hides when a block has the multiprocessor to itself."""


def chip(device: DeviceFacts) -> Chip:
    """H200 for sm_90 and later (mma.sync reaches about 62 % of wgmma's 989 TFLOP/s), A100 for the others; data-sheet figures."""
    if device.sm >= 90:
        sms = device.sms if device.sms > 1 else 132
        return Chip(sms, tensor=613e12 / 132, fma=60e12 / 132, l2=10e12, dram=4.3e12)
    sms = device.sms if device.sms > 1 else 108
    return Chip(sms, tensor=280e12 / 108, fma=18e12 / 108, l2=4.5e12, dram=1.4e12)


def seconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    """Predicted device time of one run, data in DRAM."""
    chip_ = chip(device)
    m, n, k = space.shape(w)
    size = DTYPES[w.dtype]
    bm, bn, bk, split = int(c["block_m"]), int(c["block_n"]), int(c["block_k"]), int(c["split_k"])
    tiles = max(1, cdiv(m, bm) * cdiv(n, bn))
    blocks = tiles * split
    steps = cdiv(cdiv(k, bk), split)
    busiest = cdiv(blocks, chip_.sms)
    resident = min(space.blocks_per_sm(c, w, device), busiest)
    rounds = cdiv(busiest, resident) if busiest < 4 * resident else busiest / resident  # long queues even out
    step_bytes = (bm + bn) * bk * size
    multiply = resident * steps * 2.0 * bm * bn * bk / (_rate(c, w, chip_) * _occupancy(c, resident))
    # the first stages arrive during `start`; then a step's copies, issued over the step's first slices, have `slack` steps to arrive
    stages = int(c["stages"])
    slack = stages - 2 + 32 / bk if w.dtype != "fp32" else stages - 1
    load = max(0, steps - stages + 1) * chip_.latency / slack
    active = min(chip_.sms, cdiv(blocks, resident))
    share = resident * steps * step_bytes / (chip_.l2 / max(1, active))
    issue = steps * chip_.step * (0.3 if w.dtype == "fp32" else 1.0) / resident
    total = chip_.start + rounds * (max(multiply, load, share) + issue) + (rounds - 1) * 0.4e-6
    if split > 1:
        partial = tiles * bm * bn * 4.0 * split
        if c["reduction"] == "last-block":  # written by all, read and zeroed by one block in `split`
            total += 1.2e-6 + partial / chip_.l2 + split * bm * bn * 8.0 / (60e9 * 1.7) * max(1.0, tiles / chip_.sms)
        else:
            total += 2.2e-6 + 2 * partial / chip_.l2
    floor = chip_.start + float(m * k + k * n + m * n) * size / chip_.dram
    return (total**4 + floor**4) ** 0.25  # near each other, the two limits do not overlap fully


def _rate(c: Config, w: Workload, chip_: Chip) -> float:
    """FLOP/s of one multiprocessor for this tile: what shared-memory reads per multiplication leave of the peak."""
    if w.dtype == "fp32":
        tm, tn = int(c["thread_m"]), int(c["thread_n"])
        return chip_.fma * min(1.0, tm * tn / (tm + tn) / 4.0) * 0.85
    warp_m, warp_n = int(c["block_m"]) // int(c["warps_m"]), int(c["block_n"]) // int(c["warps_n"])
    # a warp reads 32 (warp_m + warp_n) bytes for 32 warp_m warp_n FLOP; shared memory gives 128 bytes a clock against about 2650 FLOP
    harmonic = warp_m * warp_n / (warp_m + warp_n)
    return chip_.tensor * min(1.0, harmonic * 128 / 2650)


def _occupancy(c: Config, resident: int) -> float:
    """Share of the four schedulers that have a warp, and how well waits of one are filled by another."""
    warps = resident * space.threads(c) / 32
    return min(1.0, warps / 4) * (0.82 if warps <= 4 else 0.92 if warps <= 8 else 0.95)
