"""cuBLAS and cuBLASLt through a path from Python as thin as the launcher's: thin_calls.cpp, compiled at first use.

    thin = ThinCalls()
    number = thin.cublaslt(w, problem, one, result)   # of rivals.cublaslt: Problem, a Bound, the algorithm
    thin.call(number, a, b, out)                      # out = a @ b, on PyTorch's current stream

`a` and `b` are the factors as torch.matmul gets them. The algorithms are those of `rivals/`; nothing is chosen here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from measuring import refuse

from kernelwright.records import Workload
from kernelwright.rivals import cublas
from kernelwright.rivals.cublaslt import Problem, Result
from kernelwright.runtime.launcher import build
from kernelwright.targets.target import Bound

SOURCE = Path(__file__).with_suffix(".cpp")


def factors(w: Workload, one: Bound) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(a, b, out) as torch.matmul takes them, over the stored tensors of a set."""
    a, b, c = (one.tensors[name] for name in "abc")
    return a if w.layout[0] == "n" else a.t(), b if w.layout[1] == "n" else b.t(), c


@cache
def core() -> Any:
    """The extension, one for the process."""
    try:
        return build.extension(build.built(SOURCE))
    except build.LauncherUnavailable as error:
        refuse(str(error))


class ThinCalls:
    def __init__(self, exchange: Any = None):
        """`exchange`: capsule of a DLPackExchangeAPI; PyTorch's own if None."""
        self._core = core()
        self._core.open(exchange or torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor)  # pyright: ignore[reportAttributeAccessIssue]
        self._kept: list[object] = []
        self.call: Callable[..., None] = self._core.call
        """call(number, a, b, out). Raises ValueError for tensors that differ from those prepared in size, stride, type, device or by a
        smaller alignment, RuntimeError with the library's status."""

    def cublas(self, w: Workload, one: Bound) -> int:
        """cublasGemmEx, its own choice of algorithm, fp32 accumulation."""
        g, handle, space = cublas.column_major(w, one), cublas._handle(), cublas.workspace()
        if g.compute != cublas.COMPUTE_32F:
            raise ValueError(f"the thin calls accumulate in fp32, not as {w.name}")
        lib = handle.lib
        names = ("cublasGemmEx", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode")
        addresses = (*(_address(getattr(lib, name)) for name in names), handle.handle.value, space.data_ptr())
        math = cublas._DISALLOW_REDUCED_PRECISION_REDUCTION if cublas.exact_reduction(w) else cublas._DEFAULT_MATH
        sizes = (g.op_first, g.op_second, g.m, g.n, g.k, g.ld_first, g.ld_second, g.ld_out, g.data_type, g.compute, math)
        self._kept.append(space)
        return self._core.prepare_gemm(*factors(w, one), addresses, space.numel(), sizes)

    def cublaslt(self, w: Workload, problem: Problem, one: Bound, result: Result) -> int:
        """cublasLtMatmul with this algorithm. `problem` lives as long as self: its descriptions are what is called with."""
        if problem.g.compute != cublas.COMPUTE_32F or w.epilogue:
            raise ValueError(f"the thin calls are plain products that accumulate in fp32, not {w.name}")
        space = cublas.workspace()
        objects = (problem.handle, problem.desc, problem.first, problem.second, problem.out)
        addresses = (_address(problem.lib.cublasLtMatmul), *(o.value for o in objects), space.data_ptr())
        self._kept += [problem, space]
        return self._core.prepare_lt(*factors(w, one), addresses, space.numel(), bytes(result.algo))


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found
    return found
