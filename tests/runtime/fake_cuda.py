"""The fake CUDA driver of fake_libcuda.cpp as the tests see it, and modules whose kernels are recorded there."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernelwright.targets.cpu import compiler
from kernelwright.targets.driver import Kernel
from kernelwright.targets.launch import Packed, TensorMap

HERE = Path(__file__).parent


class Record(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("function", "stream", "context")),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem", ctypes.c_uint32),
        ("attributes", ctypes.c_uint32),
        ("ids", ctypes.c_uint32 * 4),
        ("values", (ctypes.c_uint32 * 3) * 4),
        ("size", ctypes.c_uint32),
        ("params", ctypes.c_ubyte * 1024),
    ]


class FakeCuda:
    def __init__(self, folder: Path):
        self.path = folder / "libfakecuda.so"
        include = Path(torch.__file__).parent / "include"
        command = [str(compiler()), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{include}", str(HERE / "fake_libcuda.cpp")]
        subprocess.run([*command, "-o", str(self.path)], check=True)
        self.lib = lib = ctypes.CDLL(str(self.path))
        lib.fake_launch.restype = ctypes.POINTER(Record)
        lib.fake_exchange.restype = ctypes.c_void_p
        for name in ("fake_function", "fake_current_context"):
            getattr(lib, name).restype = ctypes.c_uint64
        for name in ("fake_stream", "fake_context"):
            getattr(lib, name).argtypes = [ctypes.c_uint64]
        lib.fake_capture.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64]

    def exchange(self) -> Any:
        """PyTorch's exchange API, but that the fake says what the current stream is."""
        of, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
        of.restype, of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.name = ctypes.create_string_buffer(b"dlpack_exchange_api")
        real = of(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")  # pyright: ignore[reportAttributeAccessIssue]
        return new(self.lib.fake_exchange(ctypes.c_void_p(real)), ctypes.cast(self.name, ctypes.c_char_p), None)

    def launches(self) -> list[Record]:
        return [self.lib.fake_launch(i).contents for i in range(self.lib.fake_launches())]

    def function(self, sizes: Sequence[int]) -> int:
        return self.lib.fake_function((ctypes.c_uint32 * len(sizes))(*sizes), len(sizes))

    def params(self, bindings: Any, packed: Packed) -> bytes:
        """What a kernel must receive, from what targets/launch.py packs."""
        from kernelwright.targets.driver import encode

        return b"".join(encode(bindings, a, "test") if isinstance(a, TensorMap) else a for a in packed.args)


@cache
def fake_bindings(fake: FakeCuda) -> Any:
    """cuda.bindings.driver with the calls that need a GPU replaced."""
    from cuda.bindings import driver as real

    ok = real.CUresult.CUDA_SUCCESS

    class Bindings:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple:
            return ok, {"CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 0, "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 1024}[attribute.name]

        def cuFuncGetParamInfo(self, function: Any, index: int) -> tuple:
            return real.CUresult.CUDA_ERROR_NOT_SUPPORTED, 0, 0

        def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple:
            return (ok,)

        def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> tuple:
            return ok, 5

        def cuTensorMapEncodeTiled(self, dtype, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill) -> tuple:
            made = real.CUtensorMap()
            wide, narrow = ctypes.c_uint64 * 5, ctypes.c_uint32 * 5
            status = fake.lib.cuTensorMapEncodeTiled(
                ctypes.c_void_p(made.getPtr()), int(dtype), rank, ctypes.c_void_p(address), wide(*map(int, dims)), wide(*map(int, strides)),
                narrow(*map(int, box)), narrow(*map(int, steps)), int(interleave), int(swizzle), int(promotion), int(fill),
            )  # fmt: skip
            self.kept = made
            return real.CUresult(status), made

    return Bindings()


def kernels(fake: FakeCuda, sizes: dict[str, Sequence[int]]):
    """A stand-in for Launcher.kernels: each kernel takes parameters of the given sizes."""
    from cuda.bindings import driver as real

    found = {name: Kernel(fake_bindings(fake), real.CUfunction(fake.function(s)), name, 90, 227 * 1024) for name, s in sizes.items()}
    return found.__getitem__
