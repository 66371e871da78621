"""Writes the struct `Chain`: what a chain does with one vector of a row, one line of CUDA C++ a node.

The loops around it are real code (`pointwise.cuh`, `rows.cuh`); this is only the arithmetic in between.
"""

from __future__ import annotations

import math
import re

from kernelwright.families.chain_cuda.program import ChainProgram

CTYPES = {"fp32": "float", "fp16": "f16", "bf16": "bf16", "int32": "int", "int64": "long long"}

_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
    auto bool break case char class const continue default delete do double else enum explicit extern false float for
    friend goto if inline int long mutable namespace new operator private protected public register return short signed
    sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile
    while and or not xor slot columns r row rows col cols j left partial p a b load store load_row store_row accumulate
    combine identity finish skip scanned scans number kw Chain Slot Row Columns Stage Partial Vec Access VEC
    STAGES WIDEST FULL_OUTPUTS Index
    """,
    )
)

_UNARY = {
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "exp": "expf({0})",
    "log": "logf({0})",
    "sqrt": "root({0})",
    "rsqrt": "rsqrtf({0})",
    "reciprocal": "1.0f / divisor({0})",
    "tanh": "tanhf({0})",
    "sigmoid": "sigmoid({0})",
    "erf": "erff({0})",
    "relu": "max_nan({0}, 0.0f)",
    "square": "{0} * {0}",
}
_UNARY_FAST = {
    "exp": "exp_fast({0})",
    "log": "__logf({0})",
    "reciprocal": "reciprocal_fast({0})",
    "tanh": "tanh_fast({0})",
    "sigmoid": "sigmoid_fast({0})",
    "erf": "erf_fast({0})",
}
_BINARY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / divisor({1})",
    "maximum": "max_nan({0}, {1})",
    "minimum": "min_nan({0}, {1})",
    "pow": "powf({0}, {1})",
}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_POWERS = {0.5: "root({0})", -0.5: "rsqrtf({0})", 1.0: "{0}", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", -1.0: "1.0f / divisor({0})"}
"""Exponents that PyTorch too computes without pow."""

IDENTITY = {"sum": "0.0f", "max": "-INF", "min": "INF"}
JOIN = {"sum": "{0} + {1}", "max": "max_nan({0}, {1})", "min": "min_nan({0}, {1})"}


def literal(value: float) -> str:
    """A float constant, its nearest float32."""
    if math.isnan(value):
        return "NOT_A_NUMBER"
    if abs(value) > 3.4028235677973366e38:
        return "INF" if value > 0 else "-INF"
    text = repr(float(value))
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"{text}f" if value >= 0 else f"({text}f)"


def safe(name: str) -> str:
    """A tensor's name as a C++ identifier."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_" if name in _RESERVED or name[:1].isdigit() or re.fullmatch(r"[A-Z_0-9]+", name) else name


class Functor:
    """Text of the struct for one program and one set of choices.

    `fast`: approximate functions. `keep`: costly values stay in the Slot between stages (the row lives in registers).
    `stream_loads`, `stream_stores`: cache hints.
    """

    def __init__(self, chain: ChainProgram, *, fast: bool, keep: bool, stream_loads: bool = False, stream_stores: bool = False):
        self.chain = chain
        self.fast = fast
        self.kept = sorted(i for i in chain.kept if keep or chain.nodes[i].op == "scan")
        self.loads = "STREAM" if stream_loads else "PLAIN"
        self.stores = "STREAM" if stream_stores else "PLAIN"
        self.short_outputs = all(chain.tensors[name].dtype in ("fp16", "bf16") for name in chain.program.outputs)
        self.live = chain.ancestors(list(chain.program.outputs.values()))
        self.rotated = self._rotated()
        self.reciprocals = self._reciprocals()

    # ------------------------------------------------------------------------------------------------------ names

    def name(self, i: int) -> str:
        node = self.chain.nodes[i]
        if node.op == "input":
            return safe(node.name)
        return f"{node.name if node.op == 'reduce' else node.op}{i}"

    def operand(self, i: int, where: str = "") -> str:
        """`where`: empty for the element itself, `_partner` for rotate_half's other half, `_atN` for the element of pick N."""
        node = self.chain.nodes[i]
        if node.op == "const" and i not in self.chain.cols_offset:
            return literal(node.value)
        if not self.chain.per_element(i):
            name = f"r.{self.name(i)}"
            integer = node.op == "input" and self.chain.tensor(i).dtype in ("int32", "int64")
            return f"static_cast<float>({name})" if integer else name
        return self.name(i) + where

    # ------------------------------------------------------------------------------------------------------ analysis

    def _rotated(self) -> set[int]:
        """Inputs that are also read at the partner column."""
        roots = [self.chain.nodes[i].args[0] for i in self.live if self.chain.nodes[i].op == "rotate_half"]
        return {i for i in self.chain.ancestors(roots) if self.chain.nodes[i].op == "input" and self.chain.per_element(i)}

    def _reciprocals(self) -> set[int]:
        """Per-row divisors of per-element values: one division a row, a multiplication an element."""
        nodes = self.chain.nodes
        divisions = [nodes[i].args for i in self.live if nodes[i].op == "div" and self.chain.per_element(i)]
        divisors = {b for _, b in divisions if not self.chain.per_element(b)}
        return {b for b in divisors if nodes[b].op != "const" or b in self.chain.cols_offset}

    def row_fields(self) -> list[int]:
        return [
            i
            for i in sorted(self.live)
            if not self.chain.per_element(i) and (self.chain.nodes[i].op != "const" or i in self.chain.cols_offset)
        ]

    def picks(self) -> list[int]:
        return [i for i in sorted(self.live) if self.chain.nodes[i].op == "pick"]

    def picked_inputs(self, pick: int) -> list[int]:
        inner = self.chain.in_stage([self.chain.nodes[pick].args[0]])
        return sorted(i for i in inner if self.chain.nodes[i].op == "input")

    def first_stage(self, i: int) -> int:
        """The stage that first computes a kept value. A running sum is there when its own stage has ended."""
        if self.chain.nodes[i].op == "scan":
            return self.chain.depth[i] - 1
        passes = (s for s in range(self.chain.stages + 1) if i in self.chain.in_stage(self.chain.stage_roots(s)))
        return next(passes)

    # ------------------------------------------------------------------------------------------------------ expressions

    def formula(self, i: int, where: str = "") -> str:
        """Right-hand side of a computed node."""
        node = self.chain.nodes[i]
        if node.op == "const":
            offset = self.chain.cols_offset[i]
            return f"static_cast<float>(cols{f' {offset:+d}' if offset else ''})".replace("+", "+ ").replace("-", "- ")
        if node.op == "index":
            if where.startswith("_at"):
                pick = self.chain.nodes[int(where.removeprefix("_at"))]
                return f"static_cast<float>(r.{self.name(pick.args[1])})"
            return f"static_cast<float>({'partner(col)' if where else 'col'} + j)"
        if node.op == "rotate_half":
            other = self.operand(node.args[0], "_partner")
            return f"left ? -{other} : {other}"
        a = [self.operand(k, where) for k in node.args]
        if node.op in _COMPARE:
            return f"{a[0]} {_COMPARE[node.op]} {a[1]} ? 1.0f : 0.0f"
        if node.op == "where":
            return f"{a[0]} != 0.0f ? {a[1]} : {a[2]}"
        if node.op == "div":
            return self._division(node.args[1], a, self.chain.per_element(i))
        if node.op == "pow" and self.chain.nodes[node.args[1]].op == "const":
            form = _POWERS.get(self.chain.nodes[node.args[1]].value, _BINARY["pow"])
            return form.format(*a)
        if node.op == "tanh" and self.fast and self.short_outputs and self.chain.per_element(i):
            return f"tanh_16bit({a[0]})"
        fast = self.fast and self.chain.per_element(i)
        form = (_UNARY_FAST.get(node.op) if fast else None) or _UNARY.get(node.op) or _BINARY[node.op]
        return form.format(*a)

    def _division(self, divisor: int, a: list[str], per_element: bool) -> str:
        node = self.chain.nodes[divisor]
        if node.op == "const" and divisor not in self.chain.cols_offset:
            exact = node.value != 0 and abs(math.frexp(node.value)[0]) == 0.5 and 2.0**-100 < abs(node.value) < 2.0**100
            if exact or (self.fast and node.value != 0):
                return f"{a[0]} * {literal(1 / node.value)}"
            return f"__fdividef({a[0]}, {a[1]})" if 2.0**-100 < abs(node.value) < 2.0**100 else f"{a[0]} / {a[1]}"
        if divisor in self.reciprocals and per_element:
            return f"{a[0]} {'*' if self.fast else '/'} r.by_{self.name(divisor)}"
        if self.fast and per_element:
            return f"{a[0]} * reciprocal_fast({a[1]})"
        return _BINARY["div"].format(*a)

    def elements(self, roots: list[int], known: set[int], where: str = "") -> list[str]:
        """Statements that compute the roots for element j, in the program's order; `known` nodes come from the Slot."""
        nodes = self.chain.nodes
        needed: set[tuple[int, str]] = set()
        todo = [(i, where) for i in roots]
        while todo:
            i, at = todo.pop()
            if (i, at) in needed or not self.chain.per_element(i):
                continue
            needed.add((i, at))
            if nodes[i].op == "rotate_half":
                todo.append((nodes[i].args[0], "_partner"))
            elif not (i in known and not at):
                todo.extend((k, at) for k in nodes[i].args)
        lines = []
        for i, at in sorted(needed, key=lambda key: (key[0], key[1] == "")):
            name, node = self.name(i), nodes[i]
            if i in known and not at:
                value = f"slot.{name}[j]"
            elif node.op == "input" and at.startswith("_at"):
                value = f"r.{name}{at}"
            elif node.op == "input":
                value = f"{'slot' if node.shape == 'full' else 'columns'}.{name}{at}[j]"
            else:
                value = self.formula(i, at)
            lines.append(f"const float {name}{at} = {value};")
            if i in self.kept and not at and i not in known:
                lines.append(f"slot.{name}[j] = {name};")
        return lines

    def row_values(self, depth: int) -> list[str]:
        """Statements for the per-row values that a number of collectives makes known."""
        lines = []
        for i in self.row_fields():
            node = self.chain.nodes[i]
            if self.chain.depth[i] != depth:
                continue
            if node.op == "pick":
                lines += self.elements([node.args[0]], set(), f"_at{i}")
                lines.append(f"r.{self.name(i)} = {self.operand(node.args[0], f'_at{i}')};")
            elif node.op not in ("input", "reduce"):
                lines.append(f"r.{self.name(i)} = {self.formula(i)};")
            if i in self.reciprocals:
                form = "reciprocal_fast({0})" if self.fast else "divisor({0})"
                lines.append(f"r.by_{self.name(i)} = {form.format(self.operand(i))};")
        return lines
