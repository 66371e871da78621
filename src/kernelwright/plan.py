"""Expressions of a launch plan: integers and conditions over a Workload's axes.

Names that an expression may use:
    every axis of the Workload              M, N, K, rows, cols ...
    `ld_X`     for each tensor X            elements between neighbouring rows of the stored matrix
    `numel_X`  for each tensor X            elements
    `align_X`  for each tensor X            largest power of two (at most 256) that divides the address, bytes
    `sms`                                   multiprocessors of the device (1 on a CPU)
Operators: + - * // % << >>, comparisons, and / or / not, parentheses; functions cdiv(a, b), min, max.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import lru_cache

from kernelwright.records import Expr, LaunchPlan


class PlanError(ValueError):
    """An expression that cannot be evaluated; the message names it."""


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS = {"cdiv": cdiv, "min": min, "max": max}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > 500:
        raise PlanError(f"expression of {len(text)} characters; at most 500 are allowed")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise PlanError(f"cannot parse expression {text!r}: {error}") from None


class Names(dict[str, int]):
    """Names with their values, not to be changed once made: hashable, so that a plan is evaluated once for the ten sets of buffers that a
    cold timing uses (3 ms saved of the 40 that a screen on a GPU takes)."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


def evaluate(expr: Expr, names: Mapping[str, int]) -> int:
    """Value of an expression. Raises PlanError for unknown names, other syntax, or division by zero."""
    if isinstance(expr, int):
        return expr
    return _remembered(expr, names) if isinstance(names, Names) else _evaluate(expr, names)


@lru_cache(maxsize=4096)
def _remembered(expr: str, names: Names) -> int:
    return _evaluate(expr, names)


def _evaluate(expr: str, names: Mapping[str, int]) -> int:
    try:
        return int(_value(_parse(expr), names))
    except (ZeroDivisionError, OverflowError, RecursionError) as error:
        raise PlanError(f"cannot evaluate {expr!r}: {error}") from None
    except PlanError as error:
        raise PlanError(f"cannot evaluate {expr!r}: {error}") from None


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise PlanError(f"unknown name {name!r}; known are {', '.join(names)}")
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left, names), _value(right, names)
            if isinstance(op, ast.LShift | ast.RShift) and not 0 <= b < 63:
                raise PlanError(f"shift by {b}")
            return _BINARY[type(op)](a, b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(v, names) for v in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(v, names) for v in values)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(o) in _COMPARE for o in ops):
            terms = [_value(left, names), *(_value(r, names) for r in rights)]
            return all(_COMPARE[type(o)](a, b) for o, a, b in zip(ops, terms, terms[1:], strict=False))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and _arity(name, len(args)):
            return _CALLS[name](*(_value(a, names) for a in args))
    raise PlanError(f"{ast.unparse(node)!r} is not allowed")


def _arity(name: str, count: int) -> bool:
    return count == 2 if name == "cdiv" else count >= 2


def unmet(plan: LaunchPlan, names: Mapping[str, int]) -> str | None:
    """The first requirement of the plan that does not hold, as a sentence; None when all hold."""
    for condition in plan.requires:
        if not evaluate(condition, names):
            used = {n.id for n in ast.walk(_parse(condition)) if isinstance(n, ast.Name)} & set(names)
            values = ", ".join(f"{name} = {names[name]}" for name in sorted(used))
            return f"it requires {condition} ({values})"
    return None
