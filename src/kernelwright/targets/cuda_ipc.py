"""Device memory that one process allocates and another opens: CUDA IPC by the driver's own functions.

Not by PyTorch's: its caching allocator puts tensors into larger segments, and a handle opens the whole segment, the judge's other tensors
(reference results) with it. Here an allocation holds what is exchanged and nothing else. The functions need a current context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_HANDLE_BYTES = 64


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * _HANDLE_BYTES)]


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(text))
        raise RuntimeError(f"{name}: {text.value.decode() if text.value else status}")


class Allocation:
    """`size` bytes of the current context's device, zeroed; `tensor` is a flat uint8 view, `handle` opens it in another process."""

    def __init__(self, size: int):
        pointer, handle = ctypes.c_uint64(), _Handle()
        _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._pointer = pointer
        _call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        self.handle = bytes(handle)
        self.tensor = _tensor(pointer.value, size).zero_()

    def free(self) -> None:
        """After the other process has ended."""
        del self.tensor
        _call("cuMemFree_v2", self._pointer)


def opened(handle: bytes, size: int) -> torch.Tensor:
    """The other process's allocation as a flat uint8 tensor, for as long as this process lives."""
    pointer = ctypes.c_uint64()
    lazy_peer_access = 1
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(handle), ctypes.c_uint(lazy_peer_access))
    return _tensor(pointer.value, size)


def _tensor(address: int, size: int) -> torch.Tensor:
    class Memory:
        __cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}

    return torch.as_tensor(Memory(), device="cuda")


def wait_for_context() -> Callable[[], object]:
    """Waits for all streams of the context that is current now, whichever the candidate has made current since; by handles to the driver's
    functions taken now. Lines of the L2 that this process has marked as persisting are released: they would outlive the judge's flush,
    whose own release may be for its context alone."""
    select, synchronize, release = _driver().cuCtxSetCurrent, _driver().cuCtxSynchronize, _driver().cuCtxResetPersistingL2Cache
    not_supported, context = 801, ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))

    def wait() -> None:
        if (status := select(context)) or (status := synchronize()) or (status := release()) not in (0, not_supported):
            raise RuntimeError(f"the GPU reports error {status}")

    return wait
