"""Which NVIDIA GPU is there, and why it cannot be used: asked of the driver alone, without PyTorch and without a context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from kernelwright.targets import driver, nvrtc
from kernelwright.targets.driver import call
from kernelwright.targets.target import TargetUnavailable

EXTRA = 'pip install "kernelwright[cuda]"'


@dataclass(frozen=True)
class Gpu:
    """The first visible GPU."""

    name: str
    sm: int
    """90 for compute capability 9.0."""
    sms: int
    smem: int
    """Most shared memory of one block on request, bytes."""
    l2_bytes: int
    memory_bytes: int
    sm_mhz: float
    """Highest clock."""
    memory_mhz: float
    bus_bits: int
    driver_cuda: tuple[int, int]
    """Newest CUDA that the driver supports."""
    pci_bus_id: str


@cache
def probe() -> Gpu:
    """Raises TargetUnavailable with the reason and the fix. Initializes the driver: a process that forks afterwards cannot use CUDA in
    the child."""
    bindings = _bindings()
    major, _ = nvrtc.version()
    found = divmod(int(call("the driver", bindings.cuDriverGetVersion())), 1000)
    supported = (found[0], found[1] // 10)
    if supported < (major, 0):
        raise TargetUnavailable(
            f"the NVIDIA driver supports CUDA {supported[0]}.{supported[1]}, but CUDA {major}.0 or newer is needed: update the driver"
            + (" to 580 or newer" if major == 13 else "")
        )
    status = bindings.cuInit(0)[0]
    if int(status) != 0 and status.name != "CUDA_ERROR_NO_DEVICE":
        raise TargetUnavailable(f"the NVIDIA driver does not start ({status.name}): check that nvidia-smi works")
    if int(status) != 0 or call("the driver", bindings.cuDeviceGetCount()) < 1:
        raise TargetUnavailable("no NVIDIA GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES")
    gpu = _describe(bindings, supported)
    known = nvrtc.architectures()
    if gpu.sm not in known:
        raise TargetUnavailable(
            f"{gpu.name} has compute capability {gpu.sm // 10}.{gpu.sm % 10}, which NVRTC {major} cannot compile for "
            f"(it knows sm_{known[0]} to sm_{known[-1]})"
        )
    return gpu


def _bindings() -> Any:
    try:
        return driver.load()
    except ImportError:
        raise TargetUnavailable(f"the package cuda-bindings is not installed; install it with: {EXTRA}") from None
    except RuntimeError:
        raise TargetUnavailable("there is no NVIDIA driver on this machine (libcuda.so.1 is missing): install the driver") from None


def _describe(bindings: Any, supported: tuple[int, int]) -> Gpu:
    device = call("the driver", bindings.cuDeviceGet(0))
    attribute = bindings.CUdevice_attribute

    def get(name: str) -> int:
        return call("the driver", bindings.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    def text(raw: bytes) -> str:
        return raw.split(b"\0", 1)[0].decode()

    return Gpu(
        name=text(call("the driver", bindings.cuDeviceGetName(128, device))),
        sm=10 * get("COMPUTE_CAPABILITY_MAJOR") + get("COMPUTE_CAPABILITY_MINOR"),
        sms=get("MULTIPROCESSOR_COUNT"),
        smem=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=get("L2_CACHE_SIZE"),
        memory_bytes=int(call("the driver", bindings.cuDeviceTotalMem(device))),
        sm_mhz=get("CLOCK_RATE") / 1000,
        memory_mhz=get("MEMORY_CLOCK_RATE") / 1000,
        bus_bits=get("GLOBAL_MEMORY_BUS_WIDTH"),
        driver_cuda=supported,
        pci_bus_id=text(call("the driver", bindings.cuDeviceGetPCIBusId(32, device))),
    )


def torch_without_cuda() -> str | None:
    """Why the installed PyTorch cannot use a GPU; None if it can, as far as its version tells."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "PyTorch is not installed; install a build with CUDA (https://pytorch.org/get-started)"
    if version.endswith("+cpu"):
        return f"PyTorch {version} is built without CUDA; install a build with CUDA (https://pytorch.org/get-started)"
    return None
