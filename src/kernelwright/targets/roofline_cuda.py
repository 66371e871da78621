"""Limits of a GPU: what no kernel can pass (the CHEAT test), and what a large copy and a large product reach (percent of peak)."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernelwright.targets.cuda_probe import Gpu
from kernelwright.targets.target import Peaks

if TYPE_CHECKING:
    import torch

TENSOR_FLOPS = {80: 2048, 86: 1024, 87: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 110: 8192, 120: 2048, 121: 2048}
"""Dense fp16 and bf16 operations a clock and multiprocessor: NVIDIA's architecture white papers (A100: 312 TFLOP/s = 108 x 1.41 GHz x
2048; H100 SXM: 989 = 132 x 1.83 GHz x 4096). Where an accumulator type halves the rate, this is the faster one."""
FASTEST = max(TENSOR_FLOPS.values())
"""Taken for chips not in the table: a floor must not accuse the innocent."""
VECTOR_FLOPS = 256
"""128 fused multiply-adds a clock and multiprocessor in fp32 (sm_80 has half of it)."""
WARM_FACTOR = 3.0
"""L2 bandwidth over memory bandwidth: below 1.5 measured on H100 and A100, so 3 is out of reach."""


def ceilings(gpu: Gpu, *, sm_mhz: float = 0.0, memory_mhz: float = 0.0, bus_bits: int = 0) -> Peaks:
    """Physical limits at the highest clocks. The driver's own figures can be overruled by higher ones of NVML."""
    clock = gpu.sms * max(gpu.sm_mhz, sm_mhz) * 1e6
    tensor = TENSOR_FLOPS.get(gpu.sm, FASTEST) * clock
    vector = VECTOR_FLOPS * clock
    # two transfers a clock: HBM3e at 3201 MHz on 6144 bits gives the 4.9 TB/s of an H200
    bandwidth = 2 * max(gpu.memory_mhz, memory_mhz) * 1e6 * max(gpu.bus_bits, bus_bits) / 8
    return Peaks(
        flops={"fp8": 2 * tensor, "int8": 2 * tensor, "fp16": tensor, "bf16": tensor, "tf32": tensor / 2, "fp32": vector, "vector": vector},
        bandwidth_cold=bandwidth,
        bandwidth_warm=WARM_FACTOR * bandwidth,
    )


def with_measured(peaks: Peaks, gpu: Gpu, folder: Path, measure: Callable[[], tuple[float, dict[str, float]]]) -> Peaks:
    """Adds (copy bandwidth, FLOP/s by unit): from the file of this GPU and driver in `folder`, or measured now and kept there."""
    key = hashlib.sha256(repr((gpu.name, gpu.sm, gpu.driver_cuda)).encode()).hexdigest()[:12]
    file = folder / f"cuda-{key}.json"
    kept = _read(file)
    if kept is None:
        kept = measure()
        _write(file, {"gpu": gpu.name, "bandwidth": kept[0], "flops": kept[1]})
    return msgspec.structs.replace(peaks, measured_bandwidth=kept[0], measured_flops=kept[1])


def _read(file: Path) -> tuple[float, dict[str, float]] | None:
    try:
        kept = json.loads(file.read_text())
        return float(kept["bandwidth"]), {str(k): float(v) for k, v in kept["flops"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there yet, or damaged: it is measured anew


def _write(file: Path, content: dict[str, object]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".new-", delete=False) as new:
            new.write(json.dumps(content))
        os.replace(new.name, file)
    except OSError:
        return  # a read-only folder costs a measurement in each process, nothing else


def measure_on_gpu() -> tuple[float, dict[str, float]]:
    """(bytes/s of a 1 GiB copy, read plus written; FLOP/s of large products by unit) on normal random data, medians. About 0.5 s."""
    import torch

    flops = {"fp16": _product(torch.float16, 8192), "bf16": _product(torch.bfloat16, 8192), "fp32": _product(torch.float32, 4096)}
    bandwidth = _copy(min(2**30, torch.cuda.mem_get_info()[0] // 8))
    torch.cuda.empty_cache()
    return bandwidth, flops


def _copy(size: int) -> float:
    import torch

    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    return 2 * size / _median_seconds(lambda: copy.copy_(source))


def _product(dtype: torch.dtype, n: int) -> float:
    import torch

    a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
    c = torch.empty(n, n, device="cuda", dtype=dtype)
    return 2 * n**3 / _median_seconds(lambda: torch.matmul(a, b, out=c))


def _median_seconds(work: Callable[[], object], repeats: int = 10) -> float:
    import torch

    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
