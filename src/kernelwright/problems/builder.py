"""Builds the nodes of a RowProgram: broadcasting, shapes and the arithmetic that the lowering rules are written in.

Dimensions carry names instead of sizes (`rows`, `cols`, or `1` where broadcast), so that a program traced at rows = 1 or at
rows = cols still says which axis is which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelwright.problems.rowprogram import BINARY, COMPARE, UNARY, Node, RowProgram

Shape = Literal["full", "row", "col", "one"]
Dims = tuple[str, ...]

HALVES = ("cols:left", "cols:right")
"""Names of the last dimension of a value that is one half of a row; its node holds the whole row."""


class LoweringError(ValueError):
    """The function is not a row program; the message names the operation and what is wrong with it."""


@dataclass(frozen=True)
class Value:
    """What one traced tensor is: a node, and the name of each of its dimensions."""

    node: int
    dims: Dims


Operand = Value | float


class Builder:
    """`lead`: names of the leading dimensions of the full matrix, which the program folds into rows. `cols`: its last size."""

    def __init__(self, lead: Dims, cols: int) -> None:
        self.lead = lead
        self.cols = cols
        self.nodes: list[Node] = []
        self._known: dict[Node, int] = {}

    def shape_of(self, dims: Dims) -> Shape:
        """Raises LoweringError for a tensor that is neither (rows, cols) nor one value a row, one a column, or one in all."""
        if "cols" in dims[:-1] or any(d in HALVES for d in dims[:-1]):
            raise LoweringError(f"a tensor of dimensions ({', '.join(dims)}) does not end with the matrix's columns")
        wide = bool(dims) and dims[-1] != "1" and dims[-1] not in self.lead
        leading = dims[:-1] if wide or dims[-1:] == ("1",) else dims
        if all(d == "1" for d in leading):
            if wide:
                return "col" if self.lead else "full"
            return "one"
        if leading == self.lead:
            return "full" if wide else "row"
        raise LoweringError(f"a tensor of dimensions ({', '.join(dims)}) broadcasts over some of the leading dimensions only")

    def node(self, node: Node) -> int:
        """Index of the node; an equal one is used again."""
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    def input(self, name: str, dims: Dims) -> Value:
        return Value(self.node(Node(op="input", name=name, shape=self.shape_of(dims))), dims)

    def const(self, value: float, dims: Dims = ()) -> Value:
        return Value(self.node(Node(op="const", value=float(value), shape="one")), dims)

    def index(self) -> Value:
        return Value(self.node(Node(op="index", shape="col" if self.lead else "full")), ("cols",))

    def constant_of(self, v: Operand) -> float | None:
        if isinstance(v, Value):
            node = self.nodes[v.node]
            return node.value if node.op == "const" else None
        return float(v)

    def apply(self, op: str, *operands: Operand) -> Value:
        """An element-wise operation, its operands broadcast as PyTorch does."""
        values = [v if isinstance(v, Value) else self.const(v) for v in operands]
        dims = self._broadcast([v.dims for v in values])
        self.shape_of(dims)
        kinds = {self.nodes[v.node].shape for v in values}
        shape: Shape = "one"
        if "full" in kinds or kinds >= {"row", "col"}:
            shape = "full"
        elif "row" in kinds or "col" in kinds:
            shape = "row" if "row" in kinds else "col"
        return Value(self.node(Node(op=op, args=tuple(v.node for v in values), shape=shape)), dims)

    def _broadcast(self, all_dims: list[Dims]) -> Dims:
        rank = max(map(len, all_dims))
        padded = [("1",) * (rank - len(dims)) + dims for dims in all_dims]
        out = []
        for names in zip(*padded, strict=True):
            given = sorted(set(names) - {"1"})
            if len(given) > 1:
                raise LoweringError(f"it broadcasts {given[0]} against {given[1]}; reduce with keepdim=True to keep axes apart")
            out.append(given[0] if given else "1")
        return tuple(out)

    def reduce(self, kind: str, v: Value, keepdim: bool = True) -> Value:
        """Along the columns: `sum`, `max` or `min`."""
        if v.dims[-1:] != ("cols",):
            raise LoweringError(f"it reduces a dimension other than the matrix's columns: ({', '.join(v.dims)})")
        dims = (*v.dims[:-1], "1") if keepdim else v.dims[:-1]
        shape: Shape = "row" if self.shape_of(v.dims) == "full" else "one"
        return Value(self.node(Node(op="reduce", args=(v.node,), name=kind, shape=shape)), dims)

    def mean(self, v: Value, keepdim: bool = True) -> Value:
        return self.apply("div", self.reduce("sum", v, keepdim), self.cols)

    def scan(self, v: Value) -> Value:
        return Value(self.node(Node(op="scan", args=(v.node,), shape=self.nodes[v.node].shape)), v.dims)

    def pick(self, v: Value, column: Value, keepdim: bool) -> Value:
        dims = (*v.dims[:-1], "1") if keepdim else v.dims[:-1]
        return Value(self.node(Node(op="pick", args=(v.node, column.node), shape="row")), dims)

    def rotate_half(self, left: Value, right: Value) -> Value | None:
        """cat(left, right) for the halves of rows that programs may join; None for any other."""
        if (left.dims[-1:], right.dims[-1:]) == (HALVES[:1], HALVES[1:]) and left.node == right.node:
            return Value(left.node, (*left.dims[:-1], "cols"))
        if (left.dims[-1:], right.dims[-1:]) == (HALVES[1:], HALVES[:1]):
            negated = self.nodes[left.node]
            if negated.op == "neg" and negated.args == (right.node,):
                node = Node(op="rotate_half", args=(right.node,), shape=self.nodes[right.node].shape)
                return Value(self.node(node), (*left.dims[:-1], "cols"))
        return None

    def program(self, outputs: dict[str, Value]) -> RowProgram:
        """Only the nodes that an output needs, in order."""
        for name, v in outputs.items():
            if self.shape_of(v.dims) != self.nodes[v.node].shape or v.dims[-1:] in (HALVES[:1], HALVES[1:]):
                raise LoweringError(f"output {name} repeats one value along an axis, or is half a row")
        needed: set[int] = set()
        todo = [v.node for v in outputs.values()]
        while todo:
            if (n := todo.pop()) not in needed:
                needed.add(n)
                todo.extend(self.nodes[n].args)
        place = {old: new for new, old in enumerate(sorted(needed))}
        nodes = tuple(self.nodes[n].replace(args=tuple(place[a] for a in self.nodes[n].args)) for n in sorted(needed))
        return RowProgram(nodes=nodes, outputs={name: place[v.node] for name, v in outputs.items()})


ARITHMETIC = frozenset((*UNARY, *BINARY, *COMPARE, "where", "reduce", "scan", "rotate_half"))
"""Ops that cost one operation an element of their largest operand."""
