"""kw.matmul, kw.linear and kw.addmm are torch's functions, with a kernel of ours or without one: shapes, results, exceptions, gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from server import Server, same, tensors

from kernelwright.runtime import api, ops

HALF = (torch.float16, torch.bfloat16)


SIZE = st.integers(0, 9)


@settings(deadline=None, max_examples=150)
@given(m=SIZE, n=SIZE, k=SIZE, ta=st.booleans(), tb=st.booleans(), dtype=st.sampled_from(HALF), seed=st.integers(0, 99))
def test_any_two_matrices(m, n, k, ta, tb, dtype, seed):
    made = Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "serve", made)
        a, b = tensors((k, m) if ta else (m, k), (n, k) if tb else (k, n), dtype=dtype, seed=seed)
        a, b = (a.t() if ta else a), (b.t() if tb else b)
        same(api.matmul(a, b), torch.matmul(a, b))
    assert made.calls == [((m, n, k), "")]


SHAPES = [(4,), (3, 4), (2, 3, 4), (5, 2, 3, 4), (1, 3, 4), (0, 3, 4), (2, 0, 4)]


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize(("left", "right"), [*itertools.product(SHAPES, [(4,), (4, 6), (2, 4, 6), (5, 1, 4, 6), (1, 4, 6), (4, 0)])])
def test_batches_vectors_and_broadcasting_are_torchs(server: Server, served, left, right):
    server.refuses = not served
    a, b = tensors(left, right)
    try:
        want = torch.matmul(a, b)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as ours:
            api.matmul(a, b)
        assert str(ours.value) == str(error)
        return
    same(api.matmul(a, b), want)
    if served and len(left) >= 2 and len(right) == 2:
        assert len(server.calls) == 1, "a stack of rows is one product"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(3, 4, dtype=torch.float16), torch.ones(5, 6, dtype=torch.float16)),
        (torch.ones(3, 4, dtype=torch.float16), torch.ones(4, 6)),
        (torch.ones(3, 4, dtype=torch.float16), torch.tensor(1.0, dtype=torch.float16)),
        (torch.ones(3, 4), torch.ones(4, 6, dtype=torch.bfloat16)),
        (torch.ones(3, 4, dtype=torch.float16), [1.0]),
    ],
)
def test_wrong_calls_get_torchs_exception(server: Server, a, b):
    with pytest.raises(Exception) as want:
        torch.matmul(a, b)
    with pytest.raises(type(want.value)):
        api.matmul(a, b)
    assert not server.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.complex64])
def test_other_dtypes_are_torchs(server: Server, dtype):
    a, b = torch.ones(3, 4).to(dtype), torch.ones(4, 5).to(dtype)
    assert torch.equal(api.matmul(a, b), torch.matmul(a, b)) and not server.calls


def test_strides_that_are_no_matrix_still_multiply(server: Server):
    server.refuses = True
    big, b = tensors((6, 8), (4, 5))
    same(api.matmul(big[::2, ::2], b), big[::2, ::2] @ b)
    stacked = tensors((3, 2, 4))[0].transpose(0, 1)  # no view as rows
    same(api.matmul(stacked, b), stacked @ b)


def test_out_is_written_where_it_can_be(server: Server):
    a, b = tensors((3, 4), (4, 5))
    out = torch.empty(3, 5, dtype=torch.float16)
    assert api.matmul(a, b, out=out) is out and server.calls == [((3, 5, 4), "")]
    same(out, a @ b)
    for other in (torch.empty(5, 3, dtype=torch.float16).t(), torch.empty(0, dtype=torch.float16)):  # torch fills or resizes it
        same(api.matmul(a, b, out=other), a @ b)
    assert len(server.calls) == 1
    square = tensors((4, 4))[0]
    want = square @ square
    api.matmul(square, square.clone(), out=square)
    assert len(server.calls) == 1, "an output over an input is not ours to write"
    del want
    with pytest.raises(RuntimeError, match="dtype"):
        api.matmul(a, b, out=torch.empty(3, 5))


@pytest.mark.parametrize("activation", [None, "gelu", "gelu-tanh", "silu"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 16), (16,), (2, 3, 16), (0, 16)])
def test_linear(server: Server, activation, with_bias, shape):
    x, weight, bias = tensors(shape, (5, 16), (5,))
    bias = bias if with_bias else None
    want = ops.ACTIVATIONS[activation or ""](torch.nn.functional.linear(x, weight, bias))
    same(api.linear(x, weight, bias, activation), want)
    steps = "+".join(s for s in ("bias" if with_bias else "", activation or "") if s)
    assert [epilogue for _, epilogue in server.calls] == [steps]
    server.refuses = True
    same(api.linear(x, weight, bias, activation), want)


def test_an_unknown_activation_is_named(server: Server):
    with pytest.raises(ValueError, match="unknown activation 'relu'; choose one of gelu, gelu-tanh, silu"):
        api.linear(*tensors((3, 4), (5, 4)), activation="relu")


def test_what_is_no_tensor_gets_torchs_exception(server: Server):
    a, b = tensors((3, 4), (4, 5))
    for ours, theirs, arguments in (
        (api.linear, torch.nn.functional.linear, ([1.0], b)),
        (api.linear, torch.nn.functional.linear, (a, None)),
        (api.addmm, torch.addmm, (1.0, a, b)),
        (api.addmm, torch.addmm, (a, a, "b")),
    ):
        with pytest.raises(Exception) as want:
            theirs(*arguments)
        with pytest.raises(type(want.value)):
            ours(*arguments)


def test_addmm(server: Server):
    vector, matrix, a, b = tensors((5,), (3, 5), (3, 4), (4, 5))
    same(api.addmm(vector, a, b), torch.addmm(vector, a, b))
    assert [e for _, e in server.calls] == ["bias"]
    same(api.addmm(matrix, a, b, beta=0.5, alpha=2), torch.addmm(matrix, a, b, beta=0.5, alpha=2))
    same(api.addmm(vector, a, b, beta=2), torch.addmm(vector, a, b, beta=2))
    assert len(server.calls) == 1


# ------------------------------------------------------------------------------------------------------- torch's machinery


@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_gradients(server: Server, activation):
    def grads(f):
        x, weight, bias = (t.float().requires_grad_() for t in tensors((2, 3, 16), (5, 16), (5,)))
        y = f(x.half(), weight.half(), bias.half())
        (y.float() ** 2).sum().backward()
        return [t.grad for t in (x, weight, bias)]

    ours = grads(lambda x, w, b: api.linear(x, w, b, activation))
    assert server.calls, "a kernel of ours ran forward and backward"
    theirs = grads(lambda x, w, b: ops.ACTIVATIONS[activation or ""](torch.nn.functional.linear(x, w, b)))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)


def test_matmul_has_gradients_for_what_wants_them(server: Server):
    a, b = tensors((3, 4), (4, 5))
    a.requires_grad_()
    api.matmul(a, b).float().sum().backward()
    same(a.grad, torch.ones(3, 5, dtype=torch.float16) @ b.t())
    with pytest.raises(RuntimeError, match="out="):
        api.matmul(a, b, out=torch.empty(3, 5, dtype=torch.float16))


@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck(server: Server, transposed):
    a, b = tensors((3, 8), (6, 8))
    b = b.t() if transposed else b.t().contiguous()
    for inputs in ((a, b), (a.clone().requires_grad_(), b.clone().requires_grad_())):
        torch.library.opcheck(torch.ops.kernelwright.matmul, inputs)
    x, weight, bias = tensors((2, 3, 8), (6, 8), (6,))
    for activation in ("", "gelu"):
        torch.library.opcheck(torch.ops.kernelwright.linear, (x, weight, bias, activation))
        torch.library.opcheck(
            torch.ops.kernelwright.linear, (x.clone().requires_grad_(), weight.clone().requires_grad_(), None, activation)
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_break(server: Server, dynamic):
    torch._dynamo.reset()

    def model(x, w1, w2, b):
        return api.matmul(api.linear(x, w1, b, "gelu"), w2)

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (3, 7, 12):
        x, w1, w2, b = tensors((2, m, 16), (8, 16), (8, 4), (8,))
        same(compiled(x, w1, w2, b), model(x, w1, w2, b))
    assert any(epilogue == "bias+gelu" for _, epilogue in server.calls)


def test_vmap_and_autocast_are_torchs_business(server: Server):
    a, b = tensors((2, 3, 4), (4, 5))
    same(torch.vmap(lambda x: api.matmul(x, b))(a), a @ b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = api.matmul(a[0].float(), b.float())
    assert got.dtype == torch.bfloat16


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_autocast_casts_as_torch_does(server: Server, dtype, compiled):
    torch._dynamo.reset()
    x, w = tensors((3, 4), (5, 4))
    for ours, theirs in ((api.linear, torch.nn.functional.linear), (lambda x, w: api.matmul(x, w.t()), lambda x, w: x @ w.t())):
        server.calls.clear()
        run = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours
        with torch.autocast("cpu", dtype=dtype):
            same(run(x, w), theirs(x, w))
            assert len(server.calls) == (dtype == torch.float16), "ours where nothing is to be cast"
            same(run(x.float(), w), theirs(x.float(), w))
            same(run(x, w.float()), theirs(x, w.float()))
            assert len(server.calls) == (dtype == torch.float16)


def test_torch_func_is_torchs(server: Server):
    x, w = tensors((3, 4), (5, 4))
    for ours, theirs in ((api.linear, torch.nn.functional.linear), (lambda x, w: api.matmul(x, w.t()), lambda x, w: x @ w.t())):
        got, want = (torch.func.grad(lambda x, w, f=f: f(x, w).float().square().sum(), argnums=(0, 1))(x, w) for f in (ours, theirs))
        assert all(map(torch.equal, got, want))
    assert not server.calls


def test_meta_tensors_have_shapes(server: Server):
    a, b = torch.empty(3, 4, dtype=torch.float16, device="meta"), torch.empty(4, 5, dtype=torch.float16, device="meta")
    server.refuses = True
    assert api.matmul(a, b).shape == (3, 5) and api.linear(a, b.t()).device.type == "meta"


def test_traces_hold_the_operators(server: Server):
    a, b, other = tensors((3, 4), (4, 5), (3, 4))
    same(torch.jit.trace(api.matmul, (a, b))(other, b), other @ b)
    same(torch.jit.trace(lambda x, w: api.linear(x, w, None, "silu"), (a, b.t()))(other, b.t()), torch.nn.functional.silu(other @ b))


# ------------------------------------------------------------------------------------------------------------- switching


def test_it_can_be_switched_off(server: Server):
    a, b = tensors((3, 4), (4, 5))
    with api.disabled():
        same(api.matmul(a, b), a @ b)
        with api.disabled():
            api.matmul(a, b)
        api.matmul(a, b)
        assert ops.serve is ops.nobody
    assert not server.calls and ops.serve is not ops.nobody
