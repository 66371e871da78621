"""Seeds from an analytical model: NVIDIA's nvMatmulHeuristics ranks tiles for a GEMM without a GPU, in 0.2 ms a query.

Its run-time estimates are ordinal at best, so only the order is used. Without the wheel (extra `cuda`) there are no such seeds.
"""

from __future__ import annotations

import atexit
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

from kernelwright.families.family import Config, DeviceFacts, Family
from kernelwright.records import Workload

# CUTLASS3 alone knows clusters and deep pipelines, GENERIC alone proposes split-K on Hopper, CUTLASS models mma.sync.
_BACKENDS = {True: ("CUTLASS3", "GENERIC", "CUTLASS"), False: ("CUTLASS", "GENERIC")}

# The library's letters for A, compute type, C: H half, T bfloat16, S single.
_PRECISIONS = {("fp16", "fp32"): "HSH", ("fp16", "fp16"): "HHH", ("bf16", "fp32"): "TST", ("fp32", "fp32"): "SSS"}

# By a part of the device's name, else by its compute capability.
_GPUS_BY_NAME = (
    ("A100", "A100_SXM_80GB"), ("A30", "A30_PCIE"), ("A10", "A10_PCIE"), ("A40", "A40_PCIE"), ("A6000", "RTX_A6000"),
    ("L40S", "L40S"), ("L40", "L40"), ("L4", "L4"), ("L20", "L20"),
    ("H200", "H200_SXM"), ("H20", "H20_SXM"), ("H100 NVL", "H100_NVL"), ("H100 PCIe", "H100_PCIE"), ("H100", "H100_SXM"),
    ("GB200", "GB200_NVL"), ("GB300", "GB300_NVL"), ("B200", "B200"),
)  # fmt: skip
_GPUS_BY_SM = {
    80: "A100_SXM_80GB",
    86: "RTX_3090",
    89: "RTX_4090",
    90: "H100_SXM",
    100: "B200",
    103: "GB300_NVL",
    120: "RTX_5090",
}


@dataclass(frozen=True)
class Tile:
    """One suggestion."""

    bm: int
    bn: int
    bk: int
    """Elements of the block's tile along M, N and K."""
    stages: int
    split_k: int
    cluster_m: int
    cluster_n: int
    """Blocks of a cluster along M and N."""


@runtime_checkable
class TakesTiles(Protocol):
    """A Family that can turn a Tile into one of its configs."""

    def from_tile(self, bm: int, bn: int, bk: int, stages: int, split_k: int, w: Workload, device: DeviceFacts) -> Config | None: ...


def available() -> bool:
    """Whether the library is installed and loads here."""
    return _library() is not None


def ranked_tiles(w: Workload, device: DeviceFacts, count: int = 8) -> list[Tile]:
    """Up to `count` tiles from each model, best first, the models in turn.

    Empty where it does not apply: another Problem, no CUDA device, a GPU or precision unknown to the library, no library.
    """
    library, gpu = _library(), _gpu(device)
    precision = _PRECISIONS.get((w.dtype, w.accumulate))
    if w.problem not in ("gemm", "linear") or library is None or gpu is None or precision is None or not all(w.axes.values()):
        return []
    rankings = []
    for backend in _BACKENDS[device.sm >= 90]:
        model = _model(backend, gpu)
        layout = library.NvMatmulHeuristicsMatmulLayout[f"{w.layout.upper()}_ROW_MAJOR"]
        problem = model.makeNvMatmulHeuristicsProblem(w.axes["M"], w.axes["N"], w.axes["K"], layout, 1)
        found = sorted(model.get(problem, count, precision=precision), key=lambda entry: entry["runtime"])
        rankings.append([_tile(entry["kernel"]) for entry in found])
    return list(dict.fromkeys(tile for rank in zip_longest(*rankings) for tile in rank if tile is not None))


def tile_configs(family: Family, w: Workload, device: DeviceFacts) -> list[Config]:
    """Configs of a Family from the ranked tiles, best first, each once; empty if the Family does not take tiles."""
    if not isinstance(family, TakesTiles):
        return []
    found = [family.from_tile(t.bm, t.bn, t.bk, t.stages, t.split_k, w, device) for t in ranked_tiles(w, device)]
    configs = [c for c in found if c is not None]
    return list({tuple(sorted(c.items())): c for c in configs}.values())


@cache
def _library() -> Any:
    if find_spec("nvMatmulHeuristics") is None:
        return None
    import nvMatmulHeuristics

    try:
        nvMatmulHeuristics.NvMatmulHeuristicsInterface()
    except (OSError, AssertionError):  # its shared object does not load here, or is of another version than its Python part
        return None
    atexit.register(_model.cache_clear)  # left to the interpreter's end, its destructors print tracebacks
    return nvMatmulHeuristics


@cache
def _model(backend: str, gpu: str) -> Any:
    library = _library()
    return library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget[backend],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )


def _gpu(device: DeviceFacts) -> str | None:
    if not device.sm:
        return None
    words = device.name.upper()
    return next((gpu for part, gpu in _GPUS_BY_NAME if part.upper() in words), _GPUS_BY_SM.get(device.sm))


def _tile(kernel: Any) -> Tile:
    return Tile(
        bm=kernel.cta_tile_m,
        bn=kernel.cta_tile_n,
        bk=kernel.cta_tile_k,
        stages=kernel.stages,
        split_k=kernel.split_k,
        cluster_m=kernel.cluster_m,
        cluster_n=kernel.cluster_n,
    )
