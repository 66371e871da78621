"""The CUDA target: candidates compiled by NVRTC to cubins, launched by the driver from their plans, clocked by CUDA graphs.

Compiling needs neither GPU nor driver. The opened device shares PyTorch's context and streams, so that rivals and candidates run alike.
"""

from __future__ import annotations

import platform
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwright.families.family import DeviceFacts
from kernelwright.records import Build, Candidate, Environment, Outcome, Workload
from kernelwright.settings import settings
from kernelwright.targets import cuda_probe, driver, nvrtc, roofline_cuda, sandbox
from kernelwright.targets.cuda_libraries import cublaslt_version
from kernelwright.targets.cuda_probe import Gpu
from kernelwright.targets.nvml import Nvml
from kernelwright.targets.target import Bound, CandidateFault, Contender, Device, Peaks, Run, Target, TargetUnavailable

OFFLINE = {
    80: DeviceFacts(target="cuda:sm_80", name="NVIDIA A100", sms=108, smem_per_block=163 * 1024, l2_bytes=40 * 2**20),
    90: DeviceFacts(target="cuda:sm_90", name="NVIDIA H200", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20),
}
"""What is assumed of an architecture where no such GPU is there: enough to write and compile kernels for it."""

COLD_SETS = 10
"""Sets of a small Workload: 10 launches a graph bring the start of the graph (about 1 us) below what is told apart."""
COLD_BYTES = 2**29
"""Of all sets: fresh inputs are drawn for each of them in every round."""
MODULES = 32
"""Loaded cubins kept: the ladder loads the same one for many shapes."""


class CudaTarget(Target):
    """`CudaTarget()` is the GPU that is there; `CudaTarget("sm_90")` names an architecture, to compile for it anywhere."""

    name = "cuda"
    kind = "cuda"

    def __init__(self, arch: str | None = None):
        self._sm = None
        if arch is not None:
            match = re.fullmatch(r"sm_(\d{2,3})a?", arch)
            if match is None:
                raise ValueError(f"unknown CUDA architecture {arch!r}; write it like sm_80 or sm_90")
            self._sm = int(match[1])
        elif (gpu := self._gpu()) is not None:
            self._sm = gpu.sm
        if self._sm is not None:
            # named in full, so that compiling processes need not ask the driver
            self.name = f"cuda:sm_{self._sm}"  # pyright: ignore[reportAttributeAccessIssue]

    @staticmethod
    def _gpu() -> Gpu | None:
        try:
            return cuda_probe.probe()
        except TargetUnavailable:
            return None

    def unavailable(self) -> str | None:
        try:
            gpu = cuda_probe.probe()
        except TargetUnavailable as error:
            return str(error)
        if self._sm is not None and not _runs(self._sm, gpu.sm):
            return f"kernels for sm_{self._sm} do not run on the {gpu.name} here, which is sm_{gpu.sm}; use target cuda:sm_{gpu.sm}"
        return cuda_probe.torch_without_cuda()

    def facts(self) -> DeviceFacts:
        """Of the GPU that is there; else of the usual data-centre GPU of the architecture. Raises TargetUnavailable."""
        gpu = self._gpu()
        if gpu is not None and (self._sm is None or _runs(self._sm, gpu.sm)):
            return DeviceFacts(target=self.name, name=gpu.name, sms=gpu.sms, smem_per_block=gpu.smem, l2_bytes=gpu.l2_bytes)
        if self._sm in OFFLINE:
            return OFFLINE[self._sm]
        if self._sm is None:
            raise TargetUnavailable(self.unavailable() or "no GPU; name an architecture, cuda:sm_90 or cuda:sm_80, to compile for it")
        raise TargetUnavailable(f"nothing is known of sm_{self._sm} without such a GPU; use cuda:sm_80 or cuda:sm_90 to compile only")

    @property
    def arch(self) -> str:
        """NVRTC's name of it: `sm_90a`."""
        if self._sm is None:
            raise TargetUnavailable(self.unavailable() or "no GPU; name an architecture, cuda:sm_90 or cuda:sm_80, to compile for it")
        return nvrtc.architecture(self._sm)

    def build_key(self, candidate: Candidate) -> str:
        return nvrtc.key(candidate.source, self.arch, candidate.flags)

    def compile(self, candidate: Candidate, directory: Path) -> Build:
        started = time.monotonic()
        cubin, log = nvrtc.compile_cubin(candidate.source, self.arch, candidate.flags)
        resources, remarks = nvrtc.parse_resources(log)
        artifact = directory / "kernel.cubin"
        artifact.write_bytes(cubin)
        return Build(
            key=self.build_key(candidate),
            artifact=str(artifact),
            compiler="NVRTC {}.{}".format(*nvrtc.version()),
            arch=self.arch,
            resources=resources,
            seconds=time.monotonic() - started,
            log=nvrtc.shorten(remarks),
        )

    def open(self) -> CudaDevice:
        if reason := self.unavailable():
            raise TargetUnavailable(reason)
        return CudaDevice(cuda_probe.probe())


def _runs(compiled: int, device: int) -> bool:
    """Whether a cubin runs: of the same major version and no newer; the `a` forms from sm_90 on only on their own chip."""
    return compiled == device if compiled >= 90 else compiled // 10 == device // 10 and compiled <= device


class CudaDevice(Device):
    torch_device = "cuda"

    def __init__(self, gpu: Gpu):
        import torch

        from kernelwright.targets.cuda_chain import Predecessor
        from kernelwright.targets.cuda_clock import Clock

        self._torch = torch
        self.gpu = gpu
        if not torch.cuda.is_available():
            raise TargetUnavailable(f"PyTorch {torch.__version__} does not see the {gpu.name}: install a build with CUDA")
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the primary context, current on this thread from here on
        self.bindings = driver.load()
        self._nvml = Nvml.open(gpu.pci_bus_id)
        self._limits = self._nvml.limits() if self._nvml else {}
        self.clock = Clock(self.bindings, gpu.l2_bytes)
        self._predecessor = Predecessor(self.bindings, gpu.sm, gpu.smem) if gpu.sm >= 90 else None
        self._modules: OrderedDict[str, _Loaded] = OrderedDict()
        self._peaks: Peaks | None = None

    def environment(self) -> Environment:
        torch, gpu = self._torch, self.gpu
        facts: dict[str, str | int | float] = {
            "SMs": gpu.sms,
            "memory GB": round(gpu.memory_bytes / 1e9, 1),
            "L2 bytes": gpu.l2_bytes,
            "driver": self._nvml.driver_version() if self._nvml else "",
            # device code needs no more; a Python candidate's process has its own, without a limit of the address space
            "isolation": f"own process; Python candidates: {sandbox.isolation(sandbox.probe())} after the first run",
            **self._limits,
        }
        return Environment(
            target=f"cuda:sm_{gpu.sm}",
            device=gpu.name,
            facts=facts,
            versions={
                "kernelwright": _own_version(),
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "CUDA driver": "{}.{}".format(*gpu.driver_cuda),
                "CUDA runtime": str(torch.version.cuda),
                "compiler": "NVRTC {}.{}".format(*nvrtc.version()),
                "cuBLASLt": cublaslt_version(),
            },
            host=f"{platform.system()} {platform.release()} {platform.machine()}, {socket.gethostname()}",
        )

    def peaks(self) -> Peaks:
        if self._peaks is None:
            limits = self._limits
            ceilings = roofline_cuda.ceilings(
                self.gpu,
                sm_mhz=limits.get("max SM MHz", 0.0),
                memory_mhz=limits.get("max memory MHz", 0.0),
                bus_bits=int(limits.get("memory bus bits", 0)),
            )
            self._peaks = roofline_cuda.with_measured(ceilings, self.gpu, settings().peaks, roofline_cuda.measure_on_gpu)
        return self._peaks

    def allocate(self, size: int) -> Any:
        with self.clock.faults(f"buffers of {size / 1e6:.0f} MB"):
            # the caching allocator's blocks start at multiples of 512 bytes
            return self._torch.empty(max(size, 1), dtype=self._torch.uint8, device="cuda")[:size]

    def load(self, candidate: Candidate, build: Build | None, w: Workload, sets: Sequence[Bound]) -> Contender:
        from kernelwright.targets.cuda_contender import Program, not_runnable

        if candidate.kind == "python":
            from kernelwright.targets.answer_process import AnswerProcess

            return AnswerProcess(candidate.source, w, sets, device="cuda", prepare=self.clock.prepare)
        if candidate.kind != "cuda" or candidate.plan is None or build is None:
            raise not_runnable(candidate.kind)
        module, release = self._module(build)
        try:
            return Program(
                self.clock,
                candidate.plan,
                module,
                sets,
                allocate=self.allocate,
                release=release,
                warm_launches=self._warm_launches(sets),
                predecessor=self._predecessor,
            )
        except CandidateFault as error:
            release()
            if error.outcome is Outcome.LAUNCH_ERROR and "CUDA_ERROR_NOT_FOUND" in error.evidence:
                names = ", ".join(build.resources) or "none"
                raise CandidateFault(Outcome.LAUNCH_ERROR, f"{error.evidence}; the source's kernels are: {names}") from None
            raise

    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> Contender:
        from kernelwright.targets.cuda_contender import Trusted

        return Trusted(self.clock, runs, setup, self._warm_launches(sets))

    def _module(self, build: Build) -> tuple[driver.Module, Callable[[], None]]:
        """The loaded cubin, and what gives it back."""
        loaded = self._modules.get(build.artifact)
        if loaded is None:
            cubin = Path(build.artifact).read_bytes()
            module = driver.Module(self.bindings, cubin, sm=self.gpu.sm, smem=self.gpu.smem)
            loaded = self._modules[build.artifact] = _Loaded(module)
        self._modules.move_to_end(build.artifact)
        loaded.users += 1
        unused = [key for key, one in self._modules.items() if one.users == 0]
        for key in unused[: max(0, len(self._modules) - MODULES)]:
            self._modules.pop(key).module.unload()

        def release() -> None:
            loaded.users -= 1

        return loaded.module, release

    def synchronize(self) -> None:
        self.clock.synchronize()

    def cold_sets(self, set_bytes: int) -> int:
        """One for each launch of a sample: a second launch on the same inputs could find that there is nothing left to do. Fewer for a
        large Workload, one launch of which takes so long (50 us for 256 MB) that the start of the graph does not matter."""
        return max(1, min(COLD_SETS, COLD_BYTES // max(1, set_bytes)))

    def sets(self, set_bytes: int, modes: Collection[str]) -> int:
        return self.cold_sets(set_bytes) if modes else 1

    def _warm_launches(self, sets: Sequence[Bound]) -> int:
        """As many as there are sets of buffers that stay in the L2 together, with room for what else a kernel uses."""
        size = sum(t.numel() * t.element_size() for t in sets[0].tensors.values()) if sets else 1
        return max(1, min(len(sets), self.gpu.l2_bytes // 2 // max(1, size)))

    def sensors(self) -> dict[str, float]:
        return self._nvml.sensors() if self._nvml else {}

    def close(self) -> None:
        """Never fails: after a fault the driver refuses to unload, and that would hide why."""
        for loaded in self._modules.values():
            with suppress(CandidateFault):
                loaded.module.unload()
        self._modules.clear()
        if self._predecessor is not None:
            with suppress(CandidateFault):
                self._predecessor.close()


class _Loaded:
    """A module with the number of contenders that use it."""

    def __init__(self, module: driver.Module):
        self.module, self.users = module, 0


def _own_version() -> str:
    import kernelwright

    return kernelwright.__version__
