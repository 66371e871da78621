"""Products that cuBLASLt does, prepared for the launcher: PyTorch reaches the same library in 11.1 us of an H200's host, this way takes 8.3
(results/h200/runtime), so that what we have no faster kernel for costs less too.

The algorithm is the first of the library's heuristic. Slices of K are added in fp32, as our kernels do it, whatever
`torch.backends.cuda.matmul` allows.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from torch import Tensor

from kernelwright.problems.problem import DTYPE_NAMES
from kernelwright.runtime.launcher.matrix import alignment, stored
from kernelwright.targets.cublaslt import COMPUTE_32F, DATA_TYPE, EPILOGUE_BIAS, OP_N, OP_T, ColumnMajor, Product

ROOM = 32 * 2**20
"""Bytes of workspace that an algorithm may ask for: what PyTorch gives cuBLAS on Hopper."""
VENDOR = struct.Struct("<15Q")
"""registered.h: Vendor."""


@dataclass(frozen=True)
class Prepared:
    words: bytes
    """Vendor."""
    workspace: int
    """Bytes."""
    product: Product
    """Owns the descriptors whose addresses are in `words`."""


def prepare(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None) -> Prepared:
    """out = a @ b (+ bias), matrices of one dtype.

    Raises ValueError for tensors that are no such product, CandidateFault where the library has no algorithm, TargetUnavailable where there
    is no library."""
    (m, k), n = a.shape, b.shape[1]
    if not m * n * k or (dtype := DTYPE_NAMES.get(a.dtype, "")) not in DATA_TYPE:
        raise ValueError("an empty product, or of a type that cuBLASLt is not asked for here")
    (left, ld_a), (right, ld_b), (written, ld_out) = (_stored(t) for t in (a, b, out))
    if written != "n":
        raise ValueError("the rows of the output must be contiguous")
    g = ColumnMajor(
        m=n,
        n=m,
        k=k,
        op_first=OP_N if right == "n" else OP_T,
        op_second=OP_N if left == "n" else OP_T,
        ld_first=ld_b,
        ld_second=ld_a,
        ld_out=ld_out,
        data_type=DATA_TYPE[dtype],
        compute=COMPUTE_32F,
        scale_type=DATA_TYPE["fp32"],
    )
    # a bias is read as the output is written, so it must be aligned as well
    alignments = alignment(b), alignment(a), alignment(out) if bias is None else min(alignment(out), alignment(bias))
    product = Product(g, alignments, ROOM, steps=EPILOGUE_BIAS if bias is not None else 0, device=a.device.index or 0)
    result = product.algorithms(1)[0]
    lib = product.lib
    functions = _address(lib.cublasLtMatmul), 0 if bias is None else _address(lib.cublasLtMatmulDescSetAttribute)
    owned = (h.value for h in (product.handle, product.desc, product.first, product.second, product.out))
    return Prepared(VENDOR.pack(*functions, *owned, *result.algo.data), result.workspace_size, product)


def _stored(t: Tensor) -> tuple[str, int]:
    """`stored`, with the leading dimension that BLAS asks of a single row as well."""
    order, ld = stored(t)
    return order, max(ld, t.shape[1 if order == "n" else 0])


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # pyright: ignore[reportArgumentType]
