"""How PyTorch operations along the rows become nodes: reductions, norms, softmax, losses, scans, halves of a row.

The form and the purpose of the rules are those of `pointwise_rules`; importing this module completes its table.
"""

from __future__ import annotations

import math
from typing import Any

from kernelwright.problems.builder import HALVES, Builder, LoweringError, Value
from kernelwright.problems.pointwise_rules import RULES, rule

__all__ = ["RULES"]

# ----------------------------------------------------------------------------------------------- reductions along a row


def _along_columns(x: Value, dim: Any) -> None:
    dims = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    if dims not in ((-1,), (len(x.dims) - 1,)):
        where = "all dimensions" if dim is None else f"dimension {dim}"
        raise LoweringError(f"it works along {where} of {len(x.dims)}; only the last one can be lowered")


@rule("sum")
def _sum(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    return b.reduce("sum", x, keepdim)


@rule("mean")
def _mean(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    return b.mean(x, keepdim)


@rule("amax")
def _amax(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    _along_columns(x, dim)
    return b.reduce("max", x, keepdim)


@rule("amin")
def _amin(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    _along_columns(x, dim)
    return b.reduce("min", x, keepdim)


@rule("max")
def _max(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Value):
        return b.apply("maximum", x, dim)
    return (_amax(b, x, dim, keepdim), None)


@rule("min")
def _min(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Value):
        return b.apply("minimum", x, dim)
    return (_amin(b, x, dim, keepdim), None)


def _centred(b: Builder, x: Value) -> Value:
    return b.apply("sub", x, b.mean(x))


@rule("var")
def _var(b: Builder, x: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None) -> Value:
    _along_columns(x, dim)
    squares = b.reduce("sum", b.apply("square", _centred(b, x)), keepdim)
    free = b.cols - (int(unbiased) if correction is None else correction)
    return b.apply("div", squares, max(0, free))


@rule("std")
def _std(b: Builder, x: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None) -> Value:
    return b.apply("sqrt", _var(b, x, dim, unbiased, keepdim, correction=correction))


def _p_norm(b: Builder, x: Value, p: Any, keepdim: bool) -> Value:
    if p in (None, 2, 2.0, "fro"):
        return b.apply("sqrt", b.reduce("sum", b.apply("square", x), keepdim))
    if p == 1:
        return b.reduce("sum", b.apply("abs", x), keepdim)
    if p == math.inf:
        return b.reduce("max", b.apply("abs", x), keepdim)
    raise LoweringError(f"norm of order {p}; orders 1, 2 and inf can be lowered")


@rule("norm")
def _norm(b: Builder, x: Value, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    return _p_norm(b, x, p, keepdim)


@rule("linalg_norm", "linalg_vector_norm")
def _linalg_norm(b: Builder, x: Value, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    return _p_norm(b, x, ord, keepdim)


@rule("normalize")
def _normalize(b: Builder, x: Value, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Value:
    _along_columns(x, dim)
    return b.apply("div", x, b.apply("maximum", _p_norm(b, x, p, keepdim=True), eps))


def _shifted(b: Builder, x: Value) -> Value:
    return b.apply("sub", x, b.reduce("max", x))


@rule("softmax")
def _softmax(b: Builder, x: Value, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    e = b.apply("exp", _shifted(b, x))
    return b.apply("div", e, b.reduce("sum", e))


@rule("log_softmax")
def _log_softmax(b: Builder, x: Value, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    shifted = _shifted(b, x)
    return b.apply("sub", shifted, b.apply("log", b.reduce("sum", b.apply("exp", shifted))))


@rule("softmin")
def _softmin(b: Builder, x: Value, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    return _softmax(b, b.apply("neg", x), dim)


@rule("logsumexp")
def _logsumexp(b: Builder, x: Value, dim: Any, keepdim: bool = False) -> Value:
    _along_columns(x, dim)
    # an infinite maximum is not subtracted, or inf - inf would turn the sum into NaN
    largest = b.reduce("max", x)
    shift = b.apply("where", b.apply("eq", b.apply("abs", largest), math.inf), 0.0, largest)
    total = b.reduce("sum", b.apply("exp", b.apply("sub", x, shift)))
    result = b.apply("add", b.apply("log", total), shift)
    return result if keepdim else Value(result.node, result.dims[:-1])


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = b.apply("mul", x, weight)
    return x if bias is None else b.apply("add", x, bias)


@rule("layer_norm")
def _layer_norm(
    b: Builder, x: Value, normalized_shape: Any, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    if len(normalized_shape) != 1:
        raise LoweringError("it normalises over several dimensions; only the last one can be lowered")
    centred = _centred(b, x)
    variance = b.mean(b.apply("square", centred))
    return _affine(b, b.apply("mul", centred, b.apply("rsqrt", b.apply("add", variance, eps))), weight, bias)


@rule("rms_norm")
def _rms_norm(b: Builder, x: Value, normalized_shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    if len(normalized_shape) != 1:
        raise LoweringError("it normalises over several dimensions; only the last one can be lowered")
    mean = b.mean(b.apply("square", x))
    eps = 2.0**-23 if eps is None else eps  # PyTorch's default is the machine epsilon of the compute type
    return _affine(b, b.apply("mul", x, b.apply("rsqrt", b.apply("add", mean, eps))), weight, None)


@rule("cumsum")
def _cumsum(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    _along_columns(x, dim)
    return b.scan(x)


@rule("gather")
def _gather(b: Builder, x: Value, dim: int, index: Value) -> Value:
    _along_columns(x, dim)
    if b.shape_of(index.dims) != "row" or len(index.dims) != len(x.dims):
        raise LoweringError("its index must hold one column a row")
    return b.pick(x, index, keepdim=True)


@rule("nll_loss")
def _nll_loss(b: Builder, x: Value, target: Value, weight: Any = None, *_: Any, reduction: str = "mean", **__: Any) -> Value:
    if weight is not None or reduction != "none" or len(x.dims) != 2:
        raise LoweringError("it needs (rows, cols) inputs, no class weights and reduction='none'")
    return b.apply("neg", b.pick(x, target, keepdim=False))


@rule("cross_entropy")
def _cross_entropy(
    b: Builder,
    x: Value,
    target: Value,
    weight: Any = None,
    *_: Any,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **__: Any,
) -> Value:
    if label_smoothing:
        raise LoweringError("label smoothing cannot be lowered")
    return _nll_loss(b, _log_softmax(b, x, -1), target, weight, reduction=reduction)


@rule("dropout")
def _dropout(b: Builder, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training and p > 0:
        raise LoweringError("its result is random while the module is training")
    return x


# ---------------------------------------------------------------------------------------------------- halves of a row


@rule("chunk")
def _chunk(b: Builder, x: Value, chunks: int, dim: int = 0) -> tuple[Value, Value]:
    _along_columns(x, dim)
    if chunks != 2 or b.cols % 2:
        raise LoweringError("only a split of an even number of columns into two halves can be lowered")
    return _half(b, x, 0), _half(b, x, 1)


@rule("split")
def _split(b: Builder, x: Value, size: Any, dim: int = 0) -> tuple[Value, Value]:
    if size not in (b.cols // 2, [b.cols // 2] * 2, (b.cols // 2,) * 2):
        raise LoweringError("only a split of the columns into two halves can be lowered")
    return _chunk(b, x, 2, dim)


def _half(b: Builder, x: Value, which: int) -> Value:
    return Value(x.node, (*x.dims[:-1], HALVES[which]))


@rule("cat", "concat", "concatenate")
def _cat(b: Builder, tensors: Any, dim: int = 0) -> Value:
    if len(tensors) == 2 and all(isinstance(t, Value) for t in tensors):
        _along_columns(tensors[0], dim)
        if (joined := b.rotate_half(*tensors)) is not None:
            return joined
    raise LoweringError("only cat((-right, left), -1) of the two halves of one tensor can be lowered")


@rule("getitem")
def _getitem(b: Builder, x: Value, index: Any) -> Value:
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        missing = len(x.dims) - sum(e is not None for e in entries) + 1
        entries[at : at + 1] = [slice(None)] * missing
    entries += [slice(None)] * (len(x.dims) - sum(e is not None for e in entries))
    out: list[str] = []
    dims = iter(x.dims)
    for entry in entries:
        if entry is None:
            out.append("1")
        elif entry == slice(None):
            out.append(next(dims))
        else:
            out.append(_sliced(b, next(dims), entry))
    return Value(x.node, tuple(out))


def _sliced(b: Builder, dim: str, entry: Any) -> str:
    if dim == "cols" and isinstance(entry, slice) and entry.step in (None, 1) and b.cols % 2 == 0:
        half = b.cols // 2
        if entry.start in (None, 0) and entry.stop == half:
            return HALVES[0]
        if entry.start == half and entry.stop in (None, b.cols):
            return HALVES[1]
    raise LoweringError("only whole dimensions and the two halves of a row can be indexed")
