"""What a kernel writer wants to know of a RowProgram: inputs by kind, stages, and which constants follow the column count.

A *collective* is a node that joins the threads of a row: a reduction or a running sum. The *depth* of a node is the number of
collectives that must have ended before it can be computed; the collectives of depth d make up stage d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from kernelwright.problems.rowprogram import Node, RowProgram

COSTLY = ("exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "div", "pow", "scan")
"""Ops worth a register to keep between stages; the others are computed again."""


class TensorLike(Protocol):
    """The part of `problems.problem.TensorSpec` that is read here (that module imports torch)."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class ChainProgram:
    """A RowProgram with the tensors it reads and writes."""

    program: RowProgram
    tensors: Mapping[str, TensorLike]
    cols_offset: Mapping[int, int] = field(default_factory=dict)
    """Constants that are the number of columns plus this, by node. Such a program serves every number of columns."""
    any_cols: bool = False
    """The constants, apart from `cols_offset`, hold for every number of columns."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.program.nodes

    def tensor(self, index: int) -> TensorLike:
        return self.tensors[self.nodes[index].name]

    def inputs(self, shape: str) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if n.op == "input" and n.shape == shape]

    def per_element(self, index: int) -> bool:
        """Whether the node has a value for each column."""
        return self.nodes[index].shape in ("full", "col")

    @cached_property
    def depth(self) -> list[int]:
        depths: list[int] = []
        for node in self.nodes:
            deepest = max((depths[a] for a in node.args), default=0)
            depths.append(deepest + (node.op in ("reduce", "scan")))
        return depths

    @cached_property
    def stages(self) -> int:
        return max(self.depth, default=0)

    def collectives(self, stage: int, op: str) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if n.op == op and self.depth[i] == stage + 1]

    def outputs(self, full: bool) -> dict[str, int]:
        """Name to node of the outputs with a value for each element, or of those with one a row."""
        every: dict[str, int] = self.program.outputs
        return {name: i for name, i in every.items() if (self.nodes[i].shape == "full") == full}

    def ancestors(self, roots: list[int]) -> set[int]:
        """The roots and all that they are computed from."""
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            if (i := todo.pop()) not in seen:
                seen.add(i)
                todo.extend(self.nodes[i].args)
        return seen

    def in_stage(self, roots: list[int]) -> set[int]:
        """Per-element nodes that computing the roots passes through, without crossing a collective."""
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            i = todo.pop()
            if i not in seen and self.per_element(i):
                seen.add(i)
                if self.nodes[i].op != "scan":
                    todo.extend(self.nodes[i].args)
        return seen

    def stage_roots(self, stage: int) -> list[int]:
        """Per-element values that a stage's collectives consume; for the last stage, the full outputs."""
        if stage == self.stages:
            return list(self.outputs(full=True).values())
        return [self.nodes[i].args[0] for op in ("reduce", "scan") for i in self.collectives(stage, op)]

    @cached_property
    def kept(self) -> set[int]:
        """Per-element values worth keeping in registers: costly ones that several stages pass through, and running sums."""
        uses: dict[int, int] = {}
        for stage in range(self.stages + 1):
            for i in self.in_stage(self.stage_roots(stage)):
                uses[i] = uses.get(i, 0) + 1
        scans = {i for i, n in enumerate(self.nodes) if n.op == "scan"}
        return scans | {i for i, n in uses.items() if n > 1 and self.nodes[i].op in COSTLY}

    def has(self, *ops: str) -> bool:
        return any(n.op in ops for n in self.nodes)

    def refuses(self) -> str | None:
        """Why there are no kernels for this program, as a clause; None if there are."""
        every: dict[str, int] = self.program.outputs
        for name, i in every.items():
            if self.nodes[i].shape not in ("full", "row"):
                return f"its output {name} has neither a value for each element nor one a row"
        for i in self.inputs("full") + self.inputs("col"):
            if self.tensor(i).dtype in ("int32", "int64"):
                return f"its input {self.nodes[i].name} holds integers, which are supported only as one value a row"
        for i, node in enumerate(self.nodes):
            if node.op == "pick":
                index = self.nodes[node.args[1]]
                if index.op != "input" or index.shape != "row":
                    return f"node {i} (pick) takes its columns from something else than an input with one value a row"
            if node.op in ("rotate_half", "pick"):
                inner = self.in_stage([node.args[0]])
                if {self.nodes[j].op for j in inner} & {"rotate_half", "pick", "scan"}:
                    return f"node {i} ({node.op}) is taken of another rotate_half, pick or running sum"
        return None


def follow_cols(program: RowProgram, cols: int, others: Mapping[int, RowProgram]) -> tuple[dict[int, int], bool]:
    """Which constants are the number of columns plus an integer, and whether all the rest of the program is the same for the
    column counts of `others`. A mean is a sum divided by such a constant: the trace wrote down the size that it saw."""
    offsets: dict[int, int] = {}
    for i, node in enumerate(program.nodes):
        if node.op == "const" and node.value.is_integer():
            offset = int(node.value) - cols
            if others and all(
                len(o.nodes) == len(program.nodes) and o.nodes[i].op == "const" and o.nodes[i].value == c + offset
                for c, o in others.items()
            ):
                offsets[i] = offset
    masked = [tuple(n.replace(value=0.0) if i in offsets else n for i, n in enumerate(p.nodes)) for p in (program, *others.values())]
    same = all(m == masked[0] for m in masked) and all(o.outputs == program.outputs for o in others.values())
    return (offsets, True) if others and same else ({}, False)
