"""RowProgram nodes as C++ expressions over `vec.h`'s f32v.

A value that is named once is written where it is used; one that is named twice, or makes its line too long, gets a variable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kernelwright.families.chain_cpu.schedule import Schedule
from kernelwright.problems.rowprogram import Node

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
CALLS = frozenset(("abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf"))
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_LONGEST = 88
"""Characters of one expression."""


@dataclass(frozen=True)
class Text:
    """A piece of C++ and how tightly it binds: 3 a name or a call, 2 a product, 1 a sum, 0 anything else."""

    code: str
    binds: int = 3
    scalar: bool = False
    """A float, as opposed to a register of them."""

    def inside(self, binds: int) -> str:
        return self.code if self.binds >= binds else f"({self.code})"

    @property
    def vector(self) -> str:
        return f"splat({self.code})" if self.scalar else self.code


@dataclass(frozen=True)
class Place:
    """Where along the row an expression is evaluated: the first column, and the lanes object for loads."""

    column: str = "j"
    lanes: str = "lanes"


@dataclass
class Names:
    """Names of values: inputs keep theirs, others are called after their operation and numbered: x_j, exp1, sum2."""

    schedule: Schedule
    constants: Mapping[int, str]
    """C++ of the constants that depend on the axes."""
    strided: frozenset[str]
    """Tensors with a leading dimension."""
    taken: dict[int, str] = field(default_factory=dict)

    def of(self, n: int) -> str:
        if n not in self.taken:
            node = self.schedule.nodes[n]
            stem = node.name if node.op == "reduce" else "mean" if self._is_mean(n) else node.op
            number = 1 + sum(name.rstrip("0123456789") == stem for name in self.taken.values())
            self.taken[n] = f"{node.name}_j" if node.op == "input" else f"{stem}{number}"
        return self.taken[n]

    def _is_mean(self, n: int) -> bool:
        nodes, args = self.schedule.nodes, self.schedule.nodes[n].args
        return nodes[n].op == "div" and nodes[args[0]].name == "sum" and self.constants.get(args[1]) == "(float)cols"

    def constant(self, n: int) -> str:
        return self.constants.get(n) or literal(self.schedule.nodes[n].value)


def literal(value: float) -> str:
    """The float32 nearest to value, as the shortest C++ literal that reads back as it."""
    if math.isnan(value):
        return '__builtin_nanf("")'
    rounded = float(np.float32(value)) if abs(value) < 3.5e38 else math.copysign(math.inf, value)
    if math.isinf(rounded):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    text = str(np.float32(value))
    return (text if any(c in text for c in ".e") else text + ".0") + "f"


class Expressions:
    """Writes the expressions of one scope: the body of one sweep, or the code between two sweeps."""

    def __init__(self, names: Names, uses: Mapping[int, int], p: int, indent: str, outer: Expressions | None = None) -> None:
        """`uses`: how often each node is named in this scope. `outer` holds the row values that this scope sees."""
        self.names, self.schedule, self.uses, self.p, self.outer = names, names.schedule, uses, p, outer
        self.indent = indent
        self.lines: list[str] = []
        self.known: dict[tuple[int, Place], Text] = {}
        self.divisors: dict[int, str] = {}
        self.rotated: tuple[str, str] | None = None
        """Within a rotating sweep: the column that rotate_half reads, and the sign it takes."""

    def line(self, code: str) -> None:
        self.lines.append(self.indent + code)

    def value(self, n: int, at: Place = Place()) -> Text:
        schedule = self.schedule
        if not schedule.wide(n):
            at = Place()
            if self.outer is not None:
                return self.outer.value(n)
        if (n, at) in self.known:
            return self.known[n, at]
        text = self._kept(n, at) if n in schedule.kept and schedule.ready[n] < self.p else self._write(n, at)
        repeated = self.uses.get(n, 0) > 1
        if not text.scalar and (repeated or len(text.code) > _LONGEST):
            text = self.variable(n, text, at)
        if repeated:
            self.known[n, at] = text
        return text

    def variable(self, n: int, text: Text, at: Place = Place()) -> Text:
        name = self.names.of(n) + ("" if at == Place() else "_across")
        if self.schedule.nodes[n].op in COMPARE:
            self.line(f"const i32v {name} = {text.code};")
        else:
            self.line(f"const f32v {name} = {text.vector};")
        return Text(name)

    def number(self, n: int, at: Place = Place()) -> Text:
        """The value as a number: a comparison counts 1 or 0."""
        text = self.value(n, at)
        return Text(f"to_float({text.code})") if self.schedule.nodes[n].op in COMPARE else text

    def _kept(self, n: int, at: Place) -> Text:
        return Text(f"load(kept_{self.names.of(n)} + {at.column}, {at.lanes})")

    def _write(self, n: int, at: Place) -> Text:
        node = self.schedule.nodes[n]
        match node.op:
            case "input" if self.schedule.wide(n):
                row = f"{node.name}_row" if node.shape == "full" else node.name
                return Text(f"load({row} + {at.column}, {at.lanes})")
            case "input":
                return Text(f"load_one({node.name}{f' + {self._row_of(node.name)}' if node.shape == 'row' else ''})")
            case "reduce":
                return Text(f"parts_{self.names.of(n)}.total()")
            case "const":
                return Text(self.names.constant(n), scalar=True)
            case "index":
                return Text(f"to_index({at.column})")
            case "scan":
                return Text(f"running_{self.names.of(n)}.add(only({self.number(node.args[0], at).vector}, {at.lanes}, 0.0f))")
            case "rotate_half":
                assert self.rotated is not None
                column, sign = self.rotated
                text = self.number(node.args[0], Place(column, at.lanes))
                return Text(f"-{text.inside(3)}", 2) if sign == "-" else text
            case "pick":
                return self._pick(n)
            case "where":
                condition = self.value(node.args[0], at)
                if self.schedule.nodes[node.args[0]].op not in COMPARE:
                    condition = Text(f"{condition.vector} != 0.0f", 0)
                chosen, other = (self.number(a, at) for a in node.args[1:])
                return Text(f"{condition.inside(1)} ? {Text(chosen.vector, chosen.binds).inside(1)} : {_inside(other)}", 0)
        return self._arithmetic(n, at)

    def _pick(self, n: int) -> Text:
        node = self.schedule.nodes[n]
        column = f"column_{self.names.of(n)}"
        target = self.schedule.nodes[node.args[1]].name
        self.line(f"const long {column} = {target}[{self._row_of(target)}];")
        inner = Expressions(self.names, {}, self.schedule.ready[n], self.indent, self)
        text = inner.number(node.args[0], Place(column, "Part{1}"))
        self.lines += inner.lines
        return Text(f"splat(({text.vector})[0])")

    def _row_of(self, name: str) -> str:
        return f"row * ld_{name}" if name in self.names.strided else "row"

    def _arithmetic(self, n: int, at: Place) -> Text:
        node = self.schedule.nodes[n]
        if node.op in INFIX:
            return self._infix(n, at)
        a, *rest = (self.number(arg, at) for arg in node.args)
        match node.op:
            case "neg":
                return Text(f"-{a.inside(3)}", 2, a.scalar)
            case "reciprocal":
                return Text(f"1.0f / {Text(a.vector, a.binds).inside(3)}", 2)
            case "relu":
                return Text(f"at_least({a.vector}, 0.0f)")
            case "square":
                a = self._atom(node.args[0], at)
                return Text(f"{a.code} * {a.code}", 2)
            case "maximum" | "minimum":
                limit = "at_least" if node.op == "maximum" else "at_most"
                for x, y in ((a, rest[0]), (rest[0], a)):
                    if y.scalar and "nan" not in y.code:
                        return Text(f"{limit}({x.vector}, {y.code})")
                return Text(f"{node.op}({a.vector}, {rest[0].vector})")
            case "pow":
                return self._power(n, at)
        if node.op in COMPARE:
            return Text(f"{a.vector if rest[0].scalar else a.inside(1)} {COMPARE[node.op]} {rest[0].inside(1)}", 0)
        if node.op == "exp" and self._below_maximum(node.args[0]):
            return Text(f"exp_of_negative({a.vector})")
        if node.op in CALLS:
            return Text(f"{node.op}({a.vector})")
        raise ValueError(f"chain_cpu has no C++ for the operation {node.op!r}")

    def _below_maximum(self, n: int) -> bool:
        """Whether a value is x - max(x), and so never positive."""
        nodes = self.schedule.nodes
        if nodes[n].op != "sub":
            return False
        x, top = nodes[n].args
        return nodes[top].op == "reduce" and nodes[top].name == "max" and nodes[top].args == (x,)

    def _infix(self, n: int, at: Place) -> Text:
        node = self.schedule.nodes[n]
        sign = INFIX[node.op]
        left, right = node.args
        if node.op == "div" and right not in self.names.constants and (inverse := _inverse(self.schedule.nodes[right])):
            return Text(f"{self.number(left, at).inside(2)} * {literal(inverse)}", 2)
        if node.op == "div" and not self.schedule.wide(right) and self.schedule.wide(left):
            return Text(f"{self.number(left, at).inside(2)} / {self._divisor(right)}", 2)
        a, b = self.number(left, at), self.number(right, at)
        binds = _BINDS[sign]
        first = Text(a.vector, a.binds) if a.scalar and b.scalar else a
        return Text(f"{first.inside(binds)} {sign} {b.inside(binds + (sign in '-/'))}", binds)

    def _divisor(self, n: int) -> str:
        if self.outer is not None:
            return self.outer._divisor(n)
        if n not in self.divisors:
            text = self.value(n)
            name = f"by_{self.names.of(n)}"
            self.line(f"const Divisor {name} = Divisor::make({text.vector});")
            self.divisors[n] = name
        return self.divisors[n]

    def _power(self, n: int, at: Place) -> Text:
        base, exponent = self.schedule.nodes[n].args
        value = self.schedule.nodes[exponent].value if self.schedule.nodes[exponent].op == "const" else None
        if value in (2.0, 3.0, 4.0):
            x = self._atom(base, at).code
            return Text(f"({x} * {x}) * ({x} * {x})" if value == 4.0 else " * ".join([x] * int(value)), 2)
        if value in (0.5, -0.5):
            return Text(f"{'sqrt' if value > 0 else 'rsqrt'}({self.number(base, at).vector})")
        return Text(f"pow({self.number(base, at).vector}, {self.number(exponent, at).vector})")

    def _atom(self, n: int, at: Place) -> Text:
        """The value under a name, for expressions that name it twice."""
        text = self.value(n, at)
        if text.code.isidentifier():
            return text
        named = self.variable(n, self.number(n, at) if self.schedule.nodes[n].op in COMPARE else text, at)
        self.known[n, at] = named
        return named


def _inverse(node: Node) -> float | None:
    """1 / value of a constant, where neither leaves the normal range: a product takes a fraction of a division's time."""
    return 1.0 / node.value if node.op == "const" and 2.0**-100 < abs(node.value) < 2.0**100 else None


def _inside(text: Text) -> str:
    return Text(text.vector, text.binds).inside(1)
