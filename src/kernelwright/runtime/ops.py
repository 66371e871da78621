"""The PyTorch operators `torch.ops.kernelwright.*`: what torch.compile sees, and where gradients come from.

Registered with the dispatcher directly (torch.library.Library): a Python wrapper around each call would cost more than a small product. An
operator asks the engine of the tensors' device for a kernel of ours (`serve`, set by `runtime.api`) and else calls torch, so that it
gives torch's result, and torch's exceptions, everywhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

Serve = Callable[[Tensor, Tensor, Tensor, str, Tensor | None], bool]
"""(a, b, out, epilogue, bias): whether a kernel of ours wrote act(a @ b ...) into `out`. All are matrices, bias a vector."""

HALF = (torch.float16, torch.bfloat16)
"""What our kernels multiply."""

PLAIN = (Tensor, torch.nn.Parameter)
"""Types without a behaviour of their own."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "gelu": torch.nn.functional.gelu,
    "gelu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
"""By the name that a Workload's epilogue has for it."""

_library = torch.library.Library("kernelwright", "DEF")
_library.define("matmul(Tensor a, Tensor b) -> Tensor")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor")


def nobody(a: Tensor, b: Tensor, out: Tensor, epilogue: str, bias: Tensor | None) -> bool:
    """Serves nothing."""
    return False


serve: Serve = nobody


def unknown(operation: int, a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, transposed: bool) -> None:
    """Knows no tensors: Python's checks decide."""


fast: Callable[..., Tensor | Literal[False] | None] = unknown
"""Launcher.product, where an engine has one: what is asked before anything is looked at in Python. Not asked where `serve` is nobody."""

numbers: dict[tuple[str | None, bool], int] = {
    (activation or other, bias): -1 for activation in ACTIVATIONS for other in ("", None) for bias in (False, True)
}
"""By (activation, whether there is a bias): what `fast` knows an operation by. New ones whenever what was learnt of the old is void."""


def epilogue_of(activation: str | None, bias: bool) -> str:
    return "+".join(step for step in ("bias" if bias else "", activation or "") if step)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of two matrices on one device, of one dtype."""
    a, b = bare(a), bare(b)
    if not pair(a, b):
        return torch.mm(a, b)
    out = a.new_empty((a.shape[0], b.shape[1]))
    return out if serve(a, b, out, "", None) else torch.mm(a, b, out=out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x @ weight.T + bias): x (..., K), weight (N, K), bias (N)."""
    x, weight, bias = bare(x), bare(weight), None if bias is None else bare(bias)
    rows = as_rows(x)
    if rows is not None and weight.ndim == 2 and pair(rows, b := weight.t()) and (bias is None or vector(bias, b)):
        out = x.new_empty((*x.shape[:-1], weight.shape[0]))
        if serve(rows, b, out.view(rows.shape[0], weight.shape[0]), epilogue_of(activation, bias is not None), bias):
            return out
    return ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias))


def bare(t: Tensor) -> Tensor:
    """The same without its class. Below the dispatcher a subclass means nothing any more (a layer's own kind of parameter, say)."""
    return t if type(t) in PLAIN else t.as_subclass(Tensor)


def pair(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are what one product of ours may take; whatever is not goes to torch, which knows what to say."""
    return (
        a.ndim == b.ndim == 2
        and a.shape[1] == b.shape[0]
        and a.dtype == b.dtype
        and a.device == b.device
        and a.dtype in HALF
        and in_memory(a)
        and in_memory(b)
    )


def vector(bias: Tensor, b: Tensor) -> bool:
    fits = bias.shape == (b.shape[1],) and bias.dtype == b.dtype and bias.device == b.device
    return fits and in_memory(bias) and bias.stride(0) in (1, bias.shape[0])


def in_memory(t: Tensor) -> bool:
    """Whether a tensor's values are what is stored: not their negatives, not zeros that are nowhere. Compilers cannot tell; the operators
    that they call look again."""
    return t.layout == torch.strided and (is_dynamo_compiling() or not (t.is_neg() or t._is_zerotensor()))


def as_rows(x: Tensor) -> Tensor | None:
    """x (..., K) as a matrix over the same memory; None where it is not one."""
    if x.ndim == 2:
        return x
    if x.ndim == 1:
        return x.unsqueeze(0)
    if x.ndim == 0:
        return None
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return None


# ---------------------------------------------------------------------------------------------------- what compilers see


_lowered = False


def _lower() -> None:
    """Tells inductor, once it is imported (that takes seconds, and other compilers do without), how to call ours directly. Here because it
    traces every program with fake tensors just before it lowers it."""
    global _lowered
    if _lowered or "torch._inductor.lowering" not in sys.modules:
        return
    _lowered = True
    with contextlib.suppress(ImportError, AttributeError, TypeError):  # another inductor: it calls the operators
        from kernelwright.runtime import inductor

        inductor.register()


def _fake_matmul(a: Tensor, b: Tensor) -> Tensor:
    _lower()
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "kernelwright::matmul takes two matrices")
    torch._check(a.shape[1] == b.shape[0], lambda: f"mat1 and mat2 shapes cannot be multiplied ({_sizes(a)} and {_sizes(b)})")
    return a.new_empty((a.shape[0], b.shape[1]))


def _fake_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    _lower()
    torch._check(x.shape[-1] == weight.shape[-1], lambda: f"mat1 and mat2 shapes cannot be multiplied ({_sizes(x)} and {_sizes(weight)})")
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _sizes(t: Tensor) -> str:
    return "x".join(map(str, t.shape))


# ------------------------------------------------------------------------------------------------------------- gradients


def _save_matmul(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx, grad: Tensor):
    a, b = ctx.saved_tensors
    op = torch.ops.kernelwright.matmul
    return (
        op(grad, b.t()) if ctx.needs_input_grad[0] else None,
        op(a.t(), grad) if ctx.needs_input_grad[1] else None,
    )


def _save_linear(ctx, inputs, output) -> None:
    x, weight, bias, activation = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.activation = activation


def _linear_backward(ctx, grad: Tensor):
    """The sums before the activation are not kept but made again: they are as large as the output, and inference is what linear is for."""
    x, weight, bias = ctx.saved_tensors
    op = torch.ops.kernelwright
    if ctx.activation:
        with torch.enable_grad():
            before = op.linear(x, weight, bias, "").detach().requires_grad_()
            (grad,) = torch.autograd.grad(ACTIVATIONS[ctx.activation](before), before, grad)
    rows, over = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (
        op.matmul(over, weight).view(x.shape) if ctx.needs_input_grad[0] else None,
        op.matmul(over.t(), rows) if ctx.needs_input_grad[1] else None,
        over.sum(0) if ctx.needs_input_grad[2] else None,
        None,
    )


# ------------------------------------------------------------------------------------------ what compiled programs call


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    done = None if serve is nobody else fast(numbers["", False], a, b, None, None, False)
    if done is None:
        return matmul(a, b)
    return torch.mm(a, b) if done is False else done


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    done = None if serve is nobody else fast(numbers[activation, bias is not None], x, weight, bias, None, True)
    if done is None:
        return linear(x, weight, bias, activation)
    return ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias)) if done is False else done


for _name, _run, _fake, _backward, _save in (
    ("matmul", _matmul, _fake_matmul, _matmul_backward, _save_matmul),
    ("linear", _linear, _fake_linear, _linear_backward, _save_linear),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"kernelwright::{_name}", _fake, lib=_library)
    torch.library.register_autograd(f"kernelwright::{_name}", _backward, setup_context=_save, lib=_library)
