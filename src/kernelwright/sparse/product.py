"""x @ W.T + bias for a compressed W: the operator that torch.compile sees, and the choice between a kernel and dense.

Never slower: a kernel serves up to the number of activation rows at which it was measured to be faster than dense on this device; above
that, and where no kernel is registered, the weight is unpacked into a scratch buffer that all layers share and the vendor's product does
the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernelwright.layouts import quad_bitmap, three_layer
from kernelwright.layouts.bits import dtype_name
from kernelwright.problems import spmm
from kernelwright.sparse.compressed import LAYOUTS, Compressed, SparseError


@dataclass(frozen=True)
class Kernel:
    """A product on compressed weights of one layout, on one type of device ("cuda")."""

    layout: str
    device: str
    crossover: Callable[[Compressed], int]
    """The most activation rows at which it was measured to be faster than dense for this weight; 0 where it does not serve it."""
    run: Callable[[Tensor, Compressed, Tensor | None, Tensor], bool]
    """(x (N, columns), weight, bias (rows) or None, out (N, rows)), all contiguous, of the weight's dtype -> whether it serves these after
    all and has enqueued what writes `out`."""
    epilogue: str = ""
    """Or `swiglu`: `out` is (N, rows / 2), as `swiglu` says."""


def _from_packs(epilogue: str, weight: Compressed) -> int:
    from kernelwright.sparse import served  # which imports the runtime, and the launcher's compiler with it

    return served.crossover(weight, epilogue)


def _run_from_packs(epilogue: str, x: Tensor, weight: Compressed, bias: Tensor | None, out: Tensor) -> bool:
    from kernelwright.sparse import served

    return served.run(x, weight, bias, out, epilogue)


kernels: list[Kernel] = [
    Kernel(layout.NAME, "cuda", partial(_from_packs, epilogue), partial(_run_from_packs, epilogue), epilogue)
    for layout in (quad_bitmap, three_layer)
    for epilogue in ("", "swiglu")
]
"""What is registered; the first that serves is taken. Ours come from the packs in use."""


@dataclass(frozen=True)
class Unpacker:
    """Makes a weight of one layout dense on one type of device, faster than PyTorch's operations do."""

    layout: str
    device: str
    run: Callable[[Compressed, Tensor], bool]
    """(weight, out of its shape and dtype) -> whether it has enqueued what writes `out`."""


def _unpack_from_packs(weight: Compressed, out: Tensor) -> bool:
    from kernelwright.sparse import served

    return served.unpack(weight, out)


unpackers: list[Unpacker] = [Unpacker(quad_bitmap.NAME, "cuda", _unpack_from_packs)]


def swiglu(x: Tensor, weight: Compressed, bias: Tensor | None = None) -> Tensor:
    """silu(gate) * other of two layers in one weight, 16 rows of either in turn (`layouts.in_turn`): (..., columns) -> (..., rows / 2)."""
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        y = linear(x, weight, bias)
        return spmm.swiglu(y.reshape(-1, y.shape[-1])).view(*y.shape[:-1], -1)
    parts, facts = _taken_apart(weight)
    return torch.ops.kernelwright.sparse_swiglu(x, parts, facts, weight.layout, weight.dtype, bias)


def _swiglu(x: Tensor, parts: list[Tensor], facts: list[int], layout: str, dtype: torch.dtype, bias: Tensor | None) -> Tensor:
    weight = _weight(parts, facts, layout, dtype)
    _check(x, weight.shape[1], dtype)
    flat = x.reshape(-1, weight.shape[1])
    out = _by_kernel(flat, weight, bias, "swiglu")
    if out is None:
        out = spmm.swiglu(_linear(flat, parts, facts, layout, dtype, bias))
    return out.view(*x.shape[:-1], weight.shape[0] // 2)


def _by_kernel(x: Tensor, weight: Compressed, bias: Tensor | None, epilogue: str) -> Tensor | None:
    """(N, rows), with swiglu (N, rows / 2); None where no kernel serves."""
    for kernel in kernels:
        if (kernel.layout, kernel.device, kernel.epilogue) != (weight.layout, x.device.type, epilogue):
            continue
        if 0 < x.shape[0] <= kernel.crossover(weight):
            out = x.new_empty(x.shape[0], weight.shape[0] // (2 if epilogue == "swiglu" else 1))
            if kernel.run(x.contiguous(), weight, bias, out):
                return out
    return None


def linear(x: Tensor, weight: Compressed, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear with x (..., columns) of the weight's dtype and bias (rows) or None -> (..., rows)."""
    parts, facts = _taken_apart(weight)
    return torch.ops.kernelwright.sparse_linear(x, parts, facts, weight.layout, weight.dtype, bias)


def _linear(x: Tensor, parts: list[Tensor], facts: list[int], layout: str, dtype: torch.dtype, bias: Tensor | None) -> Tensor:
    weight = _weight(parts, facts, layout, dtype)
    rows, columns = weight.shape
    _check(x, columns, dtype)
    if (out := _by_kernel(x.reshape(-1, columns), weight, bias, "")) is not None:
        return out.view(*x.shape[:-1], rows)
    dense = _scratch(weight)
    if not any((u.layout, u.device) == (layout, x.device.type) and u.run(weight, dense) for u in unpackers):
        weight.to_dense(dense)
    return torch.nn.functional.linear(x, dense, bias)


def _check(x: Tensor, columns: int, dtype: torch.dtype) -> None:
    if x.shape[-1:] != (columns,):
        raise SparseError(f"the weight has {columns} columns, x of shape {tuple(x.shape)} does not end in that")
    if x.dtype != dtype:
        kinds = f"the weight is {dtype_name(dtype)} and x is {dtype_name(x.dtype)}"
        raise SparseError(f"{kinds}; cast x, or change the dense model's dtype before converting it")


def _taken_apart(weight: Compressed) -> tuple[list[Tensor], list[int]]:
    """What the operators take."""
    module = LAYOUTS[weight.layout]
    facts = [*weight.shape, weight.nonzeros, *(weight.facts[name] for name in module.FACTS)]
    return [weight.parts[name] for name in module.PARTS], facts


def _weight(parts: Sequence[Tensor], facts: Sequence[int], layout: str, dtype: torch.dtype) -> Compressed:
    """From what the operators take: facts are rows, columns, non-zeros and then the layout's own."""
    module = LAYOUTS[layout]
    rows, columns, nonzeros, *own = facts
    by_name = dict(zip(module.PARTS, parts, strict=True))
    return Compressed(layout, (rows, columns), dtype, nonzeros, by_name, dict(zip(module.FACTS, own, strict=True)))


# ---------------------------------------------------------------------------------------------------------- the scratch buffer

_mine = threading.local()


def _scratch(weight: Compressed) -> Tensor:
    """A dense buffer that the next call of this thread on this stream writes over: grown to the largest weight seen, never shrunk."""
    device = weight.device
    need = weight.shape[0] * weight.shape[1] * weight.dtype.itemsize
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    key = (device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0)
    buffers = _mine.__dict__.setdefault("buffers", {})
    buffer = None if capturing else buffers.get(key)  # what is allocated while a CUDA graph is captured belongs to that graph
    if buffer is None or buffer.numel() < need:
        buffers.pop(key, None)
        with torch.inference_mode(False):  # or it could not be written to outside of inference mode
            buffer = torch.empty(need, dtype=torch.uint8, device=device)
        if not capturing:
            buffers[key] = buffer
    return buffer[:need].view(weight.dtype).view(weight.shape)


def free_scratch() -> None:
    """Gives back the scratch buffers of this thread."""
    _mine.__dict__.clear()


# ------------------------------------------------------------------------------------------------- what compilers and autograd see


def _to_dense(parts: list[Tensor], facts: list[int], layout: str, dtype: torch.dtype) -> Tensor:
    return _weight(parts, facts, layout, dtype).to_dense()


def _fake_linear(x, parts, facts, layout, dtype, bias):
    _check(x, facts[1], dtype)
    return x.new_empty(*x.shape[:-1], facts[0])


def _fake_swiglu(x, parts, facts, layout, dtype, bias):
    _check(x, facts[1], dtype)
    return x.new_empty(*x.shape[:-1], facts[0] // 2)


def _fake_to_dense(parts, facts, layout, dtype):
    return parts[0].new_empty(facts[0], facts[1], dtype=dtype)


def _save(ctx, inputs, output) -> None:
    _, parts, *rest, _ = inputs
    ctx.save_for_backward(*parts)
    ctx.rest = rest


def _backward(ctx, grad: Tensor):
    """To x and bias; the weight takes no gradient."""
    to_x = to_bias = None
    if ctx.needs_input_grad[0]:
        to_x = grad @ torch.ops.kernelwright.sparse_to_dense(list(ctx.saved_tensors), *ctx.rest)
    if ctx.needs_input_grad[-1]:
        to_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
    return to_x, [None] * len(ctx.saved_tensors), None, None, None, to_bias


_library = torch.library.Library("kernelwright", "FRAGMENT")
_library.define("sparse_linear(Tensor x, Tensor[] parts, int[] facts, str layout, ScalarType dtype, Tensor? bias) -> Tensor")
_library.define("sparse_swiglu(Tensor x, Tensor[] parts, int[] facts, str layout, ScalarType dtype, Tensor? bias) -> Tensor")
_library.define("sparse_to_dense(Tensor[] parts, int[] facts, str layout, ScalarType dtype) -> Tensor")
for _name, _run, _fake in (
    ("sparse_linear", _linear, _fake_linear),
    ("sparse_swiglu", _swiglu, _fake_swiglu),
    ("sparse_to_dense", _to_dense, _fake_to_dense),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"kernelwright::{_name}", _fake, lib=_library)
torch.library.register_autograd("kernelwright::sparse_linear", _backward, setup_context=_save, lib=_library)
