"""Programs of torch.compile call ours directly, with inductor's buffers: results, gradients, caches on disk, and what else must hold."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from server import Server, same, tensors
from torch import nn
from torch._inductor.utils import run_and_get_code

import kernelwright as kw
from kernelwright.runtime import api, engine, inductor, ops

HERE = Path(__file__).parent
DIRECT = f"{inductor.MODULE}."


@pytest.fixture(autouse=True)
def compiled_anew():
    """Not from a cache on disk: what is written is looked at."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def compiled(f, *arguments, **options) -> tuple[object, str]:
    """What the compiled f returns, and all the Python that inductor wrote for it."""
    result, codes = run_and_get_code(torch.compile(f, fullgraph=True, **options), *arguments)
    return result, "\n".join(codes)


def direct(code: str) -> list[str]:
    """Our functions that a program calls, in its order; operators it must not call."""
    assert "torch.ops.kernelwright" not in code
    return [line.split("(")[0].strip().removeprefix(DIRECT) for line in code.splitlines() if line.strip().startswith(DIRECT)]


@pytest.mark.parametrize("refuses", [False, True])
def test_every_layer_is_called_directly(server: Server, refuses):
    server.refuses = refuses
    kinds = [(activation, biased) for activation in ops.ACTIVATIONS for biased in (False, True)]
    shapes = [(16,), (3, 16), (2, 3, 16), (2, 1, 3, 16)]
    weight, bias, b, *inputs = tensors((8, 16), (8,), (16, 5), *shapes)

    def program(weight, bias, b, *inputs):
        layers = [api.linear(x, weight, bias if biased else None, activation) for x in inputs for activation, biased in kinds]
        return [*layers, *(api.matmul(x, b) for x in inputs[1:])]

    got, code = compiled(program, weight, bias, b, *inputs)
    for ours, want in zip(got, program(weight, bias, b, *inputs), strict=True):
        same(ours, want)
    assert direct(code) == [inductor.name(*kind) for _ in shapes for kind in kinds] + ["matmul"] * 3
    assert len({inductor.name(*kind) for kind in kinds}) == len(kinds) and f"{DIRECT}linear_bias_gelu_tanh(" in code
    assert len(server.calls) == (0 if refuses else 2 * (4 * 8 + 3))


def test_strides(server: Server):
    """Rows that are no view are copied, as inductor does it for torch's product; weights are given as they lie."""
    x, wide, weight, turned, sparse = tensors((4, 6, 16), (4, 6, 24), (8, 16), (16, 8), (8, 32))

    def program(x, wide, weight, turned, sparse):
        inputs = (x, x.transpose(0, 1), x[:, -1:], x[:, ::2], wide[..., 4:20], x[:1].expand(4, 6, 16), x * 2)
        weights = (weight, turned.t(), sparse[:, ::2], sparse[:, 8:24], weight + 1)
        return [api.linear(i, w) for i in inputs for w in weights] + [api.matmul(x[0], turned), api.matmul(x[0], weight.t())]

    arguments = (x, wide, weight, turned, sparse)
    got, code = compiled(program, *arguments)
    assert direct(code) == ["linear"] * 35 + ["matmul"] * 2
    for ours, want in zip(got, program(*arguments), strict=True):
        same(ours, want)
        assert ours.stride() == want.stride()


def test_sizes_that_vary(server: Server):
    weight, bias = tensors((8, 16), (8,))
    run = torch.compile(lambda x: api.linear(x, weight, bias, "silu") + 1, fullgraph=True, dynamic=True)
    inputs = [tensors((n, m, 16))[0] for n, m in ((2, 3), (5, 7), (3, 12))]
    _, code = run_and_get_code(run, inputs[0])
    assert direct("\n".join(code)) == ["linear_bias_silu"]
    for x in inputs:
        same(run(x), api.linear(x, weight, bias, "silu") + 1)
    same(run(torch.empty(0, 3, 16).half()), torch.empty(0, 3, 8).half())


@pytest.mark.parametrize("activation", ["", "gelu"])
def test_gradients(server: Server, activation):
    def grads(f):
        x, weight, bias = (t.requires_grad_() for t in tensors((2, 3, 16), (5, 16), (5,)))
        y = f(x, weight, bias, activation)
        (y.float() ** 2).sum().backward()
        return [t.grad for t in (x, weight, bias)]

    run, codes = torch.compile(api.linear, fullgraph=True), []

    def noted(*arguments):
        y, code = run_and_get_code(run, *arguments)
        codes.extend(code)
        return y

    for got, want in zip(grads(noted), grads(api.linear), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert inductor.name(activation, True) in direct("\n".join(codes)) and len(server.calls) >= 6


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(x)))


def test_models_are_trained_and_asked_in_compiled_programs(server: Server):
    torch.manual_seed(1)
    model = Blocks().half()
    x = tensors((2, 3, 16))[0]
    want = model(x)
    with kw.accelerate(model):
        with torch.no_grad():
            got, code = compiled(model, x)
        same(got, want.detach())
        assert direct(code) == ["linear_bias", "linear"]
        torch._dynamo.reset()
        torch.compile(model, fullgraph=True)(x).float().sum().backward()
    assert model.up.weight.grad.isfinite().all() and len(server.calls) > 4


def test_the_launcher_is_asked_first_and_writes_the_buffer(serving, monkeypatch):
    x, weight, bias, b = tensors((2, 32, 64), (32, 64), (32,), (64, 32))

    def program(x):
        return api.linear(x, weight, bias, "gelu"), api.matmul(x, b)

    run = torch.compile(program, fullgraph=True)
    modes = (torch.no_grad, torch.enable_grad, torch.inference_mode)
    for mode in modes:  # each is compiled for, and at the end of that a dispatch mode is on
        with mode():
            run(x)
    monkeypatch.setattr(ops, "pair", None)
    answers, fast = [], ops.fast

    def noted(*arguments):
        answers.append((arguments[4], fast(*arguments)))
        return answers[-1][1]

    monkeypatch.setattr(ops, "fast", noted)
    launches = len(serving.cuda.launches())
    for mode in modes:
        with mode():
            got = run(x)
        assert [y.data_ptr() for y in got] == [out.data_ptr() for out, _ in answers[-2:]] and got[0].shape == (2, 32, 32)
    assert all(out is done for out, done in answers) and len(serving.cuda.launches()) == launches + 6


def test_what_the_launcher_knows_as_torchs(serving, monkeypatch):
    x, weight, bias = tensors((3, 16), (5, 16), (5,))
    run = torch.compile(lambda x: api.linear(x, weight, bias, "silu"), fullgraph=True)
    want = nn.functional.silu(nn.functional.linear(x, weight, bias))
    same(run(x), want)
    monkeypatch.setattr(ops, "pair", None)
    same(run(x), want)
    assert not serving.cuda.launches()


def test_what_is_learnt_anew_is_asked_anew(serving, monkeypatch):
    a, b = tensors((64, 64), (64, 32))
    monkeypatch.setattr(engine, "_now", engine._now)
    run = torch.compile(api.matmul, fullgraph=True)
    run(a, b)
    engine.relearn()
    run(a, b)
    assert serving.met == 2 and len(serving.cuda.launches()) == 2
    monkeypatch.setattr(ops, "pair", None)
    run(a, b)
    assert len(serving.cuda.launches()) == 3


def test_it_can_be_switched_off(server: Server, monkeypatch):
    x, weight, bias = tensors((3, 16), (5, 16), (5,))
    run = torch.compile(lambda x: (api.linear(x, weight, bias, "gelu"), api.matmul(x, weight.t())), fullgraph=True)
    run(x)
    calls = len(server.calls)
    with api.disabled():
        monkeypatch.setattr(ops, "fast", None)
        y, z = run(x)
    same(y, nn.functional.gelu(nn.functional.linear(x, weight, bias)))
    same(z, x @ weight.t())
    assert calls == len(server.calls) == 2


class Weight(nn.Parameter):
    """A layer's own kind of parameter, as serving frameworks have them."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data, False)


def test_a_weight_with_a_class_of_its_own(server: Server):
    x, weight = tensors((3, 16), (5, 16))
    out = torch.empty(3, 5, dtype=torch.float16)
    for refuses in (False, True):
        server.refuses = refuses
        inductor.linear(x, Weight(weight), out=out.zero_())  # pyright: ignore[reportAttributeAccessIssue]
        same(out, x @ weight.t())
    assert len(server.calls) == 1


def test_other_dtypes_are_torchs_in_the_program(server: Server):
    x, weight = (t.float() for t in tensors((3, 16), (5, 16)))
    got, code = compiled(lambda x: (api.linear(x, weight, None, "silu"), api.matmul(x, weight.t())), x)
    torch.testing.assert_close(got[1], x @ weight.t())
    assert "kernelwright" not in code.replace(str(HERE), "") or not direct(code)


def test_the_operator_of_another_dtype_stays_one(server: Server):
    x, weight = (t.float() for t in tensors((3, 16), (5, 16)))
    got, code = compiled(lambda x: torch.ops.kernelwright.linear(x, weight, None, "silu"), x)
    torch.testing.assert_close(got, nn.functional.silu(x @ weight.t()))
    assert "torch.ops.kernelwright.linear" in code and DIRECT not in code


@pytest.mark.parametrize("what", ["a name", "a function at work"])
def test_another_inductor_calls_the_operators(server: Server, monkeypatch, what):
    from torch._inductor import lowering, select_algorithm

    for op in (torch.ops.kernelwright.matmul.default, torch.ops.kernelwright.linear.default):
        monkeypatch.delitem(lowering.lowerings, op, raising=False)
    monkeypatch.setattr(ops, "_lowered", False)
    if what == "a name":
        monkeypatch.delattr(select_algorithm, "realize_inputs")
    else:
        monkeypatch.setattr(lowering, "view", lambda: None)
    x, weight = tensors((2, 3, 16), (5, 16))
    got, code = compiled(lambda x: api.linear(x, weight), x)
    same(got, x @ weight.t())
    assert "torch.ops.kernelwright.linear" in code and DIRECT not in code and ops._lowered


@pytest.mark.slow
def test_programs_in_cpp_call_the_operators(server: Server):
    x, weight = tensors((3, 16), (5, 16))
    with torch._inductor.config.patch(cpp_wrapper=True):
        got, code = compiled(lambda x: api.linear(x, weight), x)
    same(got, x @ weight.t())
    assert "kernelwright::linear" in code or "kernelwright.linear" in code
    assert DIRECT not in code


def python(code: str, **environment: str) -> str:
    path = os.pathsep.join((str(HERE), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_from_a_cache_on_disk(tmp_path):
    """The second process loads what the first one wrote, and lowers nothing."""
    code = """
        import torch
        from torch._dynamo.utils import counters
        from server import Server, same, tensors
        from kernelwright.runtime import api, ops
        ops.serve = server = Server()
        x, weight, bias = tensors((2, 3, 16), (5, 16), (5,))
        run = torch.compile(lambda x, weight, bias: api.linear(x, weight, bias, "gelu"), fullgraph=True)
        same(run(x, weight, bias), torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)))
        assert server.calls == [((6, 5, 16), "bias+gelu")]
        same(run(x, weight, bias.requires_grad_()), torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)))
        print(counters["aot_autograd"]["autograd_cache_hit"], ops._lowered)
    """
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    assert python(code, **cache).split() == ["0", "True"]
    hits, _ = python(code, **cache).split()
    assert int(hits) >= 1


def test_tracing_with_fake_tensors_does_not_import_inductor():
    python("""
        import sys
        import torch
        from torch._subclasses import FakeTensorMode
        import kernelwright as kw
        from torch.fx.experimental.proxy_tensor import make_fx
        with FakeTensorMode():
            x = torch.empty(3, 16, dtype=torch.float16)
            graph = make_fx(lambda x: kw.linear(x, x))(x)
        assert "kernelwright.linear" in str(graph.graph)
        assert not {"torch._inductor.lowering", "kernelwright.runtime.inductor"} & set(sys.modules)
    """)
