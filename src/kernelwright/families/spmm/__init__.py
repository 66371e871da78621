"""Products with compressed weights: see family.py."""

from kernelwright.families.spmm.family import Streams, ThreeLayer, Tiles, Unpack

__all__ = ["Streams", "ThreeLayer", "Tiles", "Unpack"]
