"""`kw.matmul`, `kw.linear`, `kw.addmm`: torch's functions, served by our kernels wherever a Pack has a faster one.

    import kernelwright as kw
    kw.use("kernelwright-out/pack-hgemm-1000")
    c = kw.matmul(a, b)                 # torch.matmul(a, b): same shapes, same exceptions, same gradients
    print(kw.explain(a, b))             # which kernel, and why
    with kw.disabled(): ...             # torch alone; KERNELWRIGHT_DISABLE=1 does it for a whole process

Whatever we have no kernel for goes to torch: other dtypes and devices, batches on both sides, vectors, strides that are no matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch._C import (
    _functorch,  # pyright: ignore[reportAttributeAccessIssue]: compiled, without stubs
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from kernelwright.runtime import ops
from kernelwright.settings import settings


def enable() -> None:
    """The opposite of `disable`."""
    ops.serve = _first


def disable() -> None:
    """From now on every call goes to torch."""
    ops.serve = ops.nobody


@contextmanager
def disabled() -> Iterator[None]:
    """torch alone inside the `with`."""
    before = ops.serve
    disable()
    try:
        yield
    finally:
        ops.serve = before


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """torch.matmul. Ours serve a (..., K) @ b (K, N) of fp16 or bf16, accumulated in fp32, whatever the two matrices' storage order."""
    if not is_dynamo_compiling() and ops.serve is not ops.nobody:
        done = ops.fast(ops.numbers["", False], a, b, None, out, False)
        if done is False:
            return (torch.mm if a.ndim == b.ndim == 2 else torch.matmul)(a, b, out=out)  # the same, but that mm need not look at the ranks
        if done is not None:
            return done
    if out is not None:
        return _matmul_out(a, b, out)
    try:
        rows = ops.as_rows(a) if a.ndim > 2 and b.ndim == 2 else a
        ours = rows is not None and rows.ndim == b.ndim == 2
    except AttributeError:
        ours, rows = False, None  # no tensor: torch says so
    if not ours or rows is None:
        return torch.matmul(a, b)
    if not (plain := _plain(rows, b)) and _torchs(rows, b):
        return torch.matmul(a, b)
    c = ops.matmul(rows, b) if plain else torch.ops.kernelwright.matmul(rows, b)
    return c if rows is a else c.view(*a.shape[:-1], b.shape[1])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """activation(torch.nn.functional.linear(x, weight, bias)). `activation`: gelu, gelu-tanh, silu or None; ours round once, after it.
    Raises ValueError for another."""
    if not is_dynamo_compiling() and ops.serve is not ops.nobody:
        number = ops.numbers.get((activation, bias is not None))
        done = None if number is None else ops.fast(number, x, weight, bias, None, True)
        if done is False:
            y = torch.nn.functional.linear(x, weight, bias)
            return ops.ACTIVATIONS[activation](y) if activation else y
        if done is not None:
            return done
    if (activation := activation or "") not in ops.ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; choose one of {', '.join(filter(None, ops.ACTIVATIONS))}")
    if weight is not None and _plain(x, weight, bias):
        return ops.linear(x, weight, bias, activation)
    if _torchs(x, weight):
        return ops.ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias))
    return torch.ops.kernelwright.linear(x, weight, bias, activation)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """torch.addmm. Ours serve a vector `input`, beta = alpha = 1: a layer with its bias."""
    if not is_dynamo_compiling() and alpha == beta == 1 and ops.serve is not ops.nobody:
        done = ops.fast(ops.numbers["", True], mat1, mat2, input, None, False)
        if done is False:
            return torch.addmm(input, mat1, mat2)
        if done is not None:
            return done
    tensors = all(isinstance(t, Tensor) for t in (input, mat1, mat2))
    if tensors and alpha == beta == 1 and input.ndim == 1 and ops.pair(mat1, mat2) and ops.vector(input, mat2):
        return linear(mat1, mat2.t(), input)
    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)


def _matmul_out(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    if _plain(a, b, out) and ops.pair(a, b) and _fits(a, b, out) and ops.serve(a, b, out, "", None):
        increment_version(out)  # autograd must see that what it may have kept was overwritten
        return out
    return torch.matmul(a, b, out=out)


def _fits(a: Tensor, b: Tensor, out: Tensor) -> bool:
    return (
        ops.in_memory(out)
        and out.shape == (a.shape[0], b.shape[1])
        and out.dtype == a.dtype
        and out.device == a.device
        and (out.stride(1) == 1 or out.shape[1] <= 1)
        and out.stride(0) >= out.shape[1]
        and not _overlap(out, a)
        and not _overlap(out, b)
    )


def _overlap(x: Tensor, y: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() and x.numel() > 0


def _plain(*tensors: Tensor | None) -> bool:
    """Whether torch's dispatcher has nothing to do for these: no gradient, no subclass, no mode, no transform, no autocast, no tracing."""
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() or _functorch.maybe_current_level() is not None:
        return False
    if forward_ad._current_level >= 0:  # a dual number is a plain tensor with a tangent
        return False
    if _get_tracing_state() is not None:  # torch.jit.trace would record an output that nothing fills
        return False
    wanted = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (type(t) not in ops.PLAIN or (wanted and t.requires_grad)):
            return False
    return not _is_any_autocast_enabled()  # of one device takes longer to ask, and raises for meta


def _torchs(x: Tensor, y: Tensor) -> bool:
    """Whether a product is torch's because torch.func is at work (its grad refuses operators whose gradient is registered from Python, its
    vmap runs them one by one), or forward differentiation, which ours do not know, because a subclass has products of its own, because
    autocast would cast an operand, because one is no tensor, which torch says best, or because a compiler knows more of a product that ours
    never serve."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return True
    if torch.compiler.is_compiling():
        if x.dtype not in ops.HALF and not _is_any_autocast_enabled():
            return True
    else:
        if _functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
            return True
        if not all(type(t) in _KNOWN for t in (x, y)):
            return True
    if not _is_any_autocast_enabled():
        return False
    device = x.device.type
    return x.is_meta or (torch.is_autocast_enabled(device) and not x.dtype == y.dtype == torch.get_autocast_dtype(device))


_KNOWN = (*ops.PLAIN, FakeTensor)
"""Tracing with fake tensors shall find the operator."""


def use(pack: str | Path) -> None:
    """Serves products from this Pack's kernels on the GPUs that it was made for. What it lacks of builds is compiled once, into the user's
    cache. A Pack that is damaged, of a newer format or cannot be compiled here is a RuntimeWarning of one sentence, one for another GPU is
    when that GPU first has a product; torch then does the work. Raises PackError for what is no Pack."""
    from kernelwright.runtime import engine

    engine.use(pack)


def explain(a: Tensor, b: Tensor) -> str:
    """One or two sentences: what kw.matmul calls for tensors like these, and why."""
    from kernelwright.runtime import engine

    if ops.serve is ops.nobody:
        return "torch.matmul: kernelwright is disabled."
    rows = ops.as_rows(a)
    if rows is None or b.ndim != 2 or not ops.pair(rows, b):
        return "torch.matmul: ours multiply (..., K) by (K, N), both fp16 or both bf16 on one device."
    serving = engine.of(a.device)
    if serving is None:
        return f"torch.matmul: no pack serves {a.device}; name one with kw.use."
    choice = serving.choose(rows, b)
    return choice.explain() if choice else "torch.matmul: the strides are those of no matrix; call .contiguous()."


def _first(a: Tensor, b: Tensor, out: Tensor, epilogue: str, bias: Tensor | None) -> bool:
    """Until the first product: what serves takes 40 ms to import."""
    from kernelwright.runtime import engine

    ops.serve = engine.serve
    return engine.serve(a, b, out, epilogue, bias)


if not settings().disabled:
    enable()
