"""The Family `gemm_sm80`: C = A B for Ampere and later, tensor cores (mma.sync) for fp16 and bf16, ordinary FMAs for fp32."""

from __future__ import annotations

from typing import ClassVar

from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.families.gemm_sm80 import model as _model
from kernelwright.families.gemm_sm80 import render as _render
from kernelwright.families.gemm_sm80 import seeds as _seeds
from kernelwright.families.gemm_sm80 import space as _space
from kernelwright.records import Candidate, Workload


class GemmSm80(Family):
    name: ClassVar[str] = "gemm_sm80"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if w.problem not in ("gemm", "linear"):
            return "it multiplies matrices only (problems `gemm` and `linear`)"
        if device.sm < 80:
            return "it needs a CUDA device of sm_80 or newer"
        if w.dtype not in ("fp16", "bf16", "fp32"):
            return f"it multiplies fp16, bf16 and fp32, not {w.dtype}"
        if w.accumulate != "fp32" and (w.dtype, w.accumulate) != ("fp16", "fp16"):
            return f"it accumulates {w.dtype} in fp32" + (" or fp16" if w.dtype == "fp16" else "") + f", not in {w.accumulate}"
        if w.layout not in ("nn", "nt", "tn", "tt"):
            return f"layout {w.layout!r} is none of nn, nt, tn, tt"
        if big := [f"{axis} = {size}" for axis, size in w.axes.items() if size >= 2**31 - 256]:
            return f"its indices along an axis have 32 bits: {', '.join(big)}"
        return None

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        return _space.space(w, device)

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return _space.illegal(config, w, device)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        return _seeds.seeds(w, device)

    def estimate(self, config: Config, w: Workload, device: DeviceFacts) -> float:
        # What confirmed on an H200 (64 to 1024) took beyond the model, which knows no overheads of real launches.
        return 1.15e6 * _model.seconds(config, w, device) + 0.5

    def from_tile(self, bm: int, bn: int, bk: int, stages: int, split_k: int, w: Workload, device: DeviceFacts) -> Config | None:
        """The nearest legal config to a tile that another heuristic proposes; None when nothing near is legal."""
        return _seeds.from_tile(bm, bn, bk, stages, split_k, w, device)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        return _render.render(config, w, device, self.origin(config))
