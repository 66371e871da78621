"""The vLLM plug-in on a stand-in for the modules of vLLM that it touches."""

from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from server import Server, same, tensors
from torch import Tensor, nn

from kernelwright.runtime import api, engine, vllm_plugin
from kernelwright.settings import child_environment

ROOT = Path(__file__).parents[2]


class ModelWeightParameter(nn.Parameter):
    """vLLM's weights are a subclass, too, that takes part in torch's functions."""

    def __new__(cls, data: Tensor):
        return super().__new__(cls, data, requires_grad=False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def stub(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = True, invariant: bool = False) -> type:
    """Puts vllm.model_executor.layers.linear and vllm.platforms into sys.modules; the class whose hook is to be replaced."""

    class UnquantizedLinearMethod:
        calls = 0

        def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
            type(self).calls += 1
            return nn.functional.linear(x, layer.weight, bias)

    linear, platforms = ModuleType("vllm.model_executor.layers.linear"), ModuleType("vllm.platforms")
    linear.__dict__.update(UnquantizedLinearMethod=UnquantizedLinearMethod, envs=SimpleNamespace(VLLM_BATCH_INVARIANT=invariant))
    platforms.__dict__.update(current_platform=SimpleNamespace(is_cuda=lambda: cuda))
    for module in (*map(ModuleType, ("vllm", "vllm.model_executor", "vllm.model_executor.layers")), linear, platforms):
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return UnquantizedLinearMethod


class Column(nn.Module):
    """A layer of vLLM: it asks its method for the product."""

    def __init__(self, method: object, dtype: torch.dtype = torch.bfloat16, bias: bool = True):
        super().__init__()
        weight, vector = tensors((6, 8), (6,), dtype=dtype)
        self.weight, self.bias = ModelWeightParameter(weight), nn.Parameter(vector, requires_grad=False) if bias else None
        self.quant_method = method

    def forward(self, x: Tensor) -> Tensor:
        return self.quant_method.apply(self, x, self.bias)


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(engine, "_paths", [Path("/my-pack")])
    monkeypatch.delenv("KERNELWRIGHT_DISABLE", raising=False)
    caplog.set_level(logging.INFO, vllm_plugin.__name__)


@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_half_precision_are_served(server: Server, monkeypatch, caplog, bias):
    method = stub(monkeypatch)
    layer, (x,) = Column(method(), bias=bias), tensors((3, 8), dtype=torch.bfloat16)
    want = layer(x)
    vllm_plugin.register()
    got = layer(x)
    same(got, want)
    assert type(got) is Tensor and method.calls == 1 and server.calls == [((3, 6, 8), "bias" if bias else "")]
    assert caplog.messages == ["kernelwright serves vLLM's unquantised linear layers from /my-pack"]
    same(layer.quant_method.apply(layer, x=x), nn.functional.linear(x, layer.weight))
    with api.disabled():
        assert torch.equal(layer(x), want)


def test_other_dtypes_keep_vllms_product(server: Server, monkeypatch):
    method = stub(monkeypatch)
    vllm_plugin.register()
    layer, (x,) = Column(method(), torch.float32), tensors((3, 8), dtype=torch.float32)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias)) and method.calls == 1
    for mixed, given in ((layer, x.half()), (Column(method()), x)):
        with pytest.raises(RuntimeError, match="dtype"):
            mixed(given)
    assert method.calls == 3 and not server.calls


def test_it_compiles_without_a_break(server: Server, monkeypatch):
    torch._dynamo.reset()
    vllm_plugin_method = stub(monkeypatch)
    vllm_plugin.register()
    layer = Column(vllm_plugin_method())
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5, 9):
        (x,) = tensors((rows, 8), dtype=torch.bfloat16)
        same(compiled(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert len(server.calls) == 3


def test_registering_again_changes_nothing(monkeypatch, caplog):
    method = stub(monkeypatch)
    vllm_plugin.register()
    apply = method.apply
    vllm_plugin.register()
    assert method.apply is apply and len(caplog.messages) == 1


def left(method: type | None, caplog: pytest.LogCaptureFixture) -> str:
    """Registers; the reason in the log, after proof that nothing was replaced."""
    before = method and method.apply
    vllm_plugin.register()
    assert method is None or method.apply is before
    (message,) = caplog.messages
    return message.removeprefix("kernelwright leaves vLLM's linear layers as they are: ")


def test_it_says_why_it_does_nothing(monkeypatch, caplog):
    def because(method: type | None) -> str:
        caplog.clear()
        return left(method, caplog)

    assert because(stub(monkeypatch, cuda=False)) == "this platform has products of its own"
    assert "VLLM_BATCH_INVARIANT" in because(stub(monkeypatch, invariant=True))
    older = stub(monkeypatch)
    monkeypatch.setattr(sys.modules["vllm.model_executor.layers.linear"], "vllm_is_batch_invariant", lambda: True, raising=False)
    assert "VLLM_BATCH_INVARIANT" in because(older)

    changed = stub(monkeypatch)
    changed.apply = lambda self, layer, x, weight, bias=None: x  # pyright: ignore[reportAttributeAccessIssue]
    want = "UnquantizedLinearMethod.apply takes self, layer, x, weight, bias in this vLLM, not self, layer, x, bias"
    assert because(changed) == want
    monkeypatch.delattr(sys.modules["vllm.model_executor.layers.linear"], "UnquantizedLinearMethod")
    assert because(None) == "this vLLM has no UnquantizedLinearMethod.apply"
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    assert because(None).startswith("vLLM has no such module")

    method = stub(monkeypatch)
    monkeypatch.setattr(engine, "_paths", [])
    assert because(method) == "no pack is used; set KERNELWRIGHT_PACK to one"
    monkeypatch.setenv("KERNELWRIGHT_DISABLE", "1")
    assert because(method) == "KERNELWRIGHT_DISABLE=1"


def test_the_entry_point_names_it_and_imports_no_vllm():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    assert points == {"kernelwright": "kernelwright.runtime.vllm_plugin:register"}
    code = "import sys; from kernelwright.runtime import vllm_plugin as p, engine; assert 'vllm' not in sys.modules; print(*engine.used())"
    environment = child_environment({"KERNELWRIGHT_PACK": "/some/pack"})
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True).stdout == "/some/pack\n"
    )
