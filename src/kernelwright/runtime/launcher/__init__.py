"""Launches a Pack's kernels with next to no host time.

    launcher = open_launcher()
    op = launcher.operation("gemm")                                # an epilogue is part of the name: "linear:bias+gelu"
    launcher.launch(op, a, b, out)                                 # None: tensors like these are unknown ...
    launcher.register(op, {"a": a, "b": b, "c": out}, plan, kernels, {"M": 512, "N": 512, "K": 512}, sms=132)
    launcher.launch(op, a, b, out)                                 # True: enqueued on PyTorch's current stream

What is registered serves calls whose tensors agree in dtype, device, sizes, strides and alignment (1, 2, 4, 8 or 16 bytes); every other
call is unknown. `launch` is a C++ function that reads the tensors, fills in their addresses and calls the driver. It does not look at
autograd, at dispatch modes or for overlapping memory: `product`, which kw.matmul asks before all else, does.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from kernelwright.plan import Names
from kernelwright.problems.problem import DTYPE_NAMES
from kernelwright.records import LaunchPlan
from kernelwright.runtime.launcher import vendor
from kernelwright.runtime.launcher.build import LauncherUnavailable, load
from kernelwright.runtime.launcher.matrix import alignment, stored
from kernelwright.targets import driver
from kernelwright.targets.cublaslt import Product
from kernelwright.targets.driver import Kernel, Module, Prepared, tensor_map_codes
from kernelwright.targets.launch import (
    TENSOR_MAP_BYTES,
    WORKSPACE,
    Packed,
    Tensor,
    TensorMap,
    check,
    pack,
    refuse_unmet,
    workspace_bytes,
)

__all__ = ["LaunchError", "Launcher", "LauncherUnavailable", "open_launcher", "stored"]

TENSOR_MAPS = 4096
"""Encoded tensor maps kept, 160 bytes each."""

# cuda.h: CUfunction, CUlaunchConfig with the stream and attributes still open, two CUlaunchAttribute; then counts of patches and
# parameters, bytes of parameters
COUNTS = struct.Struct("<4Q")
"""Bytes of workspace, whether it is zeroed, launches that follow, products of the library that follow."""
HEAD = struct.Struct("<Q 7I 4x 2Q I 4x I4x64s I4x64s 3I 4x")
PATCH = struct.Struct("<2I Q 8x 5Q 5Q 5I 4i 4x")
TENSOR_PATCH, WORKSPACE_PATCH, TENSOR_MAP_PATCH = range(3)
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
"""CUlaunchAttributeID."""


class LaunchError(RuntimeError):
    """The driver refused a launch; the message has its text. Outputs may be half written, earlier work on the stream is as it was."""


@cache
def open_launcher() -> Launcher:
    """The one launcher of this process. Raises LauncherUnavailable."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        raise LauncherUnavailable(f"PyTorch {torch.__version__} has no DLPack C exchange API: the launcher needs PyTorch 2.10 or newer")
    return Launcher("libcuda.so.1", exchange)


class Launcher:
    """All methods may be called from any thread."""

    def __init__(self, library: str, exchange: Any, tensor_maps: int = TENSOR_MAPS):
        """`library`: of the CUDA driver; `exchange`: capsule of a DLPackExchangeAPI. Raises LauncherUnavailable."""
        self._core = load()
        try:
            probes = torch.empty(0), torch.nn.Parameter(torch.empty(0))
            self._core.watch(*probes, *(t._cdata for t in probes), vars(forward_ad))
        except (AttributeError, ImportError) as error:
            raise LauncherUnavailable(f"the launcher does not know PyTorch {torch.__version__}: {error}") from None
        try:
            self._core.open(library, exchange, torch.Tensor, torch.nn.Parameter, LaunchError, tensor_maps)
        except ImportError as error:
            raise LauncherUnavailable(f"the launcher cannot use the CUDA driver: {error}; install the NVIDIA driver") from None
        self._lock = threading.Lock()  # of the modules and workspaces
        self._numbers = itertools.count()
        self._operations: dict[str, int] = {}
        self._modules: dict[tuple[Path, torch.device], Module] = {}
        self._workspaces: dict[tuple[int, int, bool, bool], torch.Tensor] = {}
        self._products: list[Product] = []
        self.launch: Callable[..., bool | None] = self._core.launch
        """launch(operation, *tensors) -> True: enqueued; False: registered as the library's; None: unknown, or the current stream has
        no workspace for it (`ready`). Raises LaunchError."""
        self.product: Callable[..., torch.Tensor | Literal[False] | None] = self._core.product
        """product(operation, a, b, bias, out, transposed) -> the product, enqueued: a (..., K) times b (K, N), or with `transposed`
        b (N, K), into `out` or, where that is None, a new tensor. False: the library's for certain, registered as such or of another
        dtype. None: unknown, or there is something that PyTorch has to look at: a gradient, a mode, a transform, autocast, memory that
        overlaps, a launch that failed. Then Python decides."""

    def operation(self, name: str) -> int:
        """The number by which `launch` knows an operation; all that changes the result beside the tensors must be in the name."""
        return self._operations.setdefault(name, next(self._numbers))

    def kernels(self, cubin: Path, device: torch.device) -> Callable[[str], Kernel]:
        """The kernels of a cubin by name, loaded once for each device until `release`. Raises CandidateFault, DeviceFailure."""
        with self._lock:
            if (cubin, device) not in self._modules:
                of = torch.cuda.get_device_properties(device)
                with torch.cuda.device(device):
                    module = Module(driver.load(), cubin.read_bytes(), sm=10 * of.major + of.minor, smem=of.shared_memory_per_block_optin)
                self._modules[cubin, device] = module
            return self._modules[cubin, device].kernel

    def register(
        self,
        operation: int,
        tensors: Mapping[str, torch.Tensor],
        plan: LaunchPlan,
        kernels: Callable[[str], Kernel],
        axes: Mapping[str, int],
        *,
        sms: int,
        dependent: bool = False,
    ) -> None:
        """From now on `launch` serves tensors like these with this plan.

        `tensors`: by the names of the plan, in the order in which `launch` gets them. Launches whose plan says `pdl` get the programmatic
        edge to the one before them in the plan and, with `dependent`, the first to whatever is before it on the stream. Raises
        CandidateFault where the plan does not take such tensors, and ValueError for tensors that `stored` refuses. Keeps none of the
        tensors."""
        device = next(iter(tensors.values())).device
        names = Names({**axes, "sms": sms})
        for name, t in tensors.items():
            names |= {f"ld_{name}": stored(t)[1], f"numel_{name}": t.numel(), f"align_{name}": alignment(t)}
        refuse_unmet(plan, names)
        size = workspace_bytes(plan, names)
        addresses = {name: Tensor(t.data_ptr(), DTYPE_NAMES[t.dtype]) for name, t in tensors.items()}
        words = []
        with _current(device):
            for packed in pack(plan, names, addresses, 0, size):
                kernel = kernels(packed.kernel)
                check(packed, kernel.limits)
                Prepared(kernel, packed)  # the driver's own checks, and the kernel's limits raised
                inside = bool(words) and kernel.limits.sm >= 90
                words.append(_flatten(packed, kernel, list(tensors), dependent or inside))
            counts = COUNTS.pack(size, plan.workspace_zeroed, len(words), 0)
            self._enroll(operation, tensors.values(), counts + b"".join(words))
        self.ready(operation, *tensors.values())

    def register_vendor(
        self, operation: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """From now on `launch` has cuBLASLt multiply tensors like these, called as a, b, the bias if there is one, out. Raises as
        `vendor.prepare`, whose arguments these are."""
        tensors = [t for t in (a, b, bias, out) if t is not None]
        with _current(a.device):
            made = vendor.prepare(a, b, out, bias)
            self._enroll(operation, tensors, COUNTS.pack(made.workspace, False, 0, 1) + made.words, made.product)
        self.ready(operation, *tensors)

    def register_library(self, operation: int, *tensors: torch.Tensor) -> None:
        """From now on `launch` answers False to tensors like these."""
        self._enroll(operation, tensors, None)

    def _enroll(self, operation: int, tensors: Iterable[torch.Tensor], words: bytes | None, product: Product | None = None) -> None:
        with self._lock:
            if self._core.enroll(operation, *tensors, words):
                self._products.clear()  # there were too many registrations: all before this one are forgotten
            if product is not None:
                self._products.append(product)

    def ready(self, operation: int, *tensors: torch.Tensor) -> None:
        """Gives the current stream the workspace that a registered launch needs, if it lacks it.

        While a CUDA graph is captured, the workspace comes from the graph's own memory and is zeroed in each replay."""
        with self._lock, _current(tensors[0].device):
            lacking = self._core.provide(operation, *tensors, 0)
            if lacking is None:
                return
            size, zeroed, device, stream, capture = lacking
            make = torch.zeros if zeroed else torch.empty
            block = make(size, dtype=torch.uint8, device=tensors[0].device)
            self._core.provide(operation, *tensors, block.data_ptr())
            # an older block goes back to PyTorch, which hands it out again on this stream only, after what still uses it; one of an
            # ended capture stays the graph's
            self._workspaces[device, stream, zeroed, capture != 0] = block

    def release(self) -> None:
        """Forgets everything registered and unloads the cubins, when the devices have done their work. Graphs that were captured with
        these kernels must not be replayed any more."""
        with self._lock:
            self._core.release()
            self._products.clear()
            for (_, device), module in self._modules.items():
                with torch.cuda.device(device):
                    torch.cuda.synchronize()
                    module.unload()
            self._modules.clear()
            self._workspaces.clear()


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _flatten(packed: Packed, kernel: Kernel, order: list[str], dependent: bool) -> bytes:
    """HEAD, patches, offsets of the parameters, the parameters: what registered.h keeps of a launch."""
    params, offsets, patches = bytearray(), [], []
    for arg, holds in zip(packed.args, packed.holds, strict=True):
        size = TENSOR_MAP_BYTES if isinstance(arg, TensorMap) else len(arg)
        params.extend(bytes(-len(params) % size))
        offsets.append(at := len(params))
        params.extend(bytes(size) if holds or isinstance(arg, TensorMap) else arg)
        if isinstance(arg, TensorMap):
            dtype, swizzle, promotion = (int(code) for code in tensor_map_codes(kernel.bindings, arg))
            shape = *_five(arg.dims), *_five(arg.strides), *_five(arg.box), dtype, len(arg.dims), swizzle, promotion
            patches.append(PATCH.pack(TENSOR_MAP_PATCH, at, order.index(holds), *shape))
        elif holds == WORKSPACE:
            patches.append(PATCH.pack(WORKSPACE_PATCH, at, int.from_bytes(arg, "little"), *bytes(19)))
        elif holds:
            patches.append(PATCH.pack(TENSOR_PATCH, at, order.index(holds), *bytes(19)))
    attributes = []
    if packed.cluster != (1, 1, 1):
        attributes.append((CLUSTER_DIMENSION, struct.pack("<3I", *packed.cluster)))
    if packed.pdl and dependent:
        attributes.append((PROGRAMMATIC_STREAM_SERIALIZATION, struct.pack("<i", 1)))
    values = [part for one in [*attributes, (0, b""), (0, b"")][:2] for part in one]
    config = *packed.grid, *packed.block, packed.smem, 0, 0, len(attributes)
    head = HEAD.pack(int(kernel.function), *config, *values, len(patches), len(offsets), len(params))
    return head + b"".join(patches) + struct.pack(f"<{len(offsets)}I", *offsets) + params


def _five(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *(0,) * (5 - len(numbers)))
