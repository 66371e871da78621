"""Fused, vectorised C++ for element-wise, row-reduction and row-scan programs on the CPU."""

from __future__ import annotations

from kernelwright.families.chain_cpu.family import ChainCpu

__all__ = ["ChainCpu"]
