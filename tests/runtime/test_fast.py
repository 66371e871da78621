"""The launcher is asked before anything is looked at in Python: whatever Python's checks would have decided, it must decide as well."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
import torch
from server import tensors
from torch.autograd import forward_ad

from kernelwright.runtime import api, engine, ops

CPU = torch.device("cpu")


def asked(monkeypatch) -> list[object]:
    """What the launcher answered, from now on."""
    answers = []
    fast = ops.fast

    def noted(*arguments):
        answers.append(fast(*arguments))
        return answers[-1]

    monkeypatch.setattr(ops, "fast", noted)
    return answers


def calls() -> dict[str, Callable[[], torch.Tensor]]:
    a, b, weight, bias, c = tensors((64, 64), (64, 32), (32, 64), (32,), (64, 32))
    return {
        "matmul": lambda: api.matmul(a, b),
        "out": lambda: api.matmul(a, b, out=c),
        "rows": lambda: api.matmul(a.view(2, 4, 8, 64), b),
        "linear": lambda: api.linear(a, weight, bias, "gelu"),
        "layers": lambda: api.linear(a.view(4, 16, 64), weight, bias, "gelu"),
    }


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_what_was_met_is_launched_without_a_look_in_python(serving, monkeypatch, name, mode):
    call = calls()[name]
    with mode():
        call()
        monkeypatch.setattr(api, "_plain", None)
        monkeypatch.setattr(ops, "pair", None)
        answers = asked(monkeypatch)
        got = call()
        assert got is answers[0] and len(serving.cuda.launches()) == 2
        wanted = {"rows": (2, 4, 8, 32), "layers": (4, 16, 32)}
        assert got.shape == wanted.get(name, (64, 32)) and got.is_contiguous() and got.dtype == torch.float16
        assert not got.requires_grad and got.is_inference() == (mode is torch.inference_mode and name != "out")
    assert got.data_ptr().to_bytes(8, "little") in bytes(serving.cuda.launches()[1].params)
    assert serving.met == 1


def test_addmm_is_the_layer_with_its_bias(serving, monkeypatch):
    """Of one kernel with linear; here the pack has none, so that the library's addmm is called."""
    x, weight, bias, plane = tensors((64, 64), (32, 64), (32,), (64, 32))
    want = torch.addmm(bias, x, weight.t())
    assert torch.equal(api.addmm(bias, x, weight.t()), want)
    answers = asked(monkeypatch)
    assert torch.equal(api.addmm(bias, x, weight.t()), want) and answers == [False]
    assert torch.equal(api.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias)) and answers == [False] * 2
    assert torch.equal(api.addmm(bias, x, weight.t(), beta=2), torch.addmm(bias, x, weight.t(), beta=2)) and len(answers) == 2
    assert torch.equal(api.addmm(plane, x, weight.t()), torch.addmm(plane, x, weight.t())) and answers[2:] == [None]


def test_what_is_the_librarys_is_torchs_at_once(serving, monkeypatch):
    a, b, out = tensors((64, 64), (64, 48), (64, 48))
    api.matmul(a, b), api.matmul(a, b, out=out)
    answers = asked(monkeypatch)
    assert torch.equal(api.matmul(a, b), a @ b) and torch.equal(api.matmul(a, b, out=out), a @ b)
    assert torch.equal(api.matmul(a.view(4, 16, 64), b), (a @ b).view(4, 16, 48))
    assert answers == [False] * 3 and not serving.cuda.launches()
    a.requires_grad_()
    assert api.matmul(a, b).grad_fn is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int32])
def test_other_dtypes_are_torchs_at_once(serving, monkeypatch, dtype):
    """With all that torch has to look at."""
    answers = asked(monkeypatch)
    a, b, bias = (t.to(dtype) for t in tensors((4, 6), (6, 5), (5,)))
    assert torch.equal(api.matmul(a, b), a @ b) and torch.equal(api.matmul(a[None], b), a[None] @ b)
    assert torch.equal(api.linear(a, b.t(), bias), torch.nn.functional.linear(a, b.t(), bias))
    assert torch.equal(api.addmm(bias, a, b), torch.addmm(bias, a, b)) and answers == [False] * 4
    assert api.matmul(a[0], b).shape == (5,) and api.matmul(a, b[:, 0]).shape == (4,)
    for wrong in (b.t(), tensors((6, 5), dtype=torch.bfloat16)[0]):
        with pytest.raises(RuntimeError) as want:
            torch.matmul(a, wrong)
        with pytest.raises(RuntimeError) as got:
            api.matmul(a, wrong)
        assert str(got.value) == str(want.value)
    if dtype.is_floating_point:
        assert api.matmul(a.requires_grad_(), b).grad_fn is not None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert api.matmul(a, b).dtype == torch.matmul(a, b).dtype
        assert torch.equal(torch.func.grad(lambda x: api.matmul(x, b).sum())(a.detach()), b.sum(1).expand(4, 6))


class Doubled(torch.Tensor):
    """A subclass with a product of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.matmul, torch.mm) else result


BETWEEN = ["requires grad", "leaf of a graph", "negative", "zeros", "subclass", "other dtype", "other sizes", "meta", "sparse", "no tensor"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", BETWEEN)
def test_tensors_that_torch_has_to_look_at(serving, what, which):
    operands = tensors((64, 64), (64, 32))
    api.matmul(*operands)
    t = operands[which]
    operands[which] = {
        "requires grad": lambda: t.clone().requires_grad_(),
        "leaf of a graph": lambda: t.clone().requires_grad_() * 1,
        "negative": lambda: torch._neg_view(t),
        "zeros": lambda: torch._efficientzerotensor(t.shape, dtype=t.dtype),
        "subclass": lambda: t.as_subclass(Doubled),
        "other dtype": lambda: t.float(),
        "other sizes": lambda: t[:-1],
        "meta": lambda: t.to("meta"),
        "sparse": lambda: t.to_sparse(),
        "no tensor": lambda: [1.0],
    }[what]()
    torchs = what == "other dtype" and which == 0
    assert ops.fast(ops.numbers["", False], *operands, None, None, False) is (False if torchs else None)
    try:
        want = torch.matmul(*operands)
    except Exception as error:
        with pytest.raises(type(error)):
            api.matmul(*operands)
        return
    if what in ("requires grad", "leaf of a graph"):  # ours runs below autograd
        assert api.matmul(*operands).grad_fn is not None
        with torch.no_grad():
            assert api.matmul(*operands).grad_fn is None
        return
    got, launches = api.matmul(*operands), len(serving.cuda.launches())
    assert launches == 1 and (what == "meta" or torch.equal(got, want)) and type(got) is type(want)


def test_a_bias_and_an_output_are_looked_at_as_well(serving):
    x, weight, bias, out = tensors((64, 64), (32, 64), (32,), (64, 32))
    api.linear(x, weight, bias, "gelu")
    number = ops.numbers["gelu", True]
    assert ops.fast(number, x, weight, bias, None, True) is not None
    for other in (bias.clone().requires_grad_(), torch._neg_view(bias), bias[::2], bias.float()):
        assert ops.fast(number, x, weight, other, None, True) is None
    want = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, torch._neg_view(bias)))
    assert torch.equal(api.linear(x, weight, torch._neg_view(bias), "gelu"), want)
    b = weight.t().contiguous()
    api.matmul(x, b, out=out)
    launches = len(serving.cuda.launches())
    with pytest.raises(RuntimeError, match="out="):
        api.matmul(x, b, out=out.clone().requires_grad_())
    negative = torch._neg_view(out)
    api.matmul(x, b, out=negative)
    assert torch.equal(negative, x @ b) and len(serving.cuda.launches()) == launches
    with pytest.raises(RuntimeError, match="dtype"):
        api.matmul(x, b, out=out.float())
    with pytest.warns(UserWarning, match="resized"):
        assert api.matmul(x, b, out=torch.ones(3, dtype=torch.float16)).shape == (64, 32)
    assert len(serving.cuda.launches()) == launches


def test_an_output_that_overlaps_an_input_is_torchs(serving, monkeypatch):
    memory = tensors((64 * 64 + 64 * 32 + 64 * 64,))[0]

    def views(at: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """a, then b, and an output that begins `at` elements from the start."""
        return memory[:4096].view(64, 64), memory[4096:6144].view(64, 32), memory[at : at + 2048].view(64, 32)

    api.matmul(*views(0)[:2], out=torch.empty(64, 32, dtype=torch.float16))
    answers = asked(monkeypatch)
    for at in (0, 4096 - 2048, 4096 - 8, 4096, 6144 - 8):
        a, b, out = views(at)
        before = memory.clone()
        api.matmul(a, b, out=out)
        assert answers[-1] is None
        memory.copy_(before)
    assert len(serving.cuda.launches()) == 1
    a, b, out = views(6144)  # the same memory, but none of it twice
    assert api.matmul(a, b, out=out) is out and answers[-1] is out and len(serving.cuda.launches()) == 2


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_the_product(serving):
    a, b = tensors((64, 64), (64, 32))
    api.matmul(a, b)
    with Watching() as mode:
        assert ops.fast(ops.numbers["", False], a, b, None, None, False) is None
        api.matmul(a, b)
    assert any("matmul" in name for name in mode.seen)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert ops.fast(ops.numbers["", False], a, b, None, None, False) is None


def test_transforms_tracing_and_autocast_are_asked_first(serving):
    a, b = tensors((64, 64), (64, 32))
    api.matmul(a, b)
    number, launches = ops.numbers["", False], len(serving.cuda.launches())

    def refused(*_):
        assert ops.fast(number, a, b, None, None, False) is None, "even for tensors that the transform does not wrap"
        return torch.matmul(a, b).sum()

    torch.vmap(lambda x: refused())(torch.ones(3))
    torch.func.grad(lambda x: refused() * x)(torch.ones(()))
    torch.func.functionalize(refused)(a)
    torch.jit.trace(lambda x: x + refused(), (torch.ones(()),), check_trace=False)
    for device in ("cpu", "cuda"):
        with torch.autocast(device, dtype=torch.bfloat16) if device == "cpu" else _cuda_autocast():
            refused()
    assert ops.fast(number, a, b, None, None, False) is not None, "and afterwards all is as before"
    batch = tensors((3, 64, 64))[0]
    assert torch.equal(torch.vmap(lambda x: api.matmul(x, b))(batch), torch.vmap(lambda x: x @ b)(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert api.matmul(a, b).dtype == torch.bfloat16
    traced = torch.jit.trace(api.matmul, (a, b), check_trace=False)
    assert "kernelwright::matmul" in str(traced.graph) or "aten::matmul" in str(traced.graph)
    assert len(serving.cuda.launches()) >= launches


@contextlib.contextmanager
def _cuda_autocast():
    """As on a machine with a GPU: without one torch.autocast only warns."""
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_dual_numbers_keep_their_tangents(serving):
    a, b, tangent = tensors((64, 64), (64, 32), (64, 64))
    out = torch.empty(64, 32, dtype=torch.float16)
    api.matmul(a, b), api.matmul(a, b, out=out)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, tangent)
        for call in (lambda: api.matmul(dual, b), lambda: api.linear(dual, b.t())):
            primal, got = forward_ad.unpack_dual(call())
            assert torch.equal(primal, a @ b) and torch.equal(got, tangent @ b)
        assert ops.fast(ops.numbers["", False], a, b, None, out, False) is None
    assert ops.fast(ops.numbers["", False], a, b, None, out, False) is out


@pytest.mark.parametrize("compiled", ["matmul", "out", "linear", "addmm"])
def test_compilers_see_operators_not_the_launcher(serving, monkeypatch, compiled):
    torch._dynamo.reset()
    a, b, weight, bias, c = tensors((64, 64), (64, 32), (32, 64), (32,), (64, 32))
    api.matmul(a, b)
    run = {
        "matmul": lambda a: api.matmul(a, b),
        "out": lambda a: api.matmul(a, b, out=c),
        "linear": lambda a: api.linear(a, weight, bias, "silu"),
        "addmm": lambda a: api.addmm(bias, a, weight.t()),
    }[compiled]
    graphs, fast = [], ops.fast

    def backend(graph, inputs):
        graphs.append(str(graph.code))
        monkeypatch.setattr(ops, "fast", fast)
        return graph.forward

    monkeypatch.setattr(ops, "fast", None)  # a call would raise
    torch.compile(run, fullgraph=True, backend=backend)(a)
    assert len(graphs) == 1 and ("kernelwright" in graphs[0] or "matmul" in graphs[0] or "addmm" in graphs[0])


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_what_a_compiled_program_calls_asks_the_launcher_first(serving, monkeypatch, mode):
    a, b, weight, bias, x = tensors((64, 64), (64, 32), (32, 64), (32,), (2, 32, 64))
    op = torch.ops.kernelwright
    calls = lambda: (op.matmul(a, b), op.linear(x, weight, bias, "gelu"))  # noqa: E731
    with mode():
        calls()
        one, other = tensors((16, 32), (32, 8))
        op.linear(one, other.t(), None, "silu")
        monkeypatch.setattr(ops, "pair", None)
        answers = asked(monkeypatch)
        assert calls()[1].shape == (2, 32, 32) and len(answers) == 2 and len(serving.cuda.launches()) == 4
        want = torch.nn.functional.silu(torch.nn.functional.linear(one, other.t()))
        assert torch.equal(op.linear(one, other.t(), None, "silu"), want) and answers[2:] == [False]


def test_the_operators_of_compiled_programs_have_gradients(serving):
    a, b = tensors((64, 64), (64, 32))
    torch.ops.kernelwright.matmul(a, b)
    torch.ops.kernelwright.matmul(a.requires_grad_(), b).sum().backward()
    assert torch.allclose(a.grad, b.sum(1).expand(64, 64), rtol=1e-2, atol=1e-2)


def test_switched_off_nothing_is_asked(serving, monkeypatch):
    a, b = tensors((64, 64), (64, 32))
    out = torch.empty(64, 32, dtype=torch.float16)
    api.matmul(a, b), api.matmul(a, b, out=out)
    launches = len(serving.cuda.launches())
    with api.disabled():
        with monkeypatch.context() as patch:
            patch.setattr(ops, "fast", None)
            assert torch.equal(api.matmul(a, b), a @ b) and torch.equal(api.matmul(a, b, out=out), a @ b)
            assert torch.equal(api.linear(a, b.t()), torch.nn.functional.linear(a, b.t()))
            assert api.addmm(b[0], a, b).shape == (64, 32)
        api.disable()
        assert torch.equal(api.matmul(a, b), a @ b)
    assert len(serving.cuda.launches()) == launches
    api.matmul(a, b)
    assert len(serving.cuda.launches()) == launches + 1


def test_an_overwritten_output_is_seen_by_autograd(serving):
    a, b, x = tensors((64, 64), (64, 32), (64, 32))
    for _ in range(2):  # as Python has it, then as the launcher has it
        weight = torch.ones(64, 32, dtype=torch.float16, requires_grad=True)
        y = (weight * x).sum()
        with torch.no_grad():
            api.matmul(a, b, out=x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    assert len(serving.cuda.launches()) == 2
    with torch.inference_mode():
        kept = torch.empty(64, 32, dtype=torch.float16)
        assert api.matmul(a, b, out=kept) is kept and api.matmul(a, b, out=kept) is kept


def test_rows_are_those_of_view(serving, monkeypatch):
    """A stack of rows is known by what Tensor.view makes of it, or left to Python."""
    b = tensors((64, 32))[0]
    api.matmul(*tensors((64, 64)), b)
    padded, transposed = tensors((64, 72))[0][:, :64], tensors((16, 4, 64))[0].transpose(0, 1)
    for a, is_known in (
        (tensors((4, 16, 64))[0], True),
        (tensors((1, 1, 64, 64))[0], True),
        (tensors((64, 1, 64))[0], True),
        (tensors((64, 2, 64))[0][:, :1], False),  # rows two apart, which was not met
        (padded.unflatten(0, (4, 16)), False),
        (transposed, False),
    ):
        answers = asked(monkeypatch)
        got = api.matmul(a, b)
        assert (answers[0] is not None) == is_known and got.shape == (*a.shape[:-1], 32) and got.is_contiguous()
        again = api.matmul(a, b)
        assert again.shape == got.shape and (is_known or a is transposed or answers[-1] is not None), "it was met with the strides of view"


def test_a_launch_that_fails_is_told_once_and_torch_serves(serving):
    a, b = tensors((64, 64), (64, 32))
    api.matmul(a, b)
    serving.cuda.lib.fake_fail(1, 0)
    assert ops.fast(ops.numbers["", False], a, b, None, None, False) is None
    with pytest.warns(RuntimeWarning, match="leaves cpu to PyTorch from now on: launching: invalid argument"):
        assert torch.equal(api.matmul(a, b), a @ b)
    serving.cuda.lib.fake_fail(0, 0)
    assert torch.equal(api.matmul(a, b), a @ b) and ops.fast(ops.numbers["", False], a, b, None, None, False) is None


def test_from_many_threads(serving):
    a, b = tensors((256, 4096), (4096, 256))
    api.matmul(a, b)
    shapes, before = [], len(serving.cuda.launches())

    def work():
        shapes.extend(api.matmul(a, b).shape for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == [(256, 256)] * 200 and len(serving.cuda.launches()) == before + 200


def test_wrong_use_of_the_launcher_is_an_exception(serving):
    with pytest.raises(TypeError, match="six arguments"):
        ops.fast(0, None)
    a, b = tensors((64, 64), (64, 32))
    with pytest.raises(TypeError):
        ops.fast("gemm", a, b, None, None, False)
    assert engine._engines[CPU] is serving.engine
