"""How element-wise PyTorch operations become nodes: one function per operation, found by the operation's name.

A rule gets the Builder, then the operation's arguments with traced tensors as Values, and returns a Value (or a tuple where the
operation returns several tensors, None for those a program cannot use). Rules choose the form that is accurate in float32:
softmax subtracts the maximum, variances are of centred values, log(1 + x) and exp(x) - 1 keep small results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelwright.problems.builder import Builder, LoweringError, Operand, Value

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
