"""Why a GPU cannot be used, in one sentence each; limits of a GPU; sensors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelwright.targets import cuda, cuda_libraries, cuda_probe, driver, nvrtc, roofline_cuda
from kernelwright.targets.cuda import CudaTarget
from kernelwright.targets.cuda_probe import Gpu
from kernelwright.targets.nvml import Nvml
from kernelwright.targets.target import Bound, TargetUnavailable

real = pytest.importorskip("cuda.bindings.driver")
OK = real.CUresult.CUDA_SUCCESS

H200 = Gpu(
    name="NVIDIA H200",
    sm=90,
    sms=132,
    smem=232448,
    l2_bytes=60 * 2**20,
    memory_bytes=150_000_000_000,
    sm_mhz=1980.0,
    memory_mhz=3201.0,
    bus_bits=6144,
    driver_cuda=(13, 0),
    pci_bus_id="0000:01:00.0",
)


class FakeMachine:
    """A driver with one H200."""

    def __init__(self, *, version: int = 13000, init: str = "CUDA_SUCCESS", count: int = 1, capability: tuple[int, int] = (9, 0)):
        self.version, self.init, self.count, self.capability = version, init, count, capability

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuDriverGetVersion(self) -> tuple:
        return OK, self.version

    def cuInit(self, flags: int) -> tuple:
        return (getattr(real.CUresult, self.init),)

    def cuDeviceGetCount(self) -> tuple:
        return OK, self.count

    def cuDeviceGet(self, ordinal: int) -> tuple:
        return OK, real.CUdevice(0)

    def cuDeviceGetName(self, length: int, device: Any) -> tuple:
        return OK, b"NVIDIA H200" + b"\0" * (length - 11)

    def cuDeviceGetPCIBusId(self, length: int, device: Any) -> tuple:
        return OK, b"0000:01:00.0" + b"\0" * 20

    def cuDeviceTotalMem(self, device: Any) -> tuple:
        return OK, 150_000_000_000

    def cuDeviceGetAttribute(self, attribute: Any, device: Any) -> tuple:
        values = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MULTIPROCESSOR_COUNT": 132,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
            "L2_CACHE_SIZE": 60 * 2**20,
            "CLOCK_RATE": 1980000,
            "MEMORY_CLOCK_RATE": 3201000,
            "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        }
        return OK, values[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Puts another machine in the place of this one."""

    def use(fake: Any) -> None:
        def load() -> Any:
            if isinstance(fake, Exception):
                raise fake
            return fake

        monkeypatch.setattr(driver, "load", load)
        cuda_probe.probe.cache_clear()

    yield use
    cuda_probe.probe.cache_clear()


def test_a_gpu_is_described(machine):
    machine(FakeMachine())
    assert cuda_probe.probe() == H200
    target = CudaTarget()
    assert (target.name, target.arch) == ("cuda:sm_90", "sm_90a")
    facts = target.facts()
    assert (facts.target, facts.name, facts.sms, facts.smem_per_block, facts.sm) == ("cuda:sm_90", "NVIDIA H200", 132, 232448, 90)


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (RuntimeError("Failed to dlopen libcuda.so.1"), ["no NVIDIA driver", "install the driver"]),
        (ImportError("no module"), ["cuda-bindings is not installed", 'pip install "kernelwright[cuda]"']),
        (FakeMachine(version=12040), ["supports CUDA 12.4", "13.0 or newer is needed", "update the driver to 580"]),
        (FakeMachine(init="CUDA_ERROR_NO_DEVICE"), ["no NVIDIA GPU is visible", "CUDA_VISIBLE_DEVICES"]),
        (FakeMachine(count=0), ["no NVIDIA GPU is visible"]),
        (FakeMachine(init="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), ["SYSTEM_DRIVER_MISMATCH", "nvidia-smi"]),
        (FakeMachine(capability=(5, 2)), ["compute capability 5.2", "cannot compile for"]),
    ],
)
def test_each_obstacle_is_one_sentence(machine, fake: Any, words: list[str]):
    machine(fake)
    reason = CudaTarget("sm_90").unavailable()
    assert reason is not None and "\n" not in reason
    assert all(word in reason for word in words), reason
    assert CudaTarget().name == "cuda"
    with pytest.raises(TargetUnavailable, match=re.escape(reason)):
        CudaTarget().facts()
    assert CudaTarget("sm_90").facts().sms == 132  # compiling goes on without the GPU


def test_newer_drivers_are_welcome(machine):
    machine(FakeMachine(version=14020))
    assert cuda_probe.probe().driver_cuda == (14, 2)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [("sm_90", (9, 0), True), ("sm_80", (9, 0), False), ("sm_80", (8, 6), True), ("sm_86", (8, 0), False), ("sm_90", (10, 0), False)],
)
def test_kernels_run_where_their_cubin_does(machine, monkeypatch: pytest.MonkeyPatch, arch: str, capability: tuple[int, int], runs: bool):
    monkeypatch.setattr(cuda_probe, "torch_without_cuda", lambda: None)
    machine(FakeMachine(capability=capability))
    reason = CudaTarget(arch).unavailable()
    assert (reason is None) == runs
    assert runs or f"kernels for {arch} do not run" in str(reason)


@pytest.mark.parametrize(("version", "reason"), [("2.13.0+cpu", "built without CUDA"), ("2.11.0+cu130", None), ("2.11.0", None)])
def test_pytorch_without_cuda_is_told_without_importing_it(monkeypatch: pytest.MonkeyPatch, version: str, reason: str | None):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    told = cuda_probe.torch_without_cuda()
    assert told is None if reason is None else reason in str(told)


def test_a_missing_compiler_makes_the_target_unavailable(machine, monkeypatch: pytest.MonkeyPatch):
    machine(FakeMachine())

    def missing() -> Any:
        raise TargetUnavailable(nvrtc.MISSING)

    monkeypatch.setattr(nvrtc, "load", missing)
    assert 'pip install "kernelwright[cuda]"' in str(CudaTarget("sm_90").unavailable())


# ---------------------------------------------------------------------------------------------------------------- limits


def test_the_ceilings_of_an_h200():
    peaks = roofline_cuda.ceilings(H200)
    assert peaks.flops["fp16"] == pytest.approx(1070.5e12, rel=1e-3)  # the data sheet's 989 are at 1.83 GHz
    assert peaks.flops["fp32"] == pytest.approx(66.9e12, rel=1e-3)
    assert peaks.bandwidth_cold == pytest.approx(4.917e12, rel=1e-3)
    assert peaks.bandwidth_warm == pytest.approx(3 * peaks.bandwidth_cold)


def test_sensors_can_only_raise_the_ceilings():
    base = roofline_cuda.ceilings(H200)
    assert roofline_cuda.ceilings(H200, sm_mhz=100, memory_mhz=100, bus_bits=10) == base
    assert roofline_cuda.ceilings(replace(H200, memory_mhz=0.0, bus_bits=0), memory_mhz=3201, bus_bits=6144) == base
    unknown = roofline_cuda.ceilings(replace(H200, sm=135))
    assert unknown.flops["fp16"] >= base.flops["fp16"]


def test_measured_peaks_are_measured_once(tmp_path: Path):
    calls = []

    def measure() -> tuple[float, dict[str, float]]:
        calls.append(1)
        return 4.2e12, {"fp16": 6.5e14}

    base = roofline_cuda.ceilings(H200)
    for _ in range(2):
        peaks = roofline_cuda.with_measured(base, H200, tmp_path / "peaks", measure)
        assert (peaks.measured_bandwidth, peaks.measured_flops) == (4.2e12, {"fp16": 6.5e14})
        assert peaks.bandwidth_cold == base.bandwidth_cold
    assert len(calls) == 1
    roofline_cuda.with_measured(base, replace(H200, name="NVIDIA H100"), tmp_path / "peaks", measure)
    assert len(calls) == 2
    for damaged in ("{", "[]", json.dumps({"bandwidth": "x", "flops": {}})):
        for file in (tmp_path / "peaks").glob("*.json"):
            file.write_text(damaged)
        roofline_cuda.with_measured(base, H200, tmp_path / "peaks", measure)
    assert len(calls) == 5


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path):
    (tmp_path / "file").write_text("")
    peaks = roofline_cuda.with_measured(roofline_cuda.ceilings(H200), H200, tmp_path / "file" / "peaks", lambda: (1.0, {}))
    assert peaks.measured_bandwidth == 1.0


# --------------------------------------------------------------------------------------------------------------- sensors


class FakeNvml(SimpleNamespace):
    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonSwThermalSlowdown, nvmlClocksThrottleReasonHwThermalSlowdown = 0x20, 0x40
    nvmlClocksThrottleReasonSwPowerCap, nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x4, 0x80

    def nvmlDeviceGetClockInfo(self, handle: Any, which: int) -> int:
        return {1: 1755, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 650500

    def nvmlDeviceGetTemperature(self, handle: Any, which: int) -> int:
        raise self.NVMLError

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return 0x20 | 0x4

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.159.03"


def test_sensors_are_read_and_missing_ones_left_out():
    nvml = Nvml(FakeNvml(), object())
    assert nvml.sensors() == {
        "SM MHz": 1755.0,
        "memory MHz": 3201.0,
        "power W": 650.5,
        "utilization %": 97.0,
        "thermal throttle": 1.0,
        "power throttle": 1.0,
    }
    assert nvml.driver_version() == "580.159.03"


def test_no_driver_means_no_sensors():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        pytest.skip("there is a driver here")
    except pynvml.NVMLError:
        assert Nvml.open("0000:01:00.0") is None


# ------------------------------------------------------------------------------------------------------------- libraries


def test_the_library_that_pytorch_has_mapped_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_libraries, "toolkit_folders", lambda: iter([tmp_path]))
    (tmp_path / "lib").mkdir()
    for name in ("libcublas.so.13", "libcublasLt.so.13"):
        (tmp_path / "lib" / name).write_text("")
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 00:00 1  /torch/lib/libcublasLt.so.13\n7f02-7f03 r-xp 0 00:00 1 /torch/lib/libcublas.so.13\n")
    found = list(cuda_libraries._candidates("cublas", maps))
    assert found == [Path("/torch/lib/libcublas.so.13"), tmp_path / "lib" / "libcublas.so.13"]


def test_every_launch_of_a_sample_has_a_set_of_its_own_within_half_a_gigabyte():
    device = object.__new__(cuda.CudaDevice)
    device.gpu = H200
    assert [device.cold_sets(size) for size in (0, 10**6, 10**7, 10**8, 10**9, 10**10)] == [10, 10, 10, 5, 1, 1]
    sets = [Bound({"x": torch.empty(size := 2**22, dtype=torch.uint8)}, {})] * 10
    assert device._warm_launches(sets) == min(10, H200.l2_bytes // 2 // size) and device._warm_launches(()) == 1
