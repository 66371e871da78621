"""GEMM for Ampere and later: see family.py."""

from kernelwright.families.gemm_sm80.family import GemmSm80

__all__ = ["GemmSm80"]
