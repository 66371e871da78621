"""The programs that measure the runtime, on a machine without a GPU: the CPU for the device, libraries of our own for cuBLAS."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "rivals"), str(ROOT / "tests" / "runtime")]


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    from stub_cublas import built

    return built(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def cpu(stub_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The CPU is the device. `seen`: what cuBLAS and cuBLASLt were asked; `tuned`: how often an algorithm was looked for."""
    import contenders
    import measuring
    from stub_cublas import Seen

    from kernelwright.rivals import cublas, cublaslt
    from kernelwright.targets import cublaslt as binding

    space = torch.empty(4096, dtype=torch.uint8)
    state = SimpleNamespace(tuned=0, space=space)

    def tune(problem, sets):
        state.tuned += 1
        return problem.algorithms(3)[-1]

    for module in (cublas, binding):
        monkeypatch.setattr(module, "load_library", lambda stem: stub_library)
    for module in (cublas, cublaslt):
        monkeypatch.setattr(module, "workspace", lambda: space)
    monkeypatch.setattr(cublaslt, "_tune", tune)
    monkeypatch.setattr(measuring, "device", lambda: "cpu")
    monkeypatch.setattr(measuring, "_switches", lambda: 0)  # a busy machine takes the core away so often that no sample would be left
    monkeypatch.setattr(contenders, "device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    caches = (cublas._handle, binding.library)
    for one in caches:
        one.cache_clear()
    stub_library.stub_seen.restype = ctypes.POINTER(Seen)
    state.seen = stub_library.stub_seen().contents
    yield state
    for one in caches:
        one.cache_clear()
