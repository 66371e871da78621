"""PyTorch functions and modules as row programs: the same results, or one sentence that names the operation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kernelwright.problems.lower import Input, LoweringError, lower, run
from kernelwright.problems.rowprogram import BINARY, COMPARE, REDUCE, UNARY

OTHER_OPS = ("input", "const", "index", "where", "reduce", "scan", "pick", "rotate_half")


def check(function, rows: int = 3, cols: int = 8, x: torch.Tensor | None = None, **extra: torch.Tensor):
    """The program of function(x, ...) gives what the function gives, in float64."""
    x = torch.randn(rows, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(rows + cols)) if x is None else x
    axes = {"rows": ("rows",), "cols": ("cols",), "full": ("rows", "cols")}
    inputs = {"x": Input(("rows", "cols"), tuple(x.shape))}
    for name, tensor in extra.items():
        inputs[name] = Input(axes[name.split("_")[0]], tuple(tensor.shape), tensor.dtype)
    program = lower(function, inputs, ("y",))
    for node in program.nodes:
        assert node.op in (*UNARY, *BINARY, *COMPARE, *OTHER_OPS)
        assert node.op != "reduce" or node.name in REDUCE
    want = function(x=x, **extra)
    # a program knows full, row, col and one: (rows, 1) comes out as (rows,), and of one row both names are right
    torch.testing.assert_close(run(program, {"x": x, **extra}, torch.float64)["y"].reshape(want.shape), want, equal_nan=True)
    return program


FUNCTIONS = {
    "gelu": lambda x: F.gelu(x),
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: F.silu(x),
    "hardswish": lambda x: F.hardswish(x),
    "hardsigmoid": lambda x: F.hardsigmoid(x),
    "relu": lambda x: torch.relu(x) + F.relu(x) + x.relu(),
    "relu-inplace": lambda x: F.relu(x * 2, inplace=True),
    "relu6": lambda x: F.relu6(3 * x),
    "leaky-relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, alpha=0.5),
    "selu": lambda x: F.selu(x),
    "celu": lambda x: F.celu(x, alpha=2.0),
    "softplus": lambda x: F.softplus(x * 10, beta=2.0),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "mish": lambda x: F.mish(x),
    "softsign": lambda x: F.softsign(x),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "threshold": lambda x: F.threshold(x, 0.1, 7.0),
    "clamp": lambda x: x.clamp(min=-0.3) + torch.clamp(x, max=0.3) + x.clip(-1, 1),
    "sigmoid-tanh": lambda x: torch.sigmoid(x) * x.tanh(),
    "powers": lambda x: x**2 + x.pow(3) + torch.pow(x.abs(), 0.5) + 2.0**x + x.abs() ** 1.7,
    "arithmetic": lambda x: (1 - x) / (2 + x.abs()) - 3 / (x.square() + 1) + -x,
    "alpha": lambda x: torch.add(x, x.abs(), alpha=3) - torch.sub(x, 1.0, alpha=2),
    "exp-log": lambda x: torch.log(x.exp() + 1) + torch.log1p(x.abs()) + torch.expm1(-x.abs()) + torch.exp2(x),
    "roots": lambda x: torch.sqrt(x.abs()) + torch.rsqrt(x.abs() + 1) + torch.reciprocal(x.abs() + 1),
    "where": lambda x: torch.where(x > 0, x, 0.5 * x) + x.masked_fill(x < 0, 2.0),
    "compare": lambda x: (x > 0) * x + (x <= 0.5).float() + torch.sign(x),
    "minmax": lambda x: torch.maximum(x, -x) + torch.minimum(x, x.square()) + torch.max(x, 2 * x),
    "erf": lambda x: torch.erf(x) + x.erf(),
    "softmax": lambda x: F.softmax(x, dim=-1) + torch.softmax(x, 1) + x.softmax(-1),
    "log-softmax": lambda x: F.log_softmax(x, dim=1),
    "logsumexp": lambda x: x - torch.logsumexp(x, dim=1, keepdim=True),
    "layer-norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms-norm": lambda x: F.rms_norm(x, (x.shape[-1],), eps=1e-3),
    "normalize": lambda x: F.normalize(x, dim=1) + F.normalize(x, p=1.0, dim=-1),
    "norms": lambda x: x / x.norm(dim=-1, keepdim=True) + x / torch.norm(x, p=2, dim=1, keepdim=True),
    "linalg": lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "sums": lambda x: x - x.mean(-1, keepdim=True) + x.sum(dim=1, keepdim=True),
    "extremes": lambda x: (x - x.amax(-1, keepdim=True)) * x.min(dim=1, keepdim=True)[0] + x.max(-1, keepdim=True).values,
    "variance": lambda x: x / (x.var(-1, keepdim=True, unbiased=False) + x.std(dim=1, keepdim=True) + 1),
    "per-row": lambda x: x.square().sum(-1).sqrt(),
    "per-row-column": lambda x: torch.mean(x, dim=1, keepdim=True),
    "unsqueezed": lambda x: x * x.sum(-1).unsqueeze(-1) + x.amax(1)[:, None],
    "cumsum": lambda x: torch.cumsum(x, dim=-1) + x.cumsum(1),
    "rotate": lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1),
    "rotate-split": lambda x: torch.cat((-x.split(x.shape[-1] // 2, -1)[1], x.split(x.shape[-1] // 2, -1)[0]), -1),
    "halves-joined": lambda x: torch.cat(((2 * x).chunk(2, -1)), -1),
    "constants": lambda x: x * torch.tensor(2.0) + torch.ones_like(x) * torch.full_like(x, 3.0),
    "index": lambda x: x * torch.arange(x.shape[-1], device=x.device),
    "casts": lambda x: x.double().type_as(x).contiguous().detach() * x.to(x.dtype),
    "in-place": lambda x: x.clone().mul_(2).add_(1).clamp_(0, 1),
    "dropout-off": lambda x: F.dropout(x, 0.5, training=False) + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_meaning(name):
    check(FUNCTIONS[name])


@pytest.mark.parametrize("name", ["relu", "clamp", "softmax", "sums", "extremes", "gelu", "where", "softplus", "leaky-relu", "elu", "mish"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_go_where_pytorch_sends_them(name, value):
    x = torch.randn(2, 8, dtype=torch.float64)
    x[1, 3] = value
    check(FUNCTIONS[name], x=x)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(FUNCTIONS)), rows=st.integers(1, 9), half=st.integers(1, 9))
def test_no_shape_confuses_rows_with_columns(name, rows, half):
    check(FUNCTIONS[name], rows, 2 * half)


MODULES = [
    nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Hardswish(), nn.ReLU(inplace=True), nn.LeakyReLU(0.3), nn.ELU(), nn.Softplus(),
    nn.Mish(), nn.Sigmoid(), nn.Tanh(), nn.Hardtanh(), nn.Softmax(dim=-1), nn.LogSoftmax(dim=1), nn.PReLU(), nn.LayerNorm(8),
    nn.RMSNorm(8, eps=1e-5), nn.Identity(), nn.Sequential(nn.LayerNorm(8, elementwise_affine=False), nn.GELU(), nn.Softmax(-1)),
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_modules_with_their_parameters(module):
    module = module.double()
    state = {k: torch.randn_like(v) for k, v in module.state_dict().items()}
    x = torch.randn(3, 8, dtype=torch.float64)
    inputs = {"x": Input(("rows", "cols"), (3, 8))}
    for k, v in state.items():
        inputs[k] = Input(("cols",) if v.numel() > 1 else ("1",), tuple(v.shape))

    def function(x, **parameters):
        return torch.func.functional_call(module, parameters, (x.clone() if not x.is_meta else x,))

    program = lower(function, inputs, ("y",))
    torch.testing.assert_close(run(program, {"x": x, **state}, torch.float64)["y"], function(x, **state))


def test_columns_rows_and_losses():
    bias, scale = torch.randn(8, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    target = torch.tensor([1, 7, 0])
    check(lambda x, cols_b: x + cols_b, cols_b=bias)
    check(lambda x, rows_s: x * rows_s[:, None], rows_s=scale)
    check(lambda x, full_r: F.gelu(x) + full_r, full_r=torch.randn(3, 8, dtype=torch.float64))
    check(lambda x, rows_t: F.cross_entropy(x, rows_t, reduction="none"), rows_t=target)
    check(lambda x, rows_t: x.gather(-1, rows_t.unsqueeze(-1)).squeeze(-1), rows_t=target)


def test_several_outputs_and_leading_dimensions():
    inputs = {"x": Input(("b", "s", "cols"), (2, 3, 4)), "w": Input(("cols",), (4,))}
    program = lower(lambda x, w: (x * w, x.sum(-1)), inputs, ("scaled", "total"))
    x, w = torch.randn(2, 3, 4), torch.randn(4)
    out = run(program, {"x": x, "w": w})
    torch.testing.assert_close(out["scaled"], (x * w).reshape(6, 4))
    torch.testing.assert_close(out["total"], x.sum(-1).reshape(6))


def test_equal_steps_are_computed_once_and_unused_ones_not_at_all():
    program = lower(lambda x: (x.exp() + x.exp(), x.log())[0], {"x": Input(("rows", "cols"), (2, 4))}, ("y",))
    assert [n.op for n in program.nodes] == ["input", "exp", "add"]


def test_softmax_survives_large_and_infinite_logits_in_float32():
    program = lower(lambda x: F.softmax(x, -1), {"x": Input(("rows", "cols"), (2, 4))}, ("y",))
    x = torch.tensor([[1e4, 0.0, -1e4, 1e4], [80.0, 80.0, -math.inf, -80.0]])
    torch.testing.assert_close(run(program, {"x": x})["y"], F.softmax(x, -1))


SMALL = {
    "softplus": lambda x: F.softplus(x),
    "elu": lambda x: F.elu(x),
    "mish": lambda x: F.mish(x),
    "logsigmoid": lambda x: F.logsigmoid(-x),
    "log1p": lambda x: torch.log1p(input=x.abs()),
    "expm1": lambda x: torch.expm1(x),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_results_keep_their_digits_in_float32(name):
    x = torch.tensor([[-40.0, -1e-4, 1e-5, 3.0]])
    program = lower(SMALL[name], {"x": Input(("rows", "cols"), (1, 4))}, ("y",))
    torch.testing.assert_close(run(program, {"x": x})["y"].double(), SMALL[name](x.double()), rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x @ x.T, "`T` cannot be lowered: there is no rule for it"),
        (lambda x: torch.fft.fft(x).real, "`fft_fft` cannot be lowered"),
        (lambda x: F.softmax(x, dim=0), "`softmax` cannot be lowered: it works along dimension 0 of 2"),
        (lambda x: x.sum(), "`sum` cannot be lowered: it works along all dimensions of 2"),
        (lambda x: x + x.sum(-1), "`add` cannot be lowered: it broadcasts cols against rows; reduce with keepdim=True"),
        (lambda x: x.max(-1, keepdim=True).indices * x, "uses the indices"),
        (lambda x: F.dropout(x), "`dropout` cannot be lowered: its result is random"),
        (lambda x: x.chunk(4, -1)[0], "`chunk` cannot be lowered"),
        (lambda x: torch.cat((x, x), -1), "`cat` cannot be lowered"),
        (lambda x: x[:, 1:], "`getitem` cannot be lowered"),
        (lambda x: x.reshape(-1), "`reshape` cannot be lowered: it changes the shape from (4, 4) to (16,)"),
        (lambda x: x * torch.randn_like(x), "`randn_like` cannot be lowered"),
        (lambda x: x if x.sum() > 0 else -x, "cannot be"),
        (lambda x: x.long() + 1, "`long` cannot be lowered: it converts"),
        (lambda x: x.norm(p=3, dim=-1, keepdim=True) * x, "norm of order 3"),
        (lambda x: x.chunk(2, -1)[0] * 1, "half a row"),
    ],
)
def test_what_is_no_row_program_is_named(function, says):
    with pytest.raises(LoweringError) as caught:
        lower(function, {"x": Input(("rows", "cols"), (4, 4))}, ("y",))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_writing_into_a_part_is_refused():
    def function(x):
        y = x.clone()
        y[:, :2] = 0
        return y

    with pytest.raises(LoweringError, match="`setitem` cannot be lowered"):
        lower(function, {"x": Input(("rows", "cols"), (4, 4))}, ("y",))


def test_a_program_needs_a_matrix():
    with pytest.raises(LoweringError, match="no input is a matrix"):
        lower(lambda t: t, {"t": Input(("rows",), (4,))}, ("y",))
