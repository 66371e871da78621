"""The CUDA driver: errors as Outcomes, modules, kernels, prepared launches.

Functions take the module `cuda.bindings.driver` as an argument (`bindings`), so that tests can hand in another.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from kernelwright.records import Outcome
from kernelwright.targets.launch import (
    MAX_THREADS,
    PORTABLE_CLUSTER,
    TENSOR_MAP_BYTES,
    KernelLimits,
    Packed,
    TensorMap,
    fault,
)
from kernelwright.targets.target import CandidateFault, DeviceLost


class DeviceFailure(Exception):
    """The GPU, its driver or the machine failed: no candidate's fault."""


_LOST = {
    # The context is unusable afterwards (cuda.h: "This leaves the process in an inconsistent state").
    "CUDA_ERROR_ILLEGAL_ADDRESS": "it read or wrote an address outside every allocation",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "it accessed an address that its access width does not divide",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "an instruction met an address of another memory space",
    "CUDA_ERROR_INVALID_PC": "it jumped to an invalid address",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "it executed an illegal instruction",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "its call stack broke",
    "CUDA_ERROR_ASSERT": "a device-side assert or trap fired",
    "CUDA_ERROR_LAUNCH_FAILED": "it faulted (a trap, a bad shared-memory or TMA access)",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "it ran longer than the driver allows",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": "it left tensor memory allocated",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "its context is gone",
    "CUDA_ERROR_CONTAINED": "it caused a contained memory error",
    "CUDA_ERROR_UNKNOWN": "the driver reports an unknown error",
}
_MACHINE = {
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_INVALID_DEVICE",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_NOT_INITIALIZED",
}
_LAUNCH = {
    "CUDA_ERROR_INVALID_VALUE": "the driver refuses the values of this launch",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "its registers and shared memory do not fit for this block size",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "it was compiled for another GPU",
    "CUDA_ERROR_INVALID_IMAGE": "the cubin is no valid module",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "this cluster size does not fit on the device with its shared memory and registers",
    "CUDA_ERROR_NOT_FOUND": "the cubin has no such kernel",
}


def call(doing: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call: None, one value, or a tuple. `doing` says whose work it was: `kernel gemm`.

    Raises DeviceLost (CRASH), CandidateFault (LAUNCH_ERROR, OUT_OF_MEMORY) or DeviceFailure.
    """
    status, *values = result
    if int(status) == 0:
        return (values[0] if len(values) == 1 else tuple(values)) if values else None
    name = status.name
    if name in _MACHINE:
        raise DeviceFailure(f"{doing}: the CUDA driver reports {name}")
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise CandidateFault(Outcome.OUT_OF_MEMORY, f"{doing}: the GPU has not enough free memory")
    if name in _LOST:
        raise DeviceLost(Outcome.CRASH, f"{doing}: {_LOST[name]} ({name})")
    raise fault(f"{doing}: {_LAUNCH.get(name, 'the driver reports an error')} ({name})")


@cache
def load() -> Any:
    """The module cuda.bindings.driver. Raises ImportError, or RuntimeError when the machine has no driver library."""
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]: compiled, without stubs

    driver.cuDriverGetVersion()
    return driver


def stream_handle(bindings: Any, stream: int) -> Any:
    return bindings.CUstream(stream)


class Module:
    """A cubin in the current context."""

    def __init__(self, bindings: Any, cubin: bytes, *, sm: int, smem: int):
        """`smem`: most shared memory of one block that the device gives on request, bytes."""
        self._bindings, self._sm, self._smem = bindings, sm, smem
        self._image = ctypes.create_string_buffer(cubin, len(cubin))
        self._handle = call("loading the cubin", bindings.cuModuleLoadData(ctypes.addressof(self._image)))
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            doing = f'kernel {name} (declare it extern "C" __global__)'
            try:
                function = call(doing, self._bindings.cuModuleGetFunction(self._handle, name.encode()))
            except UnicodeEncodeError:
                raise fault(f"{doing}: the name cannot be encoded") from None
            self._kernels[name] = Kernel(self._bindings, function, name, self._sm, self._smem)
        return self._kernels[name]

    def unload(self) -> None:
        call("unloading the cubin", self._bindings.cuModuleUnload(self._handle))


class Kernel:
    """One `__global__` function of a Module."""

    def __init__(self, bindings: Any, function: Any, name: str, sm: int, smem: int):
        self.bindings, self.function, self.name = bindings, function, name
        self._dynamic_smem = 0
        self._wide_cluster = False
        attribute = bindings.CUfunction_attribute
        static = self._get(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self.limits = KernelLimits(
            sm=sm,
            smem=smem - static,
            threads=min(MAX_THREADS, self._get(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)),
            params=self._params(),
        )

    def _get(self, attribute: Any) -> int:
        return call(f"kernel {self.name}", self.bindings.cuFuncGetAttribute(attribute, self.function))

    def _params(self) -> tuple[int, ...] | None:
        """Sizes of the parameters: cuFuncGetParamInfo answers CUDA_ERROR_INVALID_VALUE past the last one."""
        sizes: list[int] = []
        while True:
            status, _, size = self.bindings.cuFuncGetParamInfo(self.function, len(sizes))
            if status.name == "CUDA_ERROR_INVALID_VALUE":
                return tuple(sizes)
            if int(status) != 0:
                return None
            sizes.append(size)

    def allow(self, smem: int, cluster: int) -> None:
        """Raises the kernel's own limits to what a launch asks for."""
        attribute, doing = self.bindings.CUfunction_attribute, f"kernel {self.name}"
        if smem > self._dynamic_smem:
            wanted = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(doing, self.bindings.cuFuncSetAttribute(self.function, wanted, smem))
            self._dynamic_smem = smem
        if cluster > PORTABLE_CLUSTER and not self._wide_cluster:
            wanted = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call(doing, self.bindings.cuFuncSetAttribute(self.function, wanted, 1))
            self._wide_cluster = True


class Prepared:
    """A launch ready to enqueue: its parameter block and configuration are built once and kept alive here."""

    def __init__(self, kernel: Kernel, packed: Packed):
        self._bindings, self._kernel = kernel.bindings, kernel
        self._blocks = [ctypes.create_string_buffer(bytes(_argument(kernel, a)), _padded(a)) for a in packed.args]
        self._addresses = (ctypes.c_void_p * max(1, len(packed.args)))(*(ctypes.addressof(b) for b in self._blocks))
        self._params = ctypes.addressof(self._addresses)
        cluster = packed.cluster[0] * packed.cluster[1] * packed.cluster[2]
        kernel.allow(packed.smem, cluster)
        self._config = self._dependent = _config(self._bindings, packed)
        if packed.pdl:
            self._dependent = _config(self._bindings, packed, dependent=True)
        self._stream = 0
        self._doing = f"kernel {packed.kernel}"
        if cluster > 1:
            # a cluster that fits nowhere makes the launch fail only later, and with a poorer reason
            fits = call(self._doing, self._bindings.cuOccupancyMaxActiveClusters(kernel.function, self._config))
            if fits < 1:
                raise fault(f"{self._doing}: a cluster of {packed.cluster} with {packed.smem} bytes a block fits nowhere on the device")

    def enqueue(self, stream: int, *, dependent: bool = False) -> None:
        """`dependent`: with the programmatic edge to the launch before it on the stream, if its plan asks for one."""
        if stream != self._stream:
            self._config.hStream = self._dependent.hStream = stream_handle(self._bindings, stream)
            self._stream = stream
        config = self._dependent if dependent else self._config
        status = self._bindings.cuLaunchKernelEx(config, self._kernel.function, self._params, 0)
        if int(status[0]) != 0:
            call(self._doing, status)


def _padded(arg: bytes | TensorMap) -> int:
    return TENSOR_MAP_BYTES if isinstance(arg, TensorMap) else len(arg)


def _argument(kernel: Kernel, arg: bytes | TensorMap) -> bytes:
    return encode(kernel.bindings, arg, f"kernel {kernel.name}") if isinstance(arg, TensorMap) else arg


def _config(bindings: Any, packed: Packed, *, dependent: bool = False) -> Any:
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = packed.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = packed.block
    config.sharedMemBytes = packed.smem
    config.hStream = stream_handle(bindings, 0)
    attributes = []
    if packed.cluster != (1, 1, 1):
        one = bindings.CUlaunchAttribute()
        one.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        one.value.clusterDim.x, one.value.clusterDim.y, one.value.clusterDim.z = packed.cluster
        attributes.append(one)
    if dependent:
        one = bindings.CUlaunchAttribute()
        one.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        one.value.programmaticStreamSerializationAllowed = 1
        attributes.append(one)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


_ELEMENT = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32", "int32": "INT32", "int64": "INT64"}


def tensor_map_codes(bindings: Any, spec: TensorMap) -> tuple[Any, Any, Any]:
    """The driver's enumerators of its element type, swizzle and L2 promotion."""
    promotion = spec.l2_promotion.upper() if spec.l2_promotion == "none" else f"L2_{spec.l2_promotion}"
    return (
        getattr(bindings.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENT[spec.dtype]}"),
        getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec.swizzle.upper()}"),
        getattr(bindings.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
    )


def encode(bindings: Any, spec: TensorMap, doing: str) -> bytes:
    """The 128 bytes of a CUtensorMap, element strides 1, zero fill out of bounds."""
    b = bindings
    rank = len(spec.dims)
    dtype, swizzle, promotion = tensor_map_codes(b, spec)
    made = call(
        f"{doing}: tensor map",
        b.cuTensorMapEncodeTiled(
            dtype,
            rank,
            spec.address,
            [b.cuuint64_t(d) for d in spec.dims],
            [b.cuuint64_t(s) for s in spec.strides],
            [b.cuuint32_t(n) for n in spec.box],
            [b.cuuint32_t(1)] * rank,
            b.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            promotion,
            b.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
    )
    return ctypes.string_at(made.getPtr(), TENSOR_MAP_BYTES)
