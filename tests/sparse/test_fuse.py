"""Joined layers: the same results, names and weights as before."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kernelwright import sparse
from kernelwright.layouts import in_turn


class Attention(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, n, bias=bias) for n in (48, 16, 33))

    def forward(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class Mlp(nn.Module):
    def __init__(self, act=nn.functional.silu) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
        self.act = act

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


def made(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    sparse.prune_(module.half(), "magnitude", 0.5)
    sparse.convert(module)
    return module.requires_grad_(False)


@pytest.mark.parametrize("bias", [False, True])
def test_siblings_are_one_product(monkeypatch, bias: bool):
    model = made(Attention(bias))
    x = torch.randn(3, 2, 64).half()
    before, saved = model(x), model.state_dict()
    assert sparse.fuse(model) == [""]
    calls = []
    joined = model.joined.forward
    monkeypatch.setattr(model.joined, "forward", lambda x: (calls.append(1), joined(x))[1])
    for a, b in zip(before, model(x), strict=True):
        assert torch.allclose(a, b, atol=2e-3) and a.shape == b.shape
    assert len(calls) == 1 and model.joined._kept is None
    assert torch.allclose(
        model.k_proj(x + 1), before[1] * 0 + nn.functional.linear(x + 1, model.k_proj.weight, model.k_proj.bias), atol=2e-3
    )
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {k: v.tolist() for k, v in saved.items()}, "as if nothing were joined"
    once = model.q_proj(x)  # and neither k nor v
    x.mul_(2)
    assert not torch.equal(model.q_proj(x), once), "whoever asks again gets what x is now"


def test_a_gated_mlp_is_two_products():
    model = made(Mlp())
    x = torch.randn(5, 64).half()
    before, saved, kept = model(x), model.state_dict(), copy.deepcopy(model)
    assert sparse.fuse(model) == [""] and torch.allclose(before, model(x), atol=0.02, rtol=0.01)
    assert torch.allclose(model.up_proj(x), kept.up_proj(x), atol=2e-3)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), model(x)) and torch.equal(copy.deepcopy(model)(x), model(x))
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {k: v.tolist() for k, v in saved.items()}
    model.load_state_dict({k: v for k, v in made_other().state_dict().items()})
    assert torch.equal(model.gate_proj.weight, made_other().gate_proj.weight)
    assert torch.allclose(model(x), made_other()(x), atol=0.02, rtol=0.01), "biases, too, are loaded into the joined layer"
    with pytest.raises(RuntimeError, match="does not fit a layer"):
        model.load_state_dict({"gate_proj.weight": torch.zeros(80, 64).half()}, strict=False)
    sparse.unfuse(model)
    assert type(model) is Mlp and not hasattr(model, "joined") and torch.equal(model(x), made_other()(x))


def made_other() -> nn.Module:
    other = Mlp()
    torch.manual_seed(1)
    for p in other.parameters():
        nn.init.normal_(p, std=0.2)
    sparse.prune_(other.half(), "magnitude", 0.5)
    sparse.convert(other)
    return other


def test_what_computes_something_else_stays_as_it_is():
    model = made(Mlp(act=torch.nn.functional.gelu))
    x = torch.randn(5, 64).half()
    before = model(x)
    assert sparse.fuse(model) == [] and torch.equal(model(x), before) and type(model.gate_proj) is sparse.SparseLinear
    dense = Attention().half()
    assert sparse.fuse(dense) == []


def test_joined_layers_are_cast():
    x = torch.randn(5, 64)
    for module in (Attention(bias=True), Mlp()):
        model = made(module)
        kept = copy.deepcopy(model).bfloat16()
        sparse.fuse(model)
        model.bfloat16()
        for a, b in zip(model(x.bfloat16()), kept(x.bfloat16()), strict=True):
            assert a.dtype == torch.bfloat16 and torch.allclose(a, b, atol=0.1, rtol=0.02)
        assert all(m.dtype == torch.bfloat16 for m in model.modules() if isinstance(m, sparse.SparseLinear))


def test_revert_takes_them_apart():
    model = made(nn.Sequential(Attention(), Mlp()))
    weights = [m.weight for m in model.modules() if isinstance(m, sparse.SparseLinear)]
    assert len(sparse.fuse(model)) == 2 and sparse.revert(model) == 6
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert all(torch.equal(a, b.weight) for a, b in zip(weights, linears, strict=True))


def test_gradients_reach_inputs_of_a_gated_pair():
    w = torch.randn(64, 32).masked_fill(torch.rand(64, 32) < 0.5, 0).half()
    x = torch.randn(3, 32).half().requires_grad_()
    weight = sparse.compress(in_turn(w[:32], w[32:]))
    y = sparse.swiglu(x, weight)
    want = nn.functional.silu(x @ w[:32].t()) * (x @ w[32:].t())
    assert torch.allclose(y, want, atol=0.02)
    y.sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_the_graph_of_siblings_is_whole():
    model = made(Attention())
    sparse.fuse(model)
    x = torch.randn(2, 64).half()
    outs = torch.compile(model, fullgraph=True, backend="eager")(x)
    assert all(torch.equal(a, b) for a, b in zip(outs, model(x), strict=True))


def test_a_kernel_for_gated_layers_serves_them(monkeypatch):
    model = made(Mlp())
    sparse.fuse(model)
    seen = SimpleNamespace(rows=0)

    def run(x, weight, bias, out):
        seen.rows = x.shape[0]
        out.zero_()
        return True

    monkeypatch.setattr(sparse.product, "kernels", [sparse.Kernel("quad-bitmap", "cpu", lambda weight: 4, run, "swiglu")])
    assert torch.equal(model(torch.randn(4, 64).half()), model.down_proj(torch.zeros(4, 96).half())) and seen.rows == 4
    seen.rows = 0
    model(torch.randn(5, 64).half())
    assert seen.rows == 0, "above the crossover"
