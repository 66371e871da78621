"""`gemm_cpu`: matrix products on CPUs, with register-blocked kernels for AVX-512, AVX2, bf16 instructions and any other CPU."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.families.gemm_cpu import render, seeds, space
from kernelwright.records import Candidate, Workload

__all__ = ["GemmCpu"]


class GemmCpu(Family):
    name = "gemm_cpu"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        return space.refuses(w, device)

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        return space.space(w, device)

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return space.illegal(config, w, device)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        return seeds.seeds(w, device)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        if reason := space.illegal(config, w, device):
            raise ValueError(f"this gemm_cpu config cannot run {w.name}: {reason}")
        return render.render(config, w, self.origin(config))
