"""SparseLinear does what nn.Linear does with the same weight, under compilers, in state_dicts, and in a model converted and reverted."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from masks import weight
from torch import nn

from kernelwright import sparse
from kernelwright.sparse import product

HALF = (torch.float16, torch.bfloat16)


def layer(rows: int, columns: int, dtype=torch.bfloat16, bias: bool = True, seed: int = 0, kind: str = "random") -> nn.Linear:
    made = nn.Linear(columns, rows, bias=bias).to(dtype)
    made.weight.data.copy_(weight(kind, rows, columns, dtype, seed=seed))
    return made


def model(dtype=torch.bfloat16) -> nn.Sequential:
    return nn.Sequential(layer(100, 70, dtype), nn.GELU(), layer(30, 100, dtype, seed=1))


@pytest.mark.parametrize("layout", sparse.LAYOUTS)
@pytest.mark.parametrize("dtype", HALF)
def test_as_nn_linear_at_every_n(layout, dtype):
    dense = layer(48, 200, dtype)
    ours = sparse.SparseLinear.from_linear(dense, layout)
    with torch.no_grad():
        for n in range(1, 130):
            x = torch.randn(n, 200).to(dtype)
            assert torch.equal(ours(x), dense(x)), n
        for shape in ((200,), (0, 200), (2, 0, 200), (2, 3, 4, 200)):
            x = torch.randn(shape).to(dtype)
            assert torch.equal(ours(x), dense(x)) and ours(x).shape == dense(x).shape
        x = torch.randn(200, 5).to(dtype).t()  # not contiguous
        assert torch.equal(ours(x), dense(x))


def test_against_fp64():
    dense = layer(64, 512, torch.float16)
    x = torch.randn(7, 512).half()
    with torch.no_grad():
        y = sparse.linear(x, sparse.compress(dense.weight), dense.bias)
    exact = x.double() @ dense.weight.detach().double().t() + dense.bias.detach().double()
    assert float((y.double() - exact).abs().max()) < 2e-3


def test_input_that_does_not_fit_is_named():
    ours = sparse.SparseLinear.from_linear(layer(8, 64))
    with pytest.raises(sparse.SparseError, match="has 64 columns"):
        ours(torch.ones(2, 63).bfloat16())
    with pytest.raises(sparse.SparseError, match="weight is bfloat16 and x is float32; cast x"):
        ours(torch.ones(2, 64))


def test_autocast_casts_the_input():
    dense = layer(8, 64)
    ours = sparse.SparseLinear.from_linear(dense)
    x = torch.randn(2, 64)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(ours(x), dense(x))


def test_gradients_reach_input_and_bias():
    dense = layer(30, 70)
    ours = sparse.SparseLinear.from_linear(dense)
    ours.bias = nn.Parameter(dense.bias.detach().clone())
    xs = [torch.randn(3, 5, 70, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_() for _ in range(2)]
    for x, module in zip(xs, (dense, ours), strict=True):
        module(x).square().sum().backward()
    assert torch.equal(xs[0].grad, xs[1].grad) and torch.equal(dense.bias.grad, ours.bias.grad)
    assert [name for name, _ in ours.named_parameters()] == ["bias"]


def test_the_operator_is_what_pytorch_expects_of_one():
    for layout in sparse.LAYOUTS:
        w = sparse.compress(weight("random", 30, 70), layout)
        arguments = (list(w.parts.values()), [30, 70, w.nonzeros, *w.facts.values()], layout, w.dtype)
        for bias in (None, torch.randn(30).half()):
            torch.library.opcheck(torch.ops.kernelwright.sparse_linear, (torch.randn(2, 70).half().requires_grad_(), *arguments, bias))


def test_compiles_whole():
    m = model()
    x = torch.randn(4, 70).bfloat16()
    with torch.no_grad():
        y = m(x)
        sparse.convert(m)
        torch._dynamo.reset()
        compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), y)
        assert compiled(torch.randn(9, 70).bfloat16()).shape == (9, 30)


def test_convert_and_revert_keep_every_bit():
    m = model()
    weights = [m[0].weight.detach().clone(), m[2].weight.detach().clone()]
    x = torch.randn(4, 70).bfloat16()
    with torch.no_grad():
        y = m(x)
        done = sparse.convert(m)
        assert done.converted == ("0", "2") and not done.left and done.sparse_bytes == sum(b.nbytes for b in m.buffers())
        assert torch.equal(m(x), y) and torch.equal(m[0].weight, weights[0])
        assert sparse.revert(m) == 2 and sparse.revert(m) == 0
        assert type(m[0]) is nn.Linear and torch.equal(m(x), y)
    assert all(torch.equal(a, b) for a, b in zip((m[0].weight, m[2].weight), weights, strict=True))


def test_convert_lets_go_of_the_dense_weights():
    m = nn.Sequential(layer(512, 512, bias=False), layer(512, 512, bias=False, seed=1))
    gone = [weakref.ref(m[0].weight), weakref.ref(m[1].weight), weakref.ref(m[0]), weakref.ref(m[1])]
    storages = [weakref.ref(m[i].weight.untyped_storage()) for i in range(2)]
    before = held(m)
    done = sparse.convert(m)
    gc.collect()
    assert all(ref() is None for ref in gone + storages)
    assert held(m) == done.sparse_bytes < 0.6 * before == 0.6 * done.dense_bytes


def held(m: nn.Module) -> int:
    """Bytes of all distinct storages that a module's tensors hold on to."""
    tensors = [*m.parameters(), *m.buffers()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_convert_leaves_what_it_should():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(40, 70).bfloat16()
            self.head = layer(40, 70)
            self.embedding.weight = self.head.weight
            self.lm_head = layer(40, 70)
            self.thin = layer(40, 70, kind="full")
            self.body = layer(40, 70)
            self.again = self.body

    m = Tied()
    done = sparse.convert(m)
    assert done.converted == ("body",) and m.again is m.body and isinstance(m.body, sparse.SparseLinear)
    assert set(done.left) == {"head", "lm_head", "thin"}
    assert done.left["head"] == "shares its weight with embedding" and "below the 30%" in done.left["thin"]
    assert sparse.revert(m) == 1 and m.again is m.body
    with pytest.raises(sparse.SparseError, match="no layer of this model was converted: only 0%"):
        sparse.convert(nn.Sequential(layer(8, 8, kind="full")))
    with pytest.raises(sparse.SparseError, match=r"it has no nn\.Linear"):
        sparse.convert(nn.GELU())


@pytest.mark.parametrize("layout", sparse.LAYOUTS)
def test_state_dict_is_canonical_and_loads_into_any_layout(layout):
    m = model()
    sparse.convert(m, layout)
    state = m.state_dict()
    assert sorted(k for k in state if k.startswith("0.")) == [
        f"0.{n}" for n in ("bias", "bitmask", "checksum", "compressed", "row_offsets", "shape")
    ]
    x = torch.randn(4, 70).bfloat16()
    for other in sparse.LAYOUTS:
        fresh = nn.Sequential(layer(100, 70, seed=7), nn.GELU(), layer(30, 100, seed=8))
        sparse.convert(fresh, other)
        assert not torch.equal(fresh(x), m(x))
        fresh.load_state_dict(state)
        assert torch.equal(fresh(x), m(x)) and fresh[0].layout == other


def test_load_state_dict_takes_dense_weights_and_refuses_what_is_wrong():
    dense, ours = model(), model()
    sparse.convert(ours, order="lane")
    dense[0].weight.data.copy_(weight("rows", 100, 70, torch.bfloat16, seed=9))
    ours.load_state_dict(dense.state_dict())
    assert torch.equal(ours[0].weight, dense[0].weight) and ours[0].compressed.options == {"order": "lane"}
    state = ours.state_dict()
    state["0.bitmask"] = state["0.bitmask"] ^ 3
    with pytest.raises(RuntimeError, match=r"0\.weight is damaged"):
        ours.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.compressed"):
        ours.load_state_dict({k: v for k, v in ours.state_dict().items() if not k.startswith("0.")})
    other = nn.Sequential(layer(99, 70))
    sparse.convert(other)
    with pytest.raises(RuntimeError, match="does not fit a layer"):
        other.load_state_dict({k: v for k, v in ours.state_dict().items() if k.startswith("0.")})


def test_a_kernel_serves_up_to_its_crossover(monkeypatch):
    """The hook that GPU kernels are registered with, shown with a product that can be told apart."""
    calls = []

    def run(x, w, bias, out):
        calls.append(x.shape)
        out.copy_(x @ w.to_dense().t() + 1)
        return x.shape[0] != 3

    w = sparse.compress(weight("random", 20, 64))
    monkeypatch.setattr(product, "kernels", [sparse.Kernel("quad-bitmap", "cpu", lambda w: 16 if w.shape == (20, 64) else 0, run)])
    x = torch.randn(4, 8, 64).half()
    dense = torch.nn.functional.linear(x, w.to_dense())
    assert torch.allclose(sparse.linear(x[:2], w), dense[:2] + 1, atol=1e-2) and calls == [(16, 64)]
    assert torch.equal(sparse.linear(x, w), dense) and len(calls) == 1  # 32 rows
    assert torch.equal(sparse.linear(x[0, :3], w), dense[0, :3]) and len(calls) == 2, "it does not serve these after all"
    calls.pop()
    assert torch.equal(sparse.linear(x[:1], w.as_layout("bitmask")), dense[:1]) and len(calls) == 1
    other = sparse.compress(weight("random", 21, 64))
    sparse.linear(x[0], other)
    assert len(calls) == 1


@pytest.mark.parametrize("layout", ["bitmask", "quad-bitmap", "three-layer"])
def test_casts_are_those_of_a_linear_layer(layout):
    dense = layer(48, 200, torch.float16)
    ours = sparse.SparseLinear.from_linear(dense, layout)
    x = torch.randn(3, 200)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        ours, dense = ours.to(dtype), dense.to(dtype)
        assert ours.dtype == dtype and torch.equal(ours(x.to(dtype)), dense(x.to(dtype)))
    assert ours.layout == layout
    meta = ours.to("meta").bfloat16()
    assert meta(x.to("meta", torch.bfloat16)).shape == (3, 48)


def test_scratch_is_one_buffer_for_all_layers():
    sparse.free_scratch()
    small, large = sparse.compress(weight("random", 20, 64)), sparse.compress(weight("random", 100, 64))
    x = torch.randn(2, 64).half()
    with torch.inference_mode():
        first = sparse.linear(x, large)
    buffer = product._scratch(large)
    assert product._scratch(small).data_ptr() == buffer.data_ptr()
    sparse.linear(x, small)  # outside of inference mode, in the same buffer
    assert torch.equal(sparse.linear(x, large), first)
    sparse.free_scratch()
    assert not product._mine.__dict__
