"""Weights pruned to about half without structure, kept exactly in 1.16 bytes a weight, behind nn.Linear.

    from kernelwright import sparse
    sparse.prune_(model, "wanda", 0.5, calibration=batches)
    sparse.convert(model)                       # in place; sparse.revert(model) undoes it
    sparse.save_pretrained(model, "folder")     # a transformers model; model.state_dict() works with any

docs/sparse.md has the layouts. Packs in use (`kw.use`) may have kernels that multiply such weights as they are; without one, layers unpack
their weight and multiply densely, which saves memory and costs time.
"""

from kernelwright.sparse.checkpoint import MissingExtra, convert_checkpoint, inspect, load_file, save_file
from kernelwright.sparse.compressed import LAYOUTS, Compressed, SparseError, compress
from kernelwright.sparse.fuse import fuse, unfuse
from kernelwright.sparse.hf import from_pretrained, register, save_pretrained
from kernelwright.sparse.linear import Conversion, SparseLinear, convert, revert
from kernelwright.sparse.product import Kernel, free_scratch, kernels, linear, swiglu
from kernelwright.sparse.prune import PrunedLayer, prune_

__all__ = [
    "LAYOUTS",
    "Compressed",
    "Conversion",
    "Kernel",
    "MissingExtra",
    "PrunedLayer",
    "SparseError",
    "SparseLinear",
    "compress",
    "convert",
    "convert_checkpoint",
    "free_scratch",
    "from_pretrained",
    "fuse",
    "inspect",
    "kernels",
    "linear",
    "load_file",
    "prune_",
    "register",
    "revert",
    "save_file",
    "save_pretrained",
    "swiglu",
    "unfuse",
]
