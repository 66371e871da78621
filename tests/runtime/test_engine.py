"""kw.matmul from end to end on a driver that records its launches: a pack's real kernels, the dispatcher, the launcher, torch where it is
torch's turn."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from server import tensors

from kernelwright.runtime import api, engine, models, pack

CPU = torch.device("cpu")


def test_a_measured_product_is_launched_and_thought_about_once(serving):
    a, b = tensors((64, 64), (64, 32))
    for _ in range(3):
        out = torch.empty(64, 32, dtype=torch.float16)
        assert api.matmul(a, b, out=out) is out
        assert api.matmul(*tensors((64, 64), (64, 32))).shape == (64, 32)
    assert len(serving.cuda.launches()) == 6 and serving.met == 1
    addresses = bytes(serving.cuda.launches()[4].params)
    assert out.data_ptr().to_bytes(8, "little") in addresses and a.data_ptr().to_bytes(8, "little") in addresses


def test_layouts_and_dtypes_have_kernels_of_their_own(serving):
    a, b = tensors((64, 64), (32, 64), dtype=torch.bfloat16)
    api.matmul(a, b.t())
    assert len(serving.cuda.launches()) == 1
    functions = {serving.cuda.launches()[0].function}
    api.matmul(*tensors((64, 64), (64, 32)))
    functions.add(serving.cuda.launches()[1].function)
    assert len(functions) == 2
    got = api.matmul(a, b.t().contiguous())  # bf16 nn: the pack has no such kernel
    assert torch.equal(got, a @ b.t()) and len(serving.cuda.launches()) == 2


def test_a_layer_with_its_epilogue(serving):
    x, weight, bias = tensors((64, 64), (32, 64), (32,))
    assert api.linear(x, weight, bias, "gelu").shape == (64, 32)
    assert api.linear(x.view(4, 16, 64), weight, bias, "gelu").shape == (4, 16, 32)
    assert len(serving.cuda.launches()) == 2 and serving.met == 1, "a stack of rows is the same product"
    want = torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))
    assert torch.equal(api.linear(x, weight, bias, "silu"), want), "no kernel with this epilogue"
    assert len(serving.cuda.launches()) == 2


def test_what_no_kernel_takes_is_torchs_and_asked_about_once(serving):
    wide, b = tensors((64, 65), (64, 32))
    a = wide[:, :64]  # rows at odd multiples of two bytes
    for _ in range(2):
        assert torch.equal(api.matmul(a, b), a @ b)
    assert serving.met == 1 and not serving.cuda.launches()
    empty, nothing = tensors((0, 64), (64, 32))
    assert api.matmul(empty, nothing).shape == (0, 32) and not serving.cuda.launches()


def test_a_driver_that_refuses_leaves_the_rest_to_torch(serving):
    a, b = tensors((64, 64), (64, 32))
    api.matmul(a, b)
    serving.cuda.lib.fake_fail(1, 0)
    with pytest.warns(RuntimeWarning, match="leaves cpu to PyTorch from now on: launching: invalid argument"):
        assert torch.equal(api.matmul(a, b), a @ b)
    serving.cuda.lib.fake_fail(0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(api.matmul(a, b), a @ b)
    assert len(serving.cuda.launches()) == 1


def test_a_pack_used_later_is_not_served_by_the_kernels_of_an_earlier(serving, served, monkeypatch):
    a, b = tensors((64, 64), (64, 32))
    api.matmul(a, b)
    other = pack.Pack(served.path, served.manifest.replace(checksum="another", entries=()))
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engine, "_engines", {CPU: serving.engine})
    monkeypatch.setattr(engine, "_open", lambda device: engine.Engine(other, device, serving.engine._launcher, 132))
    engine.use(served.path)
    for _ in range(2):
        assert torch.equal(api.matmul(a, b), a @ b) and len(serving.cuda.launches()) == 1
    out = torch.empty(64, 32, dtype=torch.float16)
    serving.engine.serve(a, b, out, "", None)  # a call that was under way in another thread learns nothing for the new pack
    assert torch.equal(api.matmul(a, b), a @ b)


def test_a_kernel_whose_file_is_gone_is_left_to_torch(serving, monkeypatch):
    def gone(artifact, device):
        raise FileNotFoundError(artifact)

    monkeypatch.setattr(serving.engine._launcher, "kernels", gone)
    a, b = tensors((64, 64), (64, 32))
    assert torch.equal(api.matmul(a, b), a @ b) and not serving.cuda.launches()


def test_another_stream_gets_its_workspace_without_choosing_again(serving):
    a, b = tensors((256, 4096), (4096, 256))
    for stream in (1, 2, 1, 2):
        serving.cuda.lib.fake_stream(stream)
        api.matmul(a, b)
    assert len(serving.cuda.launches()) == 4 and serving.met == 1
    assert {one.stream for one in serving.cuda.launches()} == {1, 2}


def test_explain(serving):
    a, b = tensors((64, 64), (64, 32))
    assert api.explain(a, b).startswith("gemm:64x32x64:fp16:nn calls kernel ") and "(measured)" in api.explain(a, b)
    assert "torch.matmul: ours multiply" in api.explain(a, b.float())
    assert "strides" in api.explain(tensors((128, 128))[0][::2, ::2], b)
    with api.disabled():
        assert "disabled" in api.explain(a, b)
    assert "library (fallback)" in api.explain(*tensors((64, 64), (64, 48)))


def test_a_models_report_says_what_each_layer_calls(serving):
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(64, 32, bias=False), linear(64, 32, bias=False), linear(64, 32)).bfloat16()
    report = models.accelerate(model)
    said = report.explain(tokens=(64, 3)).splitlines()
    assert said[:2] == ["64 tokens: a kernel for 2 of 3 layers", "3 tokens: a kernel for 0 of 3 layers"]
    assert said[2] == "2 x 64 -> 32 bfloat16: *" and said[3].startswith("  gemm:64x32x64:bf16:nt calls kernel ") and "(measured)" in said[3]
    assert said[5] == "1 x 64 -> 32 bfloat16 with bias: *" and "the pack has no kernel for linear bf16 nt bias" in said[6]
    with torch.no_grad():
        assert model[0](tensors((64, 64), dtype=torch.bfloat16)[0]).shape == (64, 32)
    assert len(serving.cuda.launches()) == 1, "what was said is what happens"


def test_without_a_pack_or_a_gpu_torch_is_alone(monkeypatch):
    monkeypatch.setattr(engine, "_engines", {})
    a, b = tensors((64, 64), (64, 32))
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
