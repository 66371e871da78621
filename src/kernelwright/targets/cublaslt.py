"""cuBLASLt's C API: descriptors of a product and the algorithms that the library lists for it, for rivals and for serving.

A binding of our own, a few functions through ctypes: nvmath-python would do the same, but hides which algorithms were timed and how. The
constants are those of cublasLt.h, library_types.h and cublas_api.h. A row-major product C = A B is the column-major product C' = B' A', so
the operands change places and nothing is copied.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kernelwright.records import Outcome
from kernelwright.targets.cuda_libraries import load as load_library
from kernelwright.targets.target import CandidateFault

DATA_TYPE = {"fp32": 0, "fp16": 2, "bf16": 14}
COMPUTE_16F, COMPUTE_32F = 64, 68
OP_N, OP_T = 0, 1
EPILOGUE_BIAS, EPILOGUE_GELU = 4, 32
"""Bits: 36 is gelu after bias. Its gelu is the tanh approximation; its bias is added along the rows of a column-major
result, which are the columns of ours."""
REDUCTION_COMPUTE_TYPE, REDUCTION_ANY = 2, 7
"""Masks of the ways in which slices of K may be added: in the accumulator's type, in any."""
DESC_BIAS = 8
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE = 3, 4, 7
_PREF_SEARCH_MODE, _PREF_MAX_WORKSPACE, _PREF_REDUCTION_MASK, _PREF_ALIGNMENT = 0, 1, 3, (5, 6, 7, 8)
_SEARCH_LIMITED_BY_ALGO_ID = 1
_STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR"}
_STATUS |= {15: "NOT_SUPPORTED"}


def require(status: int, what: str) -> None:
    """Raises CandidateFault(LAUNCH_ERROR) for a status other than success."""
    if status:
        raise CandidateFault(Outcome.LAUNCH_ERROR, f"{what}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


@dataclass(frozen=True)
class ColumnMajor:
    """The product as BLAS sees it: (m x n) = op(first) (m x k) times op(second) (k x n); `first` is our B, `second` our A."""

    m: int
    n: int
    k: int
    op_first: int
    op_second: int
    ld_first: int
    ld_second: int
    ld_out: int
    data_type: int
    compute: int
    scale_type: int

    @property
    def empty(self) -> bool:
        return self.m == 0 or self.n == 0

    def stored_first(self) -> tuple[int, int]:
        """Rows and columns of `first` as column-major storage."""
        return (self.m, self.k) if self.op_first == OP_N else (self.k, self.m)

    def stored_second(self) -> tuple[int, int]:
        return (self.k, self.n) if self.op_second == OP_N else (self.n, self.k)


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: which kernel, and its settings; private to the library but for its attributes."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algo", Algo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@cache
def library(device: int = 0) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library with its signatures, and a handle, which is of the GPU that is current when it is made: call it for each with that one
    current. Raises TargetUnavailable, CandidateFault."""
    lib = load_library("cublasLt")
    pointer, integer, size_t = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    lib.cublasLtMatmulDescCreate.argtypes = [pointer, integer, integer]
    lib.cublasLtMatmulDescSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    lib.cublasLtMatrixLayoutCreate.argtypes = [pointer, integer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64]
    lib.cublasLtMatmulPreferenceCreate.argtypes = [pointer]
    lib.cublasLtMatmulPreferenceSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    lib.cublasLtMatmulAlgoGetHeuristic.argtypes = [*[pointer] * 7, integer, pointer, pointer]
    lib.cublasLtMatmul.argtypes = [*[pointer] * 12, pointer, pointer, size_t, pointer]
    lib.cublasLtMatmulAlgoGetIds.argtypes = [pointer, *[integer] * 7, pointer, pointer]
    lib.cublasLtMatmulAlgoInit.argtypes = [pointer, *[integer] * 7, pointer]
    lib.cublasLtMatmulAlgoCheck.argtypes = [pointer] * 8
    lib.cublasLtMatmulAlgoConfigSetAttribute.argtypes = [pointer, integer, pointer, size_t]
    for get in (lib.cublasLtMatmulAlgoCapGetAttribute, lib.cublasLtMatmulAlgoConfigGetAttribute):
        get.argtypes = [pointer, integer, pointer, size_t, pointer]
    for destroy in (lib.cublasLtMatmulDescDestroy, lib.cublasLtMatrixLayoutDestroy, lib.cublasLtMatmulPreferenceDestroy):
        destroy.argtypes = [pointer]
    handle = ctypes.c_void_p()
    require(lib.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
    return lib, handle


class Product:
    """Descriptors of one product; freed with the object."""

    def __init__(
        self,
        g: ColumnMajor,
        alignments: tuple[int, int, int],
        room: int,
        *,
        reductions: int = REDUCTION_COMPUTE_TYPE,
        steps: int = 0,
        ld_added: int | None = None,
        device: int = 0,
    ):
        """`alignments`: of first, second and out (and the addend), bytes. `room`: most bytes of workspace. `steps`: bits of the epilogue;
        the address of a bias is an attribute of the description, DESC_BIAS. `ld_added`: where C is not the output itself."""
        self._made: list[tuple[Any, ctypes.c_void_p]] = []
        self.lib, self.handle = library(device)
        self.g, self.alignments, self.room, self.reductions, self._steps = g, alignments, room, reductions, steps
        self.desc = self.description()
        self.first = self._layout(*g.stored_first(), g.ld_first)
        self.second = self._layout(*g.stored_second(), g.ld_second)
        self.out = self._layout(g.m, g.n, g.ld_out)
        self.added = self.out if ld_added is None else self._layout(g.m, g.n, ld_added)
        self.layouts = (self.first, self.second, self.added, self.out)

    def description(self, bias: int | None = None) -> ctypes.c_void_p:
        """What is done; the address of a bias is a part of it."""
        lib, g = self.lib, self.g
        desc = self._new(lib.cublasLtMatmulDescCreate, lib.cublasLtMatmulDescDestroy, g.compute, g.scale_type)
        set_one = partial(self._set, lib.cublasLtMatmulDescSetAttribute, desc)
        for attribute, op in ((_DESC_TRANSA, g.op_first), (_DESC_TRANSB, g.op_second)):
            set_one(attribute, ctypes.c_int32(op))
        if self._steps:
            set_one(_DESC_EPILOGUE, ctypes.c_uint32(self._steps))
        if bias is not None:
            set_one(DESC_BIAS, ctypes.c_void_p(bias))
        return desc

    def _new(self, create: Any, destroy: Any, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        require(create(ctypes.byref(made), *arguments), create.__name__)
        self._made.append((destroy, made))
        return made

    def _layout(self, rows: int, columns: int, ld: int) -> ctypes.c_void_p:
        lib = self.lib
        return self._new(lib.cublasLtMatrixLayoutCreate, lib.cublasLtMatrixLayoutDestroy, self.g.data_type, rows, columns, ld)

    @staticmethod
    def _set(setter: Any, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        require(setter(target, attribute, ctypes.byref(value), ctypes.sizeof(value)), f"{setter.__name__} {attribute}")

    def algorithms(self, count: int, *, space: int | None = None, reductions: int | None = None, of: Algo | None = None) -> list[Result]:
        """At most `count`, best guess first; with `space` bytes of workspace, of the ways `reductions` (a mask), of the id of `of`.

        Raises CandidateFault(REFUSED) when the library has none."""
        lib = self.lib
        preference = ctypes.c_void_p()
        require(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate")
        results, found = (Result * count)(), ctypes.c_int()
        try:
            set_one = partial(self._set, lib.cublasLtMatmulPreferenceSetAttribute, preference)
            # a uint64: as an int product such sizes have overflowed to 0, and no split-K algorithm was found
            set_one(_PREF_MAX_WORKSPACE, ctypes.c_uint64(self.room if space is None else space))
            set_one(_PREF_REDUCTION_MASK, ctypes.c_uint32(self.reductions if reductions is None else reductions))
            first, second, out = self.alignments
            for attribute, alignment in zip(_PREF_ALIGNMENT, (first, second, out, out), strict=True):
                set_one(attribute, ctypes.c_uint32(alignment))  # the default promises 256 bytes, which a tail's buffers break
            if of is not None:
                set_one(_PREF_SEARCH_MODE, ctypes.c_uint32(_SEARCH_LIMITED_BY_ALGO_ID))
                for result in results:
                    result.algo = of
            status = lib.cublasLtMatmulAlgoGetHeuristic(
                self.handle, self.desc, *self.layouts, preference, count, ctypes.addressof(results), ctypes.addressof(found)
            )
        finally:
            lib.cublasLtMatmulPreferenceDestroy(preference)
        usable = [r for r in results[: found.value] if r.state == 0]
        if status or not usable:
            raise CandidateFault(Outcome.REFUSED, f"cuBLASLt has no algorithm for this product (status {status})")
        return usable

    def __del__(self) -> None:
        for destroy, made in self._made:
            destroy(made)
