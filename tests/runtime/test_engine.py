"""kw.matmul from end to end on a driver that records its launches: a pack's real kernels, the dispatcher, the launcher, torch where it is
torch's turn."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda, kernels

from kernelwright.families import DeviceFacts, family
from kernelwright.problems import resolve
from kernelwright.records import Environment
from kernelwright.runtime import api, engine, models, ops, pack
from kernelwright.runtime.launcher import Launcher
from kernelwright.targets.launch import TENSOR_MAP_BYTES
from made_up import made_up_pack

pytest.importorskip("cuda.bindings.nvrtc")

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
ENVIRONMENT = Environment(target="cuda:sm_90", device="NVIDIA H200", host="made up by a test")
CPU = torch.device("cpu")
SIZES = {"tensormap": TENSOR_MAP_BYTES, "scalar": 4}
SERVED = ("gemm:64x32x64:fp16:nn", "gemm:64x32x64:bf16:nt", "linear:64x32x64:fp16:nt:bias+gelu")
SPLIT = "gemm:256x256x4096:fp16:nn"
"""Its kernel's parts of K meet in a workspace."""


@pytest.fixture(scope="module")
def cuda(tmp_path_factory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> pack.Pack:
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
    one = engine.Engine(served, CPU, launcher, 132)
    state = SimpleNamespace(engine=one, cuda=cuda, met=0)
    choose = one.dispatcher.choose

    def counted(*arguments):
        state.met += 1
        return choose(*arguments)

    monkeypatch.setattr(one.dispatcher, "choose", counted)
    monkeypatch.setitem(engine._engines, CPU, one)
    monkeypatch.setattr(ops, "serve", engine.serve)
    yield state
    launcher._core.release()


def halves(*shapes, dtype=torch.float16):
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=rng).to(dtype) for s in shapes]


def test_a_measured_product_is_launched_and_thought_about_once(serving):
    a, b = halves((64, 64), (64, 32))
    for _ in range(3):
        out = torch.empty(64, 32, dtype=torch.float16)
        assert api.matmul(a, b, out=out) is out
        assert api.matmul(*halves((64, 64), (64, 32))).shape == (64, 32)
    assert len(serving.cuda.launches()) == 6 and serving.met == 1
    addresses = bytes(serving.cuda.launches()[4].params)
    assert out.data_ptr().to_bytes(8, "little") in addresses and a.data_ptr().to_bytes(8, "little") in addresses


def test_layouts_and_dtypes_have_kernels_of_their_own(serving):
    a, b = halves((64, 64), (32, 64), dtype=torch.bfloat16)
    api.matmul(a, b.t())
    assert len(serving.cuda.launches()) == 1
    functions = {serving.cuda.launches()[0].function}
    api.matmul(*halves((64, 64), (64, 32)))
    functions.add(serving.cuda.launches()[1].function)
    assert len(functions) == 2
    got = api.matmul(a, b.t().contiguous())  # bf16 nn: the pack has no such kernel
    assert torch.equal(got, a @ b.t()) and len(serving.cuda.launches()) == 2


def test_a_layer_with_its_epilogue(serving):
    x, weight, bias = halves((64, 64), (32, 64), (32,))
    assert api.linear(x, weight, bias, "gelu").shape == (64, 32)
    assert api.linear(x.view(4, 16, 64), weight, bias, "gelu").shape == (4, 16, 32)
    assert len(serving.cuda.launches()) == 2 and serving.met == 1, "a stack of rows is the same product"
    want = torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))
    assert torch.equal(api.linear(x, weight, bias, "silu"), want), "no kernel with this epilogue"
    assert len(serving.cuda.launches()) == 2


def test_what_no_kernel_takes_is_torchs_and_asked_about_once(serving):
    wide, b = halves((64, 65), (64, 32))
    a = wide[:, :64]  # rows at odd multiples of two bytes
    for _ in range(2):
        assert torch.equal(api.matmul(a, b), a @ b)
    assert serving.met == 1 and not serving.cuda.launches()
    empty, nothing = halves((0, 64), (64, 32))
    assert api.matmul(empty, nothing).shape == (0, 32) and not serving.cuda.launches()


def test_a_driver_that_refuses_leaves_the_rest_to_torch(serving):
    a, b = halves((64, 64), (64, 32))
    api.matmul(a, b)
    serving.cuda.lib.fake_fail(1, 0)
    with pytest.warns(RuntimeWarning, match="leaves cpu to PyTorch from now on: launching: invalid argument"):
        assert torch.equal(api.matmul(a, b), a @ b)
    serving.cuda.lib.fake_fail(0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(api.matmul(a, b), a @ b)
    assert len(serving.cuda.launches()) == 1


def test_a_pack_used_later_is_not_served_by_the_kernels_of_an_earlier(serving, served):
    a, b = halves((64, 64), (64, 32))
    api.matmul(a, b)
    other = pack.Pack(served.path, served.manifest.replace(checksum="another", entries=()))
    engine._engines[CPU] = engine.Engine(other, CPU, serving.engine._launcher, 132)
    assert torch.equal(api.matmul(a, b), a @ b) and len(serving.cuda.launches()) == 1


def test_a_kernel_whose_file_is_gone_is_left_to_torch(serving, monkeypatch):
    def gone(artifact, device):
        raise FileNotFoundError(artifact)

    monkeypatch.setattr(serving.engine._launcher, "kernels", gone)
    a, b = halves((64, 64), (64, 32))
    assert torch.equal(api.matmul(a, b), a @ b) and not serving.cuda.launches()


def test_another_stream_gets_its_workspace_without_choosing_again(serving):
    a, b = halves((256, 4096), (4096, 256))
    for stream in (1, 2, 1, 2):
        serving.cuda.lib.fake_stream(stream)
        api.matmul(a, b)
    assert len(serving.cuda.launches()) == 4 and serving.met == 1
    assert {one.stream for one in serving.cuda.launches()} == {1, 2}


def test_explain(serving):
    a, b = halves((64, 64), (64, 32))
    assert api.explain(a, b).startswith("gemm:64x32x64:fp16:nn calls kernel ") and "(measured)" in api.explain(a, b)
    assert "torch.matmul: ours multiply" in api.explain(a, b.float())
    assert "strides" in api.explain(halves((128, 128))[0][::2, ::2], b)
    with api.disabled():
        assert "disabled" in api.explain(a, b)
    assert "library (fallback)" in api.explain(*halves((64, 64), (64, 48)))


def test_a_models_report_says_what_each_layer_calls(serving):
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(64, 32, bias=False), linear(64, 32, bias=False), linear(64, 32)).bfloat16()
    report = models.accelerate(model)
    said = report.explain(tokens=(64, 3)).splitlines()
    assert said[:2] == ["64 tokens: a kernel for 2 of 3 layers", "3 tokens: a kernel for 0 of 3 layers"]
    assert said[2] == "2 x 64 -> 32 bfloat16: *" and said[3].startswith("  gemm:64x32x64:bf16:nt calls kernel ") and "(measured)" in said[3]
    assert said[5] == "1 x 64 -> 32 bfloat16 with bias: *" and "the pack has no kernel for linear bf16 nt bias" in said[6]
    with torch.no_grad():
        assert model[0](halves((64, 64), dtype=torch.bfloat16)[0]).shape == (64, 32)
    assert len(serving.cuda.launches()) == 1, "what was said is what happens"


def test_without_a_pack_or_a_gpu_torch_is_alone(monkeypatch):
    monkeypatch.setattr(engine, "_engines", {})
    a, b = halves((64, 64), (64, 32))
    assert engine.of(CPU) is None and torch.equal(api.matmul(a, b), a @ b)
    assert "no pack serves cpu; name one with kw.use" in api.explain(a, b)


def test_only_packs_can_be_used(served, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engine, "_engines", {CPU: None})
    with pytest.raises(pack.PackError, match="is not a pack"):
        api.use(tmp_path)
    assert engine._paths == [] and engine._engines == {CPU: None}
    api.use(served.path)
    assert engine._paths == [served.path] and engine._engines == {}


def test_the_pack_of_the_environment_serves_the_gpus_that_it_fits(served, monkeypatch, tmp_path):
    """The last way in: no kw.use, KERNELWRIGHT_PACK as it was read when the engine was imported."""
    gpu = SimpleNamespace(major=9, minor=0, name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(engine, "open_launcher", lambda: SimpleNamespace(launch=None))
    monkeypatch.setattr(engine, "_paths", [])
    assert engine._open(torch.device("cuda", 0)) is None and engine.used() == ()
    monkeypatch.setattr(engine, "_paths", [served.path])
    opened = engine._open(torch.device("cuda", 0))
    assert opened is not None and opened.pack.path == served.path and engine.used() == (served.path,)
    monkeypatch.setattr(engine, "_paths", [tmp_path / "none"])
    with pytest.warns(RuntimeWarning, match="leaves cuda:0 to PyTorch"):
        assert engine._open(torch.device("cuda", 0)) is None
