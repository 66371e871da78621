"""A small intermediate form for element-wise, row-reduction and row-scan programs over a (rows, cols) matrix.

It is what the chain families (`families/chain_cpu`, `families/chain_cuda`) write kernels from. `lower` makes one from a PyTorch
function by symbolic tracing, so a KernelBench file of this kind gets kernels without a language model. The reference of a
Problem never comes from here: an error in lowering shows as a wrong result.
"""

from __future__ import annotations

from typing import Literal

from kernelwright.records import Record

UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "relu", "square")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
REDUCE = ("sum", "max", "min")


class Node(Record, frozen=True, kw_only=True):
    """One value. Its shape is one of: `full` (rows, cols), `row` (one value a row), `col` (one value a column), `one`."""

    op: str
    """`input`, `const`, `index` (the column number), one of UNARY / BINARY / COMPARE, `where` (3 args), `reduce`, `scan` (running sum along
    the row), `pick` (element of arg 0 at the column that the per-row integer arg 1 names), `rotate_half` (cat(-x[cols/2:], x[:cols/2]))."""
    args: tuple[int, ...] = ()
    """Indices of earlier nodes."""
    name: str = ""
    """Input's tensor name; for `reduce`, one of REDUCE."""
    value: float = 0.0
    """Of a `const`."""
    shape: Literal["full", "row", "col", "one"] = "full"


class RowProgram(Record, frozen=True, kw_only=True):
    """Nodes in order of evaluation; every arithmetic value is float32 whatever the storage type. NaN and infinity behave as IEEE 754
    and PyTorch say (maximum, minimum, reduce max/min propagate NaN)."""

    nodes: tuple[Node, ...]
    outputs: dict[str, int]
    """Output tensor name to node."""
