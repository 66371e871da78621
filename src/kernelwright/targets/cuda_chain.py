"""A predecessor for programmatic dependent launch: the kernel behind which a dependent one shows whether it waits.

It lets its dependents start at once, waits until the host has enqueued them, and writes what they read only after a pause in which a kernel
that does not wait would have read, and written, everything. It leaves most multiprocessors free, so that a dependent's blocks do start.
A fixed time instead is not enough for a busy host (compilers on every core), and a kernel that never waits passes where it is late.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from kernelwright.targets import nvrtc
from kernelwright.targets.driver import Module, Prepared
from kernelwright.targets.launch import Packed

BLOCKS, THREADS = 16, 256
PAUSE = 200_000
"""Clock cycles, 100 us on an H200: the start of a dependent launch takes some 2 us there, and a small kernel 2 to 5 more."""
PATIENCE = 4_000_000_000
"""Clock cycles, 2 s: then it goes on although the host has not said so, which must have failed."""

SOURCE = r"""
#include "kernelwright/pdl.cuh"

struct Copy {
    char* to;
    const char* from;
    long long bytes;
};

extern "C" __global__ void __launch_bounds__(256)
overwrite(const Copy* copies, int count, const volatile int* enqueued, long long patience, long long pause) {
    kw::launch_dependents();
    long long begun = clock64();
    while (!*enqueued && clock64() - begun < patience) {
    }
    begun = clock64();
    while (clock64() - begun < pause) {
    }
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
    for (int c = 0; c < count; c++) {
        const long long wide = copies[c].bytes / 16;  // both ends start at multiples of 256
        for (long long i = first; i < wide; i += step) ((uint4*)copies[c].to)[i] = ((const uint4*)copies[c].from)[i];
        for (long long i = wide * 16 + first; i < copies[c].bytes; i += step) copies[c].to[i] = copies[c].from[i];
    }
}
"""


class Predecessor:
    """One for each opened device of sm_90 or newer; compiled when it is first used."""

    def __init__(self, bindings: Any, sm: int, smem: int):
        self._bindings, self._sm, self._smem = bindings, sm, smem

    @cached_property
    def _module(self) -> Module:
        cubin, _ = nvrtc.compile_cubin(SOURCE, nvrtc.architecture(self._sm))
        return Module(self._bindings, cubin, sm=self._sm, smem=self._smem)

    def prepare(self, copies: Sequence[tuple[Any, Any]]) -> tuple[Prepared, torch.Tensor, torch.Tensor]:
        """The launch, a number in the host's memory to be set to 1 once what follows is enqueued, and a table; both live as long as the
        launch. `copies`: (destination, source) tensors of the same bytes, contiguous."""
        rows = [(to.data_ptr(), source.data_ptr(), to.numel() * to.element_size()) for to, source in copies]
        table = torch.tensor(rows, dtype=torch.int64, device=copies[0][0].device)
        enqueued = torch.zeros(1, dtype=torch.int32, pin_memory=table.is_cuda)
        args = struct.pack("<Q", table.data_ptr()), struct.pack("<i", len(rows)), struct.pack("<Q", enqueued.data_ptr())
        packed = Packed(
            kernel="overwrite",
            grid=(BLOCKS, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(1, 1, 1),
            smem=0,
            pdl=False,
            args=(*args, struct.pack("<q", PATIENCE), struct.pack("<q", PAUSE)),
            labels=("copies", "count", "enqueued", "patience", "pause"),
            holds=("copies", "", "", "", ""),
        )
        return Prepared(self._module.kernel("overwrite"), packed), enqueued, table

    def close(self) -> None:
        if "_module" in self.__dict__:
            self._module.unload()
            del self._module
