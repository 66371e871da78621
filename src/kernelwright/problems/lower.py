"""`lower` turns a PyTorch function over the rows of a matrix into a RowProgram; `run` says what a RowProgram means.

The function is run once on meta tensors (shapes without storage) under a TorchFunctionMode that sees every torch call, so
modules, functions, methods and operators all arrive here in one form, with PyTorch itself inferring shapes. Rules per operation
are in `pointwise_rules` and `row_rules`. The trace is of one Workload: sizes that the function reads are constants of its program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from kernelwright.problems.builder import Builder, LoweringError, Value
from kernelwright.problems.row_rules import RULES
from kernelwright.problems.rowprogram import RowProgram

__all__ = ["Input", "LoweringError", "lower", "run"]


@dataclass(frozen=True)
class Input:
    """One argument of the function: a name for each of its dimensions, and their sizes. `cols` names the matrix's last axis."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


_CASTS = frozenset(("float", "half", "bfloat16", "double", "to", "type", "type_as", "long", "int"))
_SAME = _CASTS | frozenset(("contiguous", "clone", "detach", "data", "requires_grad_", "alias"))
_RESHAPE = frozenset(("view", "reshape", "squeeze", "unsqueeze", "flatten"))


class _Tracer(TorchFunctionMode):
    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder
        self.values: dict[int, tuple[torch.Tensor, Value | None]] = {}
        """By id of the tensor, which is kept alive so that the id stays its own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        name = _name(func)
        try:
            out = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LoweringError(f"`{name}` cannot be traced without values: {line}") from None
        tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if name == "setitem":
            raise LoweringError("`setitem` cannot be lowered: it writes into a part of a tensor")
        if tensors:
            try:
                result = self._lowered(name, args, kwargs, tensors[0])
            except LoweringError as error:
                raise LoweringError(f"`{name}` cannot be lowered: {error}") from None
            except TypeError:
                raise LoweringError(f"`{name}` cannot be lowered with these arguments") from None
            for tensor, value in zip(tensors, result, strict=True):
                self.values[id(tensor)] = (tensor, value)
        return out

    def _lowered(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> tuple[Value | None, ...]:
        first: Any = args[0] if args else None
        if name in _SAME and isinstance(first, torch.Tensor):
            if first.is_floating_point() != out.is_floating_point() and first.dtype is not torch.bool:
                raise LoweringError(f"it converts {first.dtype} to {out.dtype}")
            return (self.value(first),)
        if name in _RESHAPE and isinstance(first, torch.Tensor):
            return (_reshaped(self.value(first), first.shape, out.shape, name, args[1:], kwargs),)
        if name in ("expand", "expand_as", "broadcast_to"):
            like = self.value(args[1]) if name == "expand_as" else self.value(first)
            if tuple(out.shape) != tuple(args[1].shape if name == "expand_as" else first.shape):
                raise LoweringError("only expand_as can be lowered")
            return (Value(self.value(first).node, like.dims),)
        if name not in RULES:
            raise LoweringError("there is no rule for it")
        kwargs = {k: v for k, v in kwargs.items() if not (k == "out" and v is None)}
        values = tree_map(lambda t: self.value(t) if isinstance(t, torch.Tensor) else t, (args, kwargs))
        result = RULES[name](self.builder, *values[0], **values[1])
        return result if isinstance(result, tuple) else (result,)

    def value(self, tensor: torch.Tensor) -> Value:
        if id(tensor) in self.values:
            value = self.values[id(tensor)][1]
            if value is None:
                raise LoweringError("it uses the indices that max or min return")
            return value
        if tensor.numel() == 1 and not tensor.is_meta:
            return self.builder.const(float(tensor.detach()), ("1",) * tensor.ndim)
        raise LoweringError("it uses a tensor that is neither an input, a parameter nor a buffer")


def _name(func: Any) -> str:
    """`__rsub__` and `sub_` are `rsub` and `sub`; a property is its own name."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return func.__self__.__name__
    return name if name == "requires_grad_" else name.strip("_")


def _reshaped(v: Value, old: torch.Size, new: torch.Size, name: str, args: Any, kwargs: Any) -> Value:
    if name == "unsqueeze":
        dim = args[0] if args else kwargs["dim"]
        at = dim if dim >= 0 else len(new) + dim
        return Value(v.node, (*v.dims[:at], "1", *v.dims[at:]))
    if old == new and name != "squeeze":
        return v
    if tuple(new) == (*old, 1):
        return Value(v.node, (*v.dims, "1"))
    if v.dims[-1:] == ("1",) and new == old[:-1]:
        return Value(v.node, v.dims[:-1])
    raise LoweringError(f"it changes the shape from {tuple(old)} to {tuple(new)}")


def lower(function: Callable[..., Any], inputs: Mapping[str, Input], outputs: tuple[str, ...]) -> RowProgram:
    """Program of `function(**inputs)`, whose results are named `outputs` in order.

    The input with the most dimensions is the full matrix: its last axis must be `cols`, its other axes fold into rows. Raises
    LoweringError, naming the operation, when the function is not element-wise, row-reducing or row-scanning.
    """
    full = max(inputs.values(), key=lambda i: len(i.axes), default=Input((), ()))
    if full.axes[-1:] != ("cols",):
        raise LoweringError("no input is a matrix of rows and columns")
    builder = Builder(full.axes[:-1], full.shape[-1])
    tracer = _Tracer(builder)
    arguments = {}
    for name, given in inputs.items():
        arguments[name] = torch.empty(given.shape, dtype=given.dtype, device="meta")
        tracer.values[id(arguments[name])] = (arguments[name], builder.input(name, given.axes))
    with tracer:
        result = function(**arguments)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    return builder.program({name: tracer.value(t) for name, t in zip(outputs, results, strict=True)})


def run(program: RowProgram, inputs: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Outputs of the program, every value in `dtype`: (rows, cols), (rows,), (cols,) or () by the shape of the output's node.

    This is the meaning of every node in code: comparisons give 1 or 0, NaN and infinity behave as in PyTorch. It serves tests
    and readers; it is not a rival and not a reference.
    """
    values: list[torch.Tensor] = []
    full = next((inputs[n.name] for n in program.nodes if n.op == "input" and n.shape == "full"), None)
    device = full.device if full is not None else "cpu"
    for node in program.nodes:
        a = [values[i] for i in node.args]
        if node.op == "input":
            x = _matrix(inputs[node.name], node.shape)
            value = x.to(dtype) if x.is_floating_point() else x
        elif node.op == "const":
            value = torch.full((1, 1), node.value, dtype=dtype, device=device)
        elif node.op == "index":
            assert full is not None
            value = torch.arange(full.shape[-1], dtype=dtype, device=device).reshape(1, -1)
        elif node.op == "where":
            value = torch.where(a[0] != 0, a[1], a[2])
        elif node.op == "reduce":
            value = a[0].sum(-1, keepdim=True) if node.name == "sum" else getattr(a[0], f"a{node.name}")(-1, keepdim=True)
        elif node.op == "scan":
            value = a[0].cumsum(-1)
        elif node.op == "pick":
            value = a[0].gather(-1, a[1])
        elif node.op == "rotate_half":
            left, right = a[0].chunk(2, -1)
            value = torch.cat((-right, left), -1)
        else:
            value = getattr(torch, node.op)(*a).to(dtype)
        values.append(value)
    squeeze = {"full": lambda t: t, "row": lambda t: t[:, 0], "col": lambda t: t[0], "one": lambda t: t[0, 0]}
    return {name: squeeze[program.nodes[n].shape](values[n]) for name, n in program.outputs.items()}


def _matrix(x: torch.Tensor, shape: str) -> torch.Tensor:
    if shape == "full":
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return x.reshape({"row": (x.numel(), 1), "col": (1, x.numel()), "one": (1, 1)}[shape])
