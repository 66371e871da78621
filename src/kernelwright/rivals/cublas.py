"""cuBLAS as a rival: cublasGemmEx, its own choice of algorithm, the accumulator type that the Workload names.

PyTorch reaches the same library, but hides the compute type; here it is explicit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from kernelwright.records import Outcome, Workload
from kernelwright.targets.cublaslt import COMPUTE_16F, COMPUTE_32F, DATA_TYPE, OP_N, OP_T, ColumnMajor, require
from kernelwright.targets.cuda_libraries import load as load_library
from kernelwright.targets.target import Bound, CandidateFault, Run

WORKSPACE_BYTES = 256 * 2**20
"""Of cuBLAS and cuBLASLt alike. PyTorch gives 32 MiB on Hopper; more lets split-K algorithms through."""

_GEMM_DEFAULT = -1
_DEFAULT_MATH, _DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16


def column_major(w: Workload, one: Bound) -> ColumnMajor:
    """Raises CandidateFault(REFUSED) for types that the library does not have."""
    if w.dtype not in DATA_TYPE:
        raise CandidateFault(Outcome.REFUSED, f"cuBLAS has no product of {w.dtype} here")
    if w.accumulate not in ("fp32", "fp16") or (w.accumulate == "fp16" and w.dtype != "fp16"):
        raise CandidateFault(Outcome.REFUSED, f"cuBLAS has no {w.dtype} product that accumulates in {w.accumulate}")
    names = one.names
    # compute type 16F takes scalars of type 16F, 32F scalars of type 32F: mixing them is refused, or silently slow
    half = w.accumulate == "fp16"
    return ColumnMajor(
        m=names["N"],
        n=names["M"],
        k=names["K"],
        op_first=OP_N if w.layout[1] == "n" else OP_T,
        op_second=OP_N if w.layout[0] == "n" else OP_T,
        ld_first=max(1, names["ld_b"]),
        ld_second=max(1, names["ld_a"]),
        ld_out=max(1, names["ld_c"]),
        data_type=DATA_TYPE[w.dtype],
        compute=COMPUTE_16F if half else COMPUTE_32F,
        scale_type=DATA_TYPE["fp16" if half else "fp32"],
    )


def scalars(g: ColumnMajor) -> tuple[Any, Any]:
    """alpha = 1 and beta = 0 in the scale type."""
    if g.compute == COMPUTE_16F:
        return ctypes.c_uint16(0x3C00), ctypes.c_uint16(0)
    return ctypes.c_float(1.0), ctypes.c_float(0.0)


def exact_reduction(w: Workload) -> bool:
    """Whether split-K slices must be added in a wider type than the output's, to match the accumulator that the Workload names."""
    return w.accumulate == "fp32" and w.dtype != "fp32"


@cache
def workspace() -> torch.Tensor:
    """One for the process: everything is on one stream."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


class _Handle:
    """cuBLAS's handle with our workspace; re-bound only when the stream changes."""

    def __init__(self) -> None:
        self.lib = load_library("cublas")
        handle = ctypes.c_void_p()
        require(self.lib.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
        self.handle = handle
        self._stream = -1
        self._math = _DEFAULT_MATH
        size_t, pointer, integer = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        self.lib.cublasSetStream_v2.argtypes = [pointer, pointer]
        self.lib.cublasSetWorkspace_v2.argtypes = [pointer, pointer, size_t]
        self.lib.cublasSetMathMode.argtypes = [pointer, integer]
        ints, matrix = [integer] * 3, [pointer, integer, integer]
        self.lib.cublasGemmEx.argtypes = [pointer, integer, integer, *ints, pointer, *matrix, *matrix, pointer, *matrix] + [integer] * 2

    def bind(self, math: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        if stream != self._stream:
            require(self.lib.cublasSetStream_v2(self.handle, stream), "cublasSetStream")
            # a change of stream takes the workspace away again
            space = workspace()
            require(self.lib.cublasSetWorkspace_v2(self.handle, space.data_ptr(), space.numel()), "cublasSetWorkspace")
            self._stream = stream
        if math != self._math:
            require(self.lib.cublasSetMathMode(self.handle, math), "cublasSetMathMode")
            self._math = math


@cache
def _handle() -> _Handle:
    return _Handle()


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """`cublas`. Enqueues on PyTorch's current stream, allocates nothing. Raises CandidateFault."""
    if name != "cublas":
        raise ValueError(f"unknown rival {name!r}")
    workspace()
    return [Run(call=_gemm(w, one), store=lambda _: None) for one in sets], None


def _gemm(w: Workload, one: Bound) -> Callable[[], Any]:
    g, handle = column_major(w, one), _handle()
    alpha, beta = scalars(g)
    math = _DISALLOW_REDUCED_PRECISION_REDUCTION if exact_reduction(w) else _DEFAULT_MATH
    tensors = one.tensors
    gemm, data = handle.lib.cublasGemmEx, g.data_type
    arguments = (
        handle.handle,
        g.op_first,
        g.op_second,
        g.m,
        g.n,
        g.k,
        ctypes.addressof(alpha),
        tensors["b"].data_ptr(),
        data,
        g.ld_first,
        tensors["a"].data_ptr(),
        data,
        g.ld_second,
        ctypes.addressof(beta),
        tensors["c"].data_ptr(),
        data,
        g.ld_out,
        g.compute,
        _GEMM_DEFAULT,
    )
    if g.empty:
        return lambda: None
    if g.k == 0:
        return tensors["c"].zero_

    def run(keep: object = (alpha, beta, tensors)) -> None:
        handle.bind(math)
        if status := gemm(*arguments):
            require(status, "cublasGemmEx")

    return run
