"""How each PyTorch operation becomes nodes: one function per operation, found by the operation's name.

A rule gets the Builder, then the operation's arguments with traced tensors as Values, and returns a Value (or a tuple where the
operation returns several tensors, None for those a program cannot use). Rules choose the form that is accurate in float32:
softmax subtracts the maximum, variances are of centred values, log(1 + x) and exp(x) - 1 keep small results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelwright.problems.builder import HALVES, Builder, LoweringError, Operand, Value

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"two lowering rules for {name!r}")
            RULES[name] = function
        return function

    return add


def _operation(op: str) -> Rule:
    return lambda b, *operands, inplace=False: b.apply(op, *operands)


for _names, _op in {
    ("exp",): "exp",
    ("log",): "log",
    ("sqrt",): "sqrt",
    ("rsqrt",): "rsqrt",
    ("reciprocal",): "reciprocal",
    ("tanh",): "tanh",
    ("sigmoid",): "sigmoid",
    ("erf",): "erf",
    ("relu",): "relu",
    ("square",): "square",
    ("abs", "absolute"): "abs",
    ("neg", "negative"): "neg",
    ("mul", "multiply", "rmul", "logical_and", "and"): "mul",
    ("div", "divide", "true_divide", "truediv"): "div",
    ("maximum", "logical_or", "or"): "maximum",
    ("minimum",): "minimum",
    ("lt", "less"): "lt",
    ("le", "less_equal"): "le",
    ("gt", "greater"): "gt",
    ("ge", "greater_equal"): "ge",
    ("eq",): "eq",
    ("ne", "not_equal"): "ne",
}.items():
    rule(*_names)(_operation(_op))


# ---------------------------------------------------------------------------------------------------------- arithmetic


@rule("add", "radd")
def _add(b: Builder, x: Operand, y: Operand, *, alpha: float = 1) -> Value:
    return b.apply("add", x, y if alpha == 1 else b.apply("mul", y, alpha))


@rule("sub", "subtract")
def _sub(b: Builder, x: Operand, y: Operand, *, alpha: float = 1) -> Value:
    return b.apply("sub", x, y if alpha == 1 else b.apply("mul", y, alpha))


@rule("rsub")
def _rsub(b: Builder, x: Operand, y: Operand) -> Value:
    return b.apply("sub", y, x)


@rule("rdiv", "rtruediv")
def _rdiv(b: Builder, x: Operand, y: Operand) -> Value:
    return b.apply("div", y, x)


@rule("pow", "float_power")
def _pow(b: Builder, x: Operand, y: Operand) -> Value:
    special: dict[float, Callable[[], Value]] = {
        2.0: lambda: b.apply("square", x),
        3.0: lambda: b.apply("mul", b.apply("square", x), x),
        4.0: lambda: b.apply("square", b.apply("square", x)),
        0.5: lambda: b.apply("sqrt", x),
        -0.5: lambda: b.apply("rsqrt", x),
        -1.0: lambda: b.apply("reciprocal", x),
    }
    exponent = b.constant_of(y)
    if exponent == 1.0 and isinstance(x, Value):
        return x
    return special[exponent]() if exponent in special else b.apply("pow", x, y)


@rule("rpow")
def _rpow(b: Builder, x: Operand, base: Operand) -> Value:
    return b.apply("pow", base, x)


@rule("expm1")
def _expm1(b: Builder, x: Value) -> Value:
    # 2 t / (1 - t), t = tanh(x / 2), has no cancellation below zero, which is where ELU and SELU use it
    t = b.apply("tanh", b.apply("mul", x, 0.5))
    return b.apply("div", b.apply("mul", t, 2.0), b.apply("sub", 1.0, t))


@rule("log1p")
def _log1p(b: Builder, x: Value) -> Value:
    # W. Kahan's: the rounding of w = 1 + x cancels in log(w) x / (w - 1)
    w = b.apply("add", x, 1.0)
    careful = b.apply("div", b.apply("mul", b.apply("log", w), x), b.apply("sub", w, 1.0))
    return b.apply("where", b.apply("eq", w, 1.0), x, careful)


@rule("exp2")
def _exp2(b: Builder, x: Value) -> Value:
    return b.apply("exp", b.apply("mul", x, math.log(2.0)))


@rule("log2")
def _log2(b: Builder, x: Value) -> Value:
    return b.apply("mul", b.apply("log", x), 1.0 / math.log(2.0))


@rule("clamp", "clip")
def _clamp(b: Builder, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    if min is not None:
        x = b.apply("maximum", x, min)
    return x if max is None else b.apply("minimum", x, max)


@rule("clamp_min")
def _clamp_min(b: Builder, x: Value, min: Operand) -> Value:
    return b.apply("maximum", x, min)


@rule("clamp_max")
def _clamp_max(b: Builder, x: Value, max: Operand) -> Value:
    return b.apply("minimum", x, max)


@rule("where")
def _where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    return b.apply("where", condition, x, y)


@rule("masked_fill")
def _masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return b.apply("where", mask, value, x)


@rule("sign", "sgn")
def _sign(b: Builder, x: Value) -> Value:
    return b.apply("sub", b.apply("gt", x, 0.0), b.apply("lt", x, 0.0))


@rule("addcmul")
def _addcmul(b: Builder, x: Value, y: Value, z: Value, *, value: float = 1) -> Value:
    return _add(b, x, b.apply("mul", y, z), alpha=value)


@rule("lerp")
def _lerp(b: Builder, start: Value, end: Value, weight: Operand) -> Value:
    return b.apply("add", start, b.apply("mul", b.apply("sub", end, start), weight))


@rule("zeros_like")
def _zeros_like(b: Builder, x: Value, **_: Any) -> Value:
    return b.const(0.0, x.dims)


@rule("ones_like")
def _ones_like(b: Builder, x: Value, **_: Any) -> Value:
    return b.const(1.0, x.dims)


@rule("full_like")
def _full_like(b: Builder, x: Value, fill_value: float, **_: Any) -> Value:
    return b.const(fill_value, x.dims)


@rule("tensor", "scalar_tensor", "as_tensor")
def _tensor(b: Builder, data: Any, **_: Any) -> Value:
    if not isinstance(data, int | float):
        raise LoweringError("only a tensor of one number can be made inside the function")
    return b.const(data)


@rule("arange")
def _arange(b: Builder, *bounds: int, **_: Any) -> Value:
    if bounds not in ((b.cols,), (0, b.cols)):
        raise LoweringError(f"its range must be the columns, 0 to {b.cols}")
    return b.index()


# --------------------------------------------------------------------------------------------------------- activations


@rule("gelu")
def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        inner = b.apply("add", x, b.apply("mul", _pow(b, x, 3.0), 0.044715))
        gate = b.apply("tanh", b.apply("mul", inner, math.sqrt(2.0 / math.pi)))
    else:
        gate = b.apply("erf", b.apply("mul", x, math.sqrt(0.5)))
    return b.apply("mul", b.apply("mul", x, 0.5), b.apply("add", gate, 1.0))


@rule("silu")
def _silu(b: Builder, x: Value, inplace: bool = False) -> Value:
    return b.apply("mul", x, b.apply("sigmoid", x))


@rule("hardtanh")
def _hardtanh(b: Builder, x: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return _clamp(b, x, min_val, max_val)


@rule("relu6")
def _relu6(b: Builder, x: Value, inplace: bool = False) -> Value:
    return _clamp(b, x, 0.0, 6.0)


@rule("hardsigmoid")
def _hardsigmoid(b: Builder, x: Value, inplace: bool = False) -> Value:
    return b.apply("div", _clamp(b, b.apply("add", x, 3.0), 0.0, 6.0), 6.0)


@rule("hardswish")
def _hardswish(b: Builder, x: Value, inplace: bool = False) -> Value:
    return b.apply("div", b.apply("mul", x, _clamp(b, b.apply("add", x, 3.0), 0.0, 6.0)), 6.0)


@rule("leaky_relu")
def _leaky_relu(b: Builder, x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return b.apply("where", b.apply("gt", x, 0.0), x, b.apply("mul", x, negative_slope))


@rule("prelu")
def _prelu(b: Builder, x: Value, weight: Value) -> Value:
    if b.shape_of(weight.dims) != "one":
        raise LoweringError("it needs one slope for all channels")
    return b.apply("where", b.apply("gt", x, 0.0), x, b.apply("mul", x, weight))


def _exponential(b: Builder, x: Value, positive: float, negative: float, inner: float) -> Value:
    below = b.apply("mul", _expm1(b, b.apply("mul", b.apply("minimum", x, 0.0), inner)), negative)
    return b.apply("where", b.apply("gt", x, 0.0), b.apply("mul", x, positive), below)


@rule("elu")
def _elu(b: Builder, x: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    return _exponential(b, x, 1.0, alpha, 1.0)


@rule("celu")
def _celu(b: Builder, x: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    return _exponential(b, x, 1.0, alpha, 1.0 / alpha)


@rule("selu")
def _selu(b: Builder, x: Value, inplace: bool = False) -> Value:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717  # Klambauer et al. 2017
    return _exponential(b, x, scale, scale * alpha, 1.0)


@rule("softplus")
def _softplus(b: Builder, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = b.apply("mul", x, beta)
    tail = _log1p(b, b.apply("exp", b.apply("neg", b.apply("abs", scaled))))
    smooth = b.apply("div", b.apply("add", b.apply("relu", scaled), tail), beta)
    return b.apply("where", b.apply("gt", scaled, threshold), x, smooth)


@rule("logsigmoid", "log_sigmoid")
def _logsigmoid(b: Builder, x: Value) -> Value:
    tail = _log1p(b, b.apply("exp", b.apply("neg", b.apply("abs", x))))
    return b.apply("sub", b.apply("minimum", x, 0.0), tail)


@rule("mish")
def _mish(b: Builder, x: Value, inplace: bool = False) -> Value:
    return b.apply("mul", x, b.apply("tanh", _softplus(b, x)))


@rule("softsign")
def _softsign(b: Builder, x: Value) -> Value:
    return b.apply("div", x, b.apply("add", b.apply("abs", x), 1.0))


@rule("tanhshrink")
def _tanhshrink(b: Builder, x: Value) -> Value:
    return b.apply("sub", x, b.apply("tanh", x))


@rule("threshold")
def _threshold(b: Builder, x: Value, threshold: float, value: float, inplace: bool = False) -> Value:
    return b.apply("where", b.apply("le", x, threshold), value, x)


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
def _var(
    b: Builder, x: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Value:
    _along_columns(x, dim)
    squares = b.reduce("sum", b.apply("square", _centred(b, x)), keepdim)
    free = b.cols - (int(unbiased) if correction is None else correction)
    return b.apply("div", squares, max(0, free))


@rule("std")
def _std(
    b: Builder, x: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Value:
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
