"""kw.accelerate: models with their linear layers served give the same, stay the same in everything else, and come back as they were."""

from __future__ import annotations

import copy
import io
import math
import pickle
import sys
from types import ModuleType

import pytest
import torch
from server import Server, tensors
from torch import Tensor, nn
from torch.nn import functional as F

import kernelwright as kw
from kernelwright.runtime import api, models


class Attention(nn.Module):
    """Four query heads share two key and value heads."""

    def __init__(self, width: int = 16, heads: int = 4, shared: int = 2):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, shared * self.size, bias=False)
        self.v_proj = nn.Linear(width, shared * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.heads // self.shared, dim=1) for t in (k, v))
        scores = (q @ k.transpose(2, 3) / math.sqrt(self.size)).softmax(-1)
        return self.o_proj((scores @ v).transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, width: int = 16, inner: int = 24):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    """Of two blocks; the last layer's weight is the embedding's."""

    def __init__(self, vocabulary: int = 11, width: int = 16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.ModuleDict({"attn": Attention(), "mlp": SwiGLU()}) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.layers:
            x = x + block["attn"](x)
            x = x + block["mlp"](x)
        return self.head(x)


class Conv1D(nn.Module):
    """What transformers has under this name: the weight is (in, out)."""

    def __init__(self, outer: int, inner: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inner, outer) / 4), nn.Parameter(torch.randn(outer))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@pytest.fixture
def gpt2(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """An MLP of GPT-2, while transformers seems to be loaded."""
    home = ModuleType("transformers.pytorch_utils")
    monkeypatch.setattr(home, "Conv1D", Conv1D, raising=False)
    monkeypatch.setitem(sys.modules, home.__name__, home)
    torch.manual_seed(2)
    return nn.Sequential(Conv1D(32, 8), nn.GELU(approximate="tanh"), Conv1D(8, 32)).half()


@pytest.fixture
def llama() -> Llama:
    torch.manual_seed(1)
    return Llama().bfloat16()


TOKENS = torch.tensor([[1, 5, 2, 9, 0], [3, 3, 10, 4, 7]])
LINEAR = 2 * 7 + 1


def bits(model: nn.Module) -> list[tuple[str, type, int]]:
    """All that must stay: which object, class and parameter stands where."""
    return [(n, type(m), id(m)) for n, m in model.named_modules()] + [(n, type(p), id(p)) for n, p in model.named_parameters()]


def close(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)


def test_llama_gives_the_same_and_comes_back(server: Server, llama: Llama):
    before, want, state, shown = bits(llama), llama(TOKENS), list(llama.state_dict()), repr(llama)
    report = kw.accelerate(llama)
    assert len(report.layers) == len(report.changed) == LINEAR and not report.left
    close(llama(TOKENS), want)
    q_k_down_head = {((10, 16, 16), ""), ((10, 8, 16), ""), ((10, 16, 24), "bias"), ((10, 11, 16), "")}
    assert len(server.calls) == LINEAR and q_k_down_head <= set(server.calls)
    assert repr(llama) == shown and isinstance(llama.head, nn.Linear) and llama.head.weight is llama.embed.weight
    assert list(llama.state_dict()) == state
    report.undo()
    assert bits(llama) == before and torch.equal(llama(TOKENS), want) and len(server.calls) == LINEAR
    report.undo()
    assert bits(llama) == before


def test_gradients(server: Server, llama: Llama):
    def grads() -> list[Tensor]:
        llama.zero_grad()
        llama(TOKENS).float().square().mean().backward()
        return [p.grad for p in llama.parameters()]

    want = grads()
    with kw.accelerate(llama):
        got = grads()
        assert len(server.calls) == 3 * LINEAR, "one product forward, two backward"
    for ours, theirs in zip(got, want, strict=True):
        close(ours, theirs)


def test_gpt2(server: Server, gpt2: nn.Module):
    (x,) = tensors((2, 3, 8), seed=4)
    want, before = gpt2(x), bits(gpt2)
    with kw.accelerate(gpt2) as report:
        close(gpt2(x), want)
        assert server.calls == [((6, 32, 8), "bias"), ((6, 8, 32), "bias")]
        assert isinstance(gpt2[0], Conv1D) and type(gpt2[0]) is models.Conv1D
        assert "8 -> 32 float16 with bias" in str(report)
        for again in (copy.deepcopy(gpt2), pickle.loads(pickle.dumps(gpt2))):
            close(again(x), want)
        assert len(server.calls) == 6, "copies are served"
    assert bits(gpt2) == before and torch.equal(gpt2(x), want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole_and_notices_changes(server: Server, llama: Llama, gpt2: nn.Module, dynamic):
    for model, inputs in ((llama, TOKENS), (gpt2, tensors((2, 3, 8))[0])):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        want, n = compiled(inputs), len(server.calls)
        report = kw.accelerate(model)
        close(compiled(inputs), want)
        assert len(server.calls) == n + len(report.layers), "compiled again, with our operators"
        report.undo()
        close(compiled(inputs), want)
        assert len(server.calls) == n + len(report.layers), "and again, without"


def test_state_dicts_fit_before_meanwhile_and_after(server: Server, llama: Llama):
    def saved() -> io.BytesIO:
        torch.save(llama.state_dict(), file := io.BytesIO())
        file.seek(0)
        return file

    want, before = llama(TOKENS), saved()
    report = kw.accelerate(llama)
    meanwhile = saved()
    assert before.getvalue() == meanwhile.getvalue()
    with torch.no_grad():
        for p in llama.parameters():
            p.zero_()
    llama.load_state_dict(torch.load(before, weights_only=True))
    close(llama(TOKENS), want)
    report.undo()
    llama.load_state_dict(torch.load(meanwhile, weights_only=True))
    assert torch.equal(llama(TOKENS), want)


def test_hooks_run_as_before(server: Server, llama: Llama):
    seen: list[str] = []
    llama.head.register_forward_pre_hook(lambda *_: seen.append("pre"))
    llama.head.register_forward_hook(lambda module, args, out: seen.append("post") or out * 2)
    want = llama(TOKENS)
    with kw.accelerate(llama):
        llama.layers[0]["mlp"].register_forward_hook(lambda *_: seen.append("mlp"))
        close(llama(TOKENS), want)
    llama(TOKENS)
    assert seen == ["pre", "post", "mlp", "pre", "post", "mlp", "pre", "post"]


def test_twice_is_once(server: Server, llama: Llama):
    before = bits(llama)
    with kw.accelerate(llama) as outer:
        with kw.accelerate(llama) as inner:
            assert not inner.changed and len(inner.layers) == LINEAR and "(0 of them new)" in str(inner)
        llama(TOKENS)
        assert len(server.calls) == LINEAR, "the inner one changed nothing and takes nothing back"
        assert type(llama.head).__mro__.count(models.Linear) == 1
    assert bits(llama) == before and outer.changed


def test_half_of_the_layers_in_fp32(server: Server):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    for layer in (model[0], model[2]):
        layer.half()
    report = kw.accelerate(model)
    assert [layer.name for layer in report.changed] == ["0", "2"]
    assert report.left == tuple((n, "its weight is float32: our kernels multiply fp16 and bf16") for n in "13")
    (x,) = tensors((3, 8))
    close(model[0](x), F.linear(x, model[0].weight, model[0].bias))
    assert torch.equal(model[1](x.float()), F.linear(x.float(), model[1].weight, model[1].bias)) and len(server.calls) == 1
    model.float()  # served layers go on in any dtype
    assert torch.equal(model[2](x.float()), F.linear(x.float(), model[2].weight, model[2].bias)) and len(server.calls) == 1
    with pytest.raises(RuntimeError, match="dtype"):
        model[0](x)


def test_with_gradients_of_inputs_alone_and_moves_between_dtypes(server: Server, llama: Llama):
    kw.accelerate(llama)
    llama.requires_grad_(False)
    x = torch.randn(2, 16, dtype=torch.bfloat16, requires_grad=True)
    llama.head(x).float().sum().backward()
    close(x.grad, torch.ones(2, 11, dtype=torch.bfloat16) @ llama.head.weight)
    assert llama.half()(TOKENS).dtype == torch.float16 and len(server.calls) == LINEAR + 2


def test_disable_leaves_a_served_model_to_torch(server: Server, llama: Llama):
    want = llama(TOKENS)
    report = kw.accelerate(llama)
    with api.disabled():
        assert torch.equal(llama(TOKENS), want) and not server.calls
        assert report.explain() == "kernelwright is disabled: torch computes every layer."


def test_only_modules():
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, not a dict"):
        kw.accelerate({})  # pyright: ignore[reportArgumentType]
