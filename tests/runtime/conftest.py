from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda, kernels
from server import Server

from kernelwright.families import DeviceFacts, family
from kernelwright.problems import resolve
from kernelwright.records import Environment
from kernelwright.runtime import engine, ops, pack, pins
from kernelwright.runtime.launcher import Launcher
from kernelwright.targets.launch import TENSOR_MAP_BYTES
from made_up import made_up_pack

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
ENVIRONMENT = Environment(target="cuda:sm_90", device="NVIDIA H200", host="made up by a test")
CPU = torch.device("cpu")
SIZES = {"tensormap": TENSOR_MAP_BYTES, "scalar": 4}
SERVED = ("gemm:64x32x64:fp16:nn", "gemm:64x32x64:bf16:nt", "linear:64x32x64:fp16:nt:bias+gelu")
SPLIT = "gemm:256x256x4096:fp16:nn"
"""Its kernel's parts of K meet in a workspace."""


@pytest.fixture(scope="session")
def cuda(tmp_path_factory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> pack.Pack:
    pytest.importorskip("cuda.bindings.nvrtc")
    made = []
    for name in SERVED:
        w, whole_k = resolve(name), family("gemm_sm90_whole_k")
        made.append((name, whole_k.render(whole_k.seeds(w, H200)[0], w, H200)))
    w, persistent = resolve(SPLIT), family("gemm_sm90_persistent")
    config = next(c | {"split_k": 4} for c in persistent.seeds(w, H200) if persistent.illegal(c | {"split_k": 4}, w, H200) is None)
    made.append((SPLIT, persistent.render(config, w, H200)))
    return made_up_pack(tmp_path_factory.mktemp("pack") / "p", "cuda:sm_90", ENVIRONMENT, made)


@pytest.fixture
def serving(cuda: FakeCuda, served: pack.Pack, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine that takes this machine's memory for an H200's. `met` counts how often it had to think."""
    cuda.lib.fake_reset()
    launcher = Launcher(str(cuda.path), cuda.exchange())
    plan = served.entries[0].plan
    assert plan is not None
    of = {str(served.artifact(e)): e.plan for e in served.entries}

    def recorded(artifact, device):
        launch = of[str(artifact)].launches[0]
        sizes = [{"i32": 4, "i64": 8, "f32": 4}[a.ctype] if a.__struct_config__.tag == "scalar" else SIZES.get(a.__struct_config__.tag, 8)
                 for a in launch.args]  # fmt: skip
        return kernels(cuda, {launch.kernel: sizes})

    monkeypatch.setattr(launcher, "kernels", recorded)
    one = engine.Engine(served, CPU, launcher, 132, pins.environment(served, "cuda:sm_90", "NVIDIA H200"))
    state = SimpleNamespace(engine=one, cuda=cuda, met=0)
    choose = one.dispatcher.choose

    def counted(*arguments):
        state.met += 1
        return choose(*arguments)

    monkeypatch.setattr(one.dispatcher, "choose", counted)
    monkeypatch.setitem(engine._engines, CPU, one)
    monkeypatch.setattr(ops, "serve", engine.serve)
    for name in ("fast", "numbers"):
        monkeypatch.setattr(ops, name, getattr(ops, name))
    one.hasten()
    yield state
    launcher._core.release()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Serves every product that operators ask for."""
    made = Server()
    monkeypatch.setattr(ops, "serve", made)
    monkeypatch.setattr(ops, "fast", ops.unknown)
    return made
