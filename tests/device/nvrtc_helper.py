"""NVRTC and the disassembler without a GPU, for tests of device code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[2] / "src" / "kernelwright" / "device"


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    registers: dict[str, int]
    """By kernel."""
    spills: int
    """Bytes stored and loaded, all kernels."""


def compile(source: str, arch: str) -> Compiled:
    """A cubin for sm_NN; skips the test where NVRTC is missing, fails it with the compiler's words on an error."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    headers = {f"kernelwright/{p.name}": p.read_text() for p in sorted(DEVICE.glob("*.cuh"))}
    names, texts = [n.encode() for n in headers], [t.encode() for t in headers.values()]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"candidate.cu", len(headers), texts, names)
    options = [f"-arch={arch}".encode(), b"--ptxas-options=-v"]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace")
    assert int(error) == 0, text[:4000]
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    registers = {name: int(count) for name, count in re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", text, flags=re.DOTALL)}
    spills = sum(int(x) for x in re.findall(r"(\d+) bytes spill", text))
    return Compiled(cubin, registers, spills)


def disassemble(cubin: bytes) -> str:
    nvidia = pytest.importorskip("nvidia.cu13")
    tool = Path(next(iter(nvidia.__path__))) / "bin" / "nvdisasm"
    if not tool.exists():
        pytest.skip("nvdisasm is not installed (wheel nvidia-cuda-nvdisasm)")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(tool), "-c", file.name], capture_output=True, text=True, check=True).stdout
