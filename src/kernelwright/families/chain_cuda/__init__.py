"""Fused CUDA kernels for element-wise chains, row reductions and running sums."""

from kernelwright.families.chain_cuda.space import ChainCuda

__all__ = ["ChainCuda"]
