"""Which value of a RowProgram is computed in which pass over the row.

A row is swept once more than the longest chain of reductions: softmax needs the maximum before the sum before the quotient, so three
passes over a row that stays in L1. A pass computes every reduction, kept value and output whose operands are known by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelwright.problems.rowprogram import Node, RowProgram

COSTLY = frozenset(("exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "pow", "div", "scan"))
"""Ops that take longer than a load and a store of their result."""


@dataclass
class Pass:
    """Nodes by number; `kept` values go to memory for a later pass, `row_outputs` are written after the pass before this one."""

    reductions: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    row_outputs: list[str] = field(default_factory=list)

    @property
    def sweeps(self) -> bool:
        return bool(self.reductions or self.kept or self.outputs)


class Schedule:
    """`keep`: whether costly values that two passes need are kept in memory, as opposed to computed twice."""

    def __init__(self, program: RowProgram, keep: bool) -> None:
        self.program = program
        self.nodes = program.nodes
        self.kept: set[int] = set()
        self.shifted: set[int] = set()
        """Kept values that a later pass reads at other columns than its own."""
        self._force_kept()
        self.ready = [0] * len(self.nodes)
        for n in range(len(self.nodes)):
            self.ready[n] = self._ready(n)
        self.passes = [Pass() for _ in range(max([self.ready[n] for n in program.outputs.values()], default=0) + 1)]
        self._place(keep)

    def wide(self, n: int) -> bool:
        """Whether the value differs along the row."""
        return self.nodes[n].shape in ("full", "col")

    def _force_kept(self) -> None:
        """A value read at another column must be computable there: not a running sum, nor itself rotated."""
        for node in self.nodes:
            if node.op in ("rotate_half", "pick") and any(m.op in ("scan", "rotate_half") for m in self._wide_tree(node.args[0])):
                self.kept.add(node.args[0])
                self.shifted.add(node.args[0])

    def _wide_tree(self, n: int) -> Iterator[Node]:
        yield self.nodes[n]
        for a in self.nodes[n].args:
            if self.wide(a):
                yield from self._wide_tree(a)

    def _ready(self, n: int) -> int:
        """First pass that can use the value of node n."""
        node = self.nodes[n]
        after = max((self.ready[a] for a in node.args), default=0)
        if node.op == "reduce" or (node.op in ("rotate_half", "pick") and node.args[0] in self.shifted):
            return after + 1
        return after

    def _place(self, keep: bool) -> None:
        for name, n in self.program.outputs.items():
            here = self.passes[self.ready[n]]
            (here.outputs if self.wide(n) else here.row_outputs).append(name)
        for n in sorted(self._needed()):
            if self.nodes[n].op == "reduce":
                self.passes[self.ready[n] - 1].reductions.append(n)
        for p in reversed(range(len(self.passes))):
            self.passes[p].kept = sorted(n for n in self.kept if self.ready[n] == p)
            if keep:
                self.kept |= {n for n in self._operands(p) if self._outlives(n, p)}

    def _needed(self) -> set[int]:
        needed: set[int] = set()
        todo = list(self.program.outputs.values())
        while todo:
            if (n := todo.pop()) not in needed:
                needed.add(n)
                todo.extend(self.nodes[n].args)
        return needed

    def roots(self, here: Pass) -> list[int]:
        """What a pass computes, along the row."""
        return [self.nodes[n].args[0] for n in here.reductions] + here.kept + [self.program.outputs[o] for o in here.outputs]

    def _outlives(self, n: int, p: int) -> bool:
        return self.wide(n) and self.ready[n] < p and any(m.op in COSTLY for m in self._wide_tree(n))

    def _operands(self, p: int) -> set[int]:
        """Nodes that pass p names, from its roots down to the first values that are worth keeping from an earlier pass."""
        seen: set[int] = set()
        todo = self.roots(self.passes[p])
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                if not self._outlives(n, p) and n not in self.kept:
                    todo.extend(a for a in self.nodes[n].args if self.wide(a))
        return seen

    def uses(self, p: int) -> dict[int, int]:
        """How often the expressions of pass p name each wide node."""
        here, count = self.passes[p], {}
        todo = self.roots(here)
        while todo:
            n = todo.pop()
            count[n] = count.get(n, 0) + 1
            if count[n] == 1 and not (n in self.kept and self.ready[n] < p):
                todo.extend(a for a in self.nodes[n].args if self.wide(a))
        return count

    def row_uses(self) -> dict[int, int]:
        """How often each row value is named; a use inside a sweep counts twice, so that it is computed before the sweep."""
        count: dict[int, int] = {}
        for n in self._needed():
            for a in self.nodes[n].args:
                if not self.wide(a):
                    count[a] = count.get(a, 0) + (2 if self.wide(n) else 1)
        for n in self.program.outputs.values():
            count[n] = count.get(n, 0) + 1
        return count

    def rotates(self, p: int) -> bool:
        return any(self.nodes[n].op == "rotate_half" for n in self.uses(p))

    @property
    def elementwise(self) -> bool:
        """Every element alone decides its result, so rows that lie end to end are one long row."""
        return all(n.shape in ("full", "one") and n.op not in ("reduce", "scan", "pick", "rotate_half", "index") for n in self.nodes)
