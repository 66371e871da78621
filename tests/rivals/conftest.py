"""cuBLAS and cuBLASLt by a library of our own, for tests without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from stub_cublas import Seen, built

from kernelwright.rivals import cublas, cublaslt
from kernelwright.targets import cublaslt as binding


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def stub(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    caches = (cublas._handle, cublas.workspace, binding.library)
    for module in (cublas, binding):
        monkeypatch.setattr(module, "load_library", lambda stem: library)
    for module in (cublas, cublaslt):
        monkeypatch.setattr(module, "workspace", lambda: torch.empty(4096, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=64))
    for one in caches:
        one.cache_clear()
    library.stub_seen.restype = ctypes.POINTER(Seen)
    yield library.stub_seen().contents
    for one in caches:
        one.cache_clear()
