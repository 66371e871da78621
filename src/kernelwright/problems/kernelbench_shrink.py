"""A KernelBench file made small enough to be looked into: the same module, with smaller whole numbers at the top of the file.

KernelBench's sizes fill a large GPU (level 1 softmax: 6 GB of input). What a lint looks for is there in a tenth of a percent of it too, but
for ranges that depend on a size, which `lint` extrapolates from two sizes. Shapes are found on meta tensors, which take no memory.
"""

from __future__ import annotations

import ast
import math
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.records import Workload

ELEMENTS = 2**20
"""Of inputs, parameters and outputs together: a float64 reference and its error scale then take about 0.1 s."""
FLOPS = 2e8
"""Of matrix products and convolutions: 0.1 s in float64 on one core."""
SMALLEST = 16
"""A constant is not halved below this, unless it is the batch."""


@dataclass(frozen=True)
class Extent:
    """What one call of the module takes."""

    elements: int
    inputs: tuple[tuple[int, ...], ...]
    parameters: int
    flops: float


def constants(source: str) -> dict[str, int]:
    """Names at the top of the file that are set once, to a whole number of at least 2."""
    found: dict[str, int] = {}
    seen: set[str] = set()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        pairs: list[tuple[ast.expr, ast.expr | None]] = [(t, node.value) for t in targets]
        if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(targets[0].elts, node.value.elts, strict=False))
        for target, value in pairs:
            if not isinstance(target, ast.Name):
                continue
            number = _integer(value)
            found.pop(target.id, None)
            if number is not None and number >= 2 and target.id not in seen:
                found[target.id] = number
            seen.add(target.id)
    return found


def _named(source: str) -> str:
    """The source with sizes that stand as numbers in its two functions turned into constants of the file; equal ones into the same."""
    tree, values = ast.parse(source), set[int]()

    class Naming(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            if type(node.value) is not int or node.value < SMALLEST:
                return node
            values.add(node.value)
            return ast.Name(f"size_{node.value}", ast.Load())

    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("get_inputs", "get_init_inputs"):
            node.body = [Naming().visit(statement) for statement in node.body]
    return _with(ast.unparse(ast.fix_missing_locations(tree)), {f"size_{v}": v for v in sorted(values)}) if values else source


def _integer(node: ast.expr | None) -> int | None:
    """A literal, or arithmetic of literals."""
    if node is None or any(not isinstance(n, ast.Constant | ast.BinOp | ast.operator) for n in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
    except (ArithmeticError, TypeError, ValueError, MemoryError):
        return None
    return value if type(value) is int else None


def extent(source: str) -> Extent | None:
    """On meta tensors; None where the file needs values, or is at fault."""
    module = types.ModuleType("kernelwright_extent")
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            exec(compile(source, "<extent>", "exec"), module.__dict__)
            model: nn.Module = module.Model(*(module.get_init_inputs() or []))
            given: list[Any] = list(module.get_inputs())
            outputs = [y for y in tree_leaves(model(*given)) if isinstance(y, torch.Tensor)]
    except (Exception, SystemExit):  # the user's code may raise anything; loading the problem says what is wrong with it
        return None
    inputs = [x for x in given if isinstance(x, torch.Tensor)]
    state = [*model.parameters(), *model.buffers()]
    if not all(x.is_meta for x in (*inputs, *state)):
        return None
    elements = sum(math.prod(x.shape) for x in (*inputs, *state, *outputs))
    parameters = sum(math.prod(p.shape) for p in state)
    return Extent(elements, tuple(tuple(x.shape) for x in inputs), parameters, float(counter.get_total_flops()))


@dataclass(frozen=True)
class Shrunk:
    """A smaller file."""

    w: Workload
    changes: dict[str, int]
    """Constants with their new values."""
    before: dict[str, int]
    extent: Extent | None
    full: Extent | None


def shrunk(w: Workload, limit: float = 1.0) -> Shrunk:
    """The Workload with constants halved until `load` is at most the limit, or no constant makes it smaller."""
    try:
        known = constants(w.source)
        full = extent(w.source)
    except (SyntaxError, ValueError):
        return Shrunk(w, {}, {}, None, None)
    if full is None or load(full) <= limit:
        return Shrunk(w, {}, {}, full, full)
    if extent(source := _named(w.source)) == full:
        w = w.replace(source=source)
        known = constants(source)
    batch = {name for name in known if _is_batch(w.source, name, known[name], full)}
    sizes: dict[str, int] = {}
    now: Extent = full
    stuck: set[str] = set()
    while load(now) > limit:
        able = [n for n in known if n not in stuck and sizes.get(n, known[n]) >= (2 if n in batch else 2 * SMALLEST)]
        if not able:
            break
        # rows of a batch are alike: they go first, down to a few; then whatever is largest
        rows = [n for n in able if n in batch and sizes.get(n, known[n]) > 4]
        name = max(rows or able, key=lambda n: sizes.get(n, known[n]))
        trial = sizes | {name: sizes.get(name, known[name]) // 2}
        smaller = extent(_with(w.source, trial))
        if smaller is None or load(smaller) >= load(now):
            stuck.add(name)
        else:
            sizes, now = trial, smaller
    return Shrunk(w.replace(source=_with(w.source, sizes)) if sizes else w, sizes, known, now, full)


def load(e: Extent) -> float:
    """1 where a lint takes about a second."""
    return max(e.elements / ELEMENTS, e.flops / FLOPS)


def _is_batch(source: str, name: str, value: int, full: Extent) -> bool:
    """Whether it sets the first axis of inputs, and no parameter."""
    other = extent(_with(source, {name: value // 2}))
    if other is None or other.parameters != full.parameters or other.inputs == full.inputs:
        return False
    return all(a[1:] == b[1:] for a, b in zip(full.inputs, other.inputs, strict=False))


def halved(cut: Shrunk, name: str) -> Workload | None:
    """One of the constants that were shrunk, halved once more; None where that is not possible."""
    if cut.changes[name] < 2:
        return None
    source = _with(cut.w.source, cut.changes | {name: cut.changes[name] // 2})
    return None if extent(source) is None else cut.w.replace(source=source)


def _with(source: str, sizes: dict[str, int]) -> str:
    return source + "".join(f"\n{name} = {value}" for name, value in sizes.items()) + "\n"
