"""cuBLAS and cuBLASLt by a library of our own, for tests without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from stub_cublas import STUB, Seen

from kernelwright.rivals import cublas, cublaslt


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.cpp").write_text(STUB)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "stub.so"), str(folder / "stub.cpp")], check=True)
    return ctypes.CDLL(str(folder / "stub.so"))


@pytest.fixture
def stub(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    caches = (cublas._handle, cublas.workspace, cublaslt.library)
    for module in (cublas, cublaslt):
        monkeypatch.setattr(module, "load_library", lambda stem: library)
        monkeypatch.setattr(module, "workspace", lambda: torch.empty(4096, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=64))
    for one in caches:
        one.cache_clear()
    library.stub_seen.restype = ctypes.POINTER(Seen)
    yield library.stub_seen().contents
    for one in caches:
        one.cache_clear()
