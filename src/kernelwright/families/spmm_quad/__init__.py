"""Products with weights in quad-bitmap records: see family.py."""

from kernelwright.families.spmm_quad.family import Streams, Tiles, Unpack

__all__ = ["Streams", "Tiles", "Unpack"]
