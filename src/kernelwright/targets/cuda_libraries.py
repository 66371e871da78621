"""NVIDIA's host libraries (cuBLAS, cuBLASLt): the very copy that PyTorch uses, so that rivals are the library users have."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kernelwright.targets.nvrtc import toolkit_folders
from kernelwright.targets.target import TargetUnavailable


@cache
def load(stem: str) -> ctypes.CDLL:
    """`cublasLt` to the loaded libcublasLt.so. Raises TargetUnavailable."""
    for path in _candidates(stem, Path("/proc/self/maps")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue  # for another system, or without its own dependencies
    raise TargetUnavailable(f"lib{stem}.so was not found; it comes with PyTorch's CUDA build (package nvidia-cublas)")


def _candidates(stem: str, maps: Path) -> Iterator[Path]:
    """First what is mapped into this process, then NVIDIA's wheels and the toolkit."""
    if maps.is_file():
        yield from sorted({Path(p) for p in re.findall(rf"(/\S*/lib{stem}\.so\S*)", maps.read_text(errors="replace"))})
    for folder in toolkit_folders():
        for lib in ("lib", "lib64"):
            yield from sorted((folder / lib).glob(f"lib{stem}.so*"), reverse=True)


def cublaslt_version() -> str:
    """`13.1.0`; empty where the library is missing."""
    try:
        library = load("cublasLt")
    except TargetUnavailable:
        return ""
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    number = int(library.cublasLtGetVersion())  # major x 10000 + minor x 100 + patch
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
