"""Driver calls against a stand-in that has the real types of cuda.bindings, so that wrong fields and argument types show."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from kernelwright.records import Outcome
from kernelwright.targets.driver import DeviceFailure, Module, Prepared, call, encode
from kernelwright.targets.launch import Packed, TensorMap, check
from kernelwright.targets.target import CandidateFault, DeviceLost

real = pytest.importorskip("cuda.bindings.driver")

SUCCESS = real.CUresult.CUDA_SUCCESS
MAP = TensorMap("bf16", 0x7F0000000000, (64, 300), (128,), (64, 128), "64B", "256B")


class FakeDriver:
    """Kernel `k` takes a pointer, an i32 and a tensor map; its static shared memory is 1 KiB."""

    def __init__(self, *, params: tuple[int, ...] = (8, 4, 128), clusters: int = 5, launch: Any = SUCCESS):
        self.params, self.clusters, self.status = params, clusters, launch
        self.set: list[tuple[str, int]] = []
        self.launched: list[dict[str, Any]] = []
        self.unloaded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuModuleLoadData(self, image: int) -> tuple:
        assert ctypes.string_at(image, 4) == b"\x7fELF"
        return SUCCESS, real.CUmodule(1)

    def cuModuleUnload(self, module: Any) -> tuple:
        self.unloaded += 1
        return (SUCCESS,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple:
        if name != b"k":
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None
        return SUCCESS, real.CUfunction(2)

    def cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple:
        return SUCCESS, {"CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1024, "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 512}[attribute.name]

    def cuFuncGetParamInfo(self, function: Any, index: int) -> tuple:
        if index >= len(self.params):
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
        return SUCCESS, sum(self.params[:index]), self.params[index]

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple:
        self.set.append((attribute.name, value))
        return (SUCCESS,)

    def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> tuple:
        return SUCCESS, self.clusters

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple:
        self.encoded = arguments
        made = real.CUtensorMap()
        made.opaque = [real.cuuint64_t(i + 1) for i in range(16)]
        self.kept = made
        return SUCCESS, made

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple:
        pointers = (ctypes.c_void_p * len(self.params)).from_address(params)
        self.launched.append(
            {
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
                "smem": config.sharedMemBytes,
                "stream": int(config.hStream),
                "args": tuple(ctypes.string_at(p, n) for p, n in zip(pointers, self.params, strict=True)),
                "attributes": attributes(config),
            }
        )
        return (self.status,)


def attributes(config: Any) -> dict[int, tuple[int, int, int]]:
    """Launch attributes by id, the first three words of each value, as the driver's C struct holds them (cuda.h: CUlaunchConfig_st)."""
    array, count = struct.unpack("<QI", ctypes.string_at(config.getPtr() + 40, 12))
    raw = [ctypes.string_at(array + 72 * i, 72) for i in range(count)]
    return {struct.unpack("<I", one[:4])[0]: struct.unpack("<3I", one[8:20]) for one in raw}


CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6


def packed(**changes: Any) -> Packed:
    values: dict[str, Any] = {
        "kernel": "k",
        "grid": (4, 2, 1),
        "block": (128, 1, 1),
        "cluster": (1, 1, 1),
        "smem": 0,
        "pdl": False,
        "args": (b"\x01\x02\x03\x04\x05\x06\x07\x08", b"\x2a\0\0\0", MAP),
        "labels": ("tensor a", "i32 K", "tensor map of a"),
        "holds": ("a", "", "a"),
    }
    return Packed(**(values | changes))


def module(fake: FakeDriver) -> Module:
    return Module(fake, b"\x7fELF and so on", sm=90, smem=232448)


def test_a_launch_reaches_the_driver_as_the_plan_says():
    fake = FakeDriver()
    kernel = module(fake).kernel("k")
    check(packed(), kernel.limits)
    launch = Prepared(kernel, packed())
    launch.enqueue(0x1234)
    launch.enqueue(0)
    first, second = fake.launched
    assert (first["grid"], first["block"], first["smem"]) == ((4, 2, 1), (128, 1, 1), 0)
    assert (first["stream"], second["stream"]) == (0x1234, 0)
    assert first["args"][:2] == (b"\x01\x02\x03\x04\x05\x06\x07\x08", b"\x2a\0\0\0")
    assert first["args"][2] == b"".join(i.to_bytes(8, "little") for i in range(1, 17))
    assert first["args"] == second["args"]
    assert first["attributes"] == {} and fake.set == []


def test_clusters_and_large_shared_memory_are_asked_for():
    fake = FakeDriver()
    kernel = module(fake).kernel("k")
    Prepared(kernel, packed(cluster=(16, 1, 1), grid=(16, 1, 1), smem=200000)).enqueue(7)
    (launch,) = fake.launched
    assert launch["attributes"] == {CLUSTER_DIMENSION: (16, 1, 1)}
    assert ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 200000) in fake.set
    assert ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1) in fake.set
    Prepared(kernel, packed(smem=100000))
    assert len(fake.set) == 2  # the larger limit stays


def test_the_programmatic_edge_is_there_only_where_plan_and_mode_ask_for_it():
    fake = FakeDriver()
    kernel = module(fake).kernel("k")
    able, plain = Prepared(kernel, packed(cluster=(2, 1, 1), pdl=True)), Prepared(kernel, packed())
    for launch in (able, plain):
        launch.enqueue(7)
        launch.enqueue(9, dependent=True)
    cluster, edge = {CLUSTER_DIMENSION: (2, 1, 1)}, {PROGRAMMATIC_SERIALIZATION: (1, 0, 0)}
    assert [launch["attributes"] for launch in fake.launched] == [cluster, cluster | edge, {}, {}]
    assert [launch["stream"] for launch in fake.launched] == [7, 9, 7, 9]


def test_a_cluster_that_fits_nowhere_is_a_launch_error():
    with pytest.raises(CandidateFault, match="fits nowhere") as caught:
        Prepared(module(FakeDriver(clusters=0)).kernel("k"), packed(cluster=(16, 1, 1), grid=(16, 1, 1)))
    assert caught.value.outcome is Outcome.LAUNCH_ERROR


def test_limits_come_from_kernel_and_device():
    limits = module(FakeDriver()).kernel("k").limits
    assert (limits.smem, limits.threads, limits.params) == (232448 - 1024, 512, (8, 4, 128))
    with pytest.raises(CandidateFault, match="the kernel takes 4"):
        check(packed(), module(FakeDriver(params=(8, 4, 128, 4))).kernel("k").limits)


def test_a_missing_kernel_is_a_launch_error():
    with pytest.raises(CandidateFault, match='extern "C"') as caught:
        module(FakeDriver()).kernel("other")
    assert caught.value.outcome is Outcome.LAUNCH_ERROR


@pytest.mark.parametrize("name", ["ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT"])
def test_sticky_errors_lose_the_device(name: str):
    with pytest.raises(DeviceLost, match=f"kernel k: .*CUDA_ERROR_{name}") as caught:
        call("kernel k", (getattr(real.CUresult, f"CUDA_ERROR_{name}"),))
    assert caught.value.outcome is Outcome.CRASH


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("OUT_OF_MEMORY", Outcome.OUT_OF_MEMORY),
        ("INVALID_VALUE", Outcome.LAUNCH_ERROR),
        ("LAUNCH_OUT_OF_RESOURCES", Outcome.LAUNCH_ERROR),
        ("NO_BINARY_FOR_GPU", Outcome.LAUNCH_ERROR),
        ("INVALID_CLUSTER_SIZE", Outcome.LAUNCH_ERROR),
        ("NOT_SUPPORTED", Outcome.LAUNCH_ERROR),
    ],
)
def test_other_errors_leave_it_usable(name: str, outcome: Outcome):
    with pytest.raises(CandidateFault) as caught:
        call("kernel k", (getattr(real.CUresult, f"CUDA_ERROR_{name}"), None))
    assert caught.value.outcome is outcome and not isinstance(caught.value, DeviceLost)


def test_a_broken_machine_is_no_candidates_fault():
    with pytest.raises(DeviceFailure, match="ECC"):
        call("kernel k", (real.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,))


def test_values_are_unpacked():
    assert call("x", (SUCCESS,)) is None
    assert call("x", (SUCCESS, 3)) == 3
    assert call("x", (SUCCESS, 3, 4)) == (3, 4)


def test_a_launch_error_is_told_with_the_kernels_name():
    launch = Prepared(module(FakeDriver(launch=real.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)).kernel("k"), packed())
    with pytest.raises(CandidateFault, match="kernel k: its registers"):
        launch.enqueue(0)


def test_tensor_maps_are_encoded_with_the_names_of_the_driver():
    fake = FakeDriver()
    assert len(encode(fake, MAP, "k")) == 128
    dtype, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill = fake.encoded
    assert (dtype.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, MAP.address)
    assert [int(d) for d in dims] == [64, 300] and [int(s) for s in strides] == [128]
    assert [int(b) for b in box] == [64, 128] and [int(s) for s in steps] == [1, 1]
    assert swizzle.name == "CU_TENSOR_MAP_SWIZZLE_64B" and promotion.name == "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"
    assert interleave.name.endswith("INTERLEAVE_NONE") and fill.name.endswith("FILL_NONE")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "int32", "int64"])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("promotion", ["none", "64B", "128B", "256B"])
def test_every_choice_of_a_tensor_map_has_a_name(dtype: str, swizzle: str, promotion: str):
    encode(FakeDriver(), TensorMap(dtype, 256, (64, 64), (256,), (8, 8), swizzle, promotion), "k")


def test_the_real_bindings_take_our_argument_types():
    """They convert all arguments before they look for the driver: a wrong type raises TypeError or AttributeError, not these."""
    fake = FakeDriver()
    kernel = module(fake).kernel("k")
    image = ctypes.create_string_buffer(b"\x7fELF")
    params = (ctypes.c_void_p * 1)()
    launch = Prepared(kernel, packed(cluster=(2, 1, 1), pdl=True))
    attribute = real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    mode = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    calls = [
        lambda: encode(real, TensorMap("fp16", 0, (0,), (), (0,), "none", "none"), "k"),
        lambda: call("x", real.cuModuleLoadData(ctypes.addressof(image))),
        lambda: call("x", real.cuLaunchKernelEx(launch._dependent, real.CUfunction(0), ctypes.addressof(params), 0)),
        lambda: call("x", real.cuOccupancyMaxActiveClusters(real.CUfunction(0), launch._config)),
        lambda: call("x", real.cuFuncGetAttribute(attribute, real.CUfunction(0))),
        lambda: call("x", real.cuFuncSetAttribute(real.CUfunction(0), attribute, 1024)),
        lambda: call("x", real.cuModuleGetFunction(real.CUmodule(0), b"k")),
        lambda: call("x", real.cuStreamBeginCapture(real.CUstream(0), mode)),
        lambda: call("x", real.cuStreamEndCapture(real.CUstream(0))),
    ]
    if _driver_is_there():
        pytest.skip("with a driver the calls would do something")
    for one in calls:
        with pytest.raises(RuntimeError, match=r"driver|dlopen"):
            one()


def _driver_is_there() -> bool:
    try:
        real.cuDriverGetVersion()
    except RuntimeError:
        return False
    return True
