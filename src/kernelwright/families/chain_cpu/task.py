"""A Workload as chain_cpu sees it: its RowProgram, and its tensors as C++ parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kernelwright.problems.rowprogram import BINARY, COMPARE, REDUCE, UNARY, RowProgram
from kernelwright.records import Workload

CTYPES = {"fp32": "float", "fp16": "fp16", "bf16": "bf16", "int32": "int", "int64": "long"}
FLOATS = ("fp32", "fp16", "bf16")

_TAKEN = re.compile(
    # C++
    "alignas|alignof|and|asm|auto|bool|break|case|catch|char|class|concept|const|constexpr|continue|default|delete|do|double|else|enum|"
    "explicit|export|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|not|operator|or|private|protected|"
    "public|register|requires|return|short|signed|sizeof|static|struct|switch|template|this|throw|true|try|typedef|typename|union|"
    "unsigned|using|virtual|void|volatile|while|xor|"
    # vec.h, vecmath.h and the kernel
    "kernel|row|rows|cols|scratch|lanes|slot|j|abs|exp|log|sqrt|rsqrt|tanh|sigmoid|erf|pow|maximum|minimum|at_least|at_most|load|"
    "load_one|store|store_one|stream|splat|only|rotate|scale|quotient|copysign|widen|narrow|sweep|steps|exp_of_negative|to_float|"
    "to_index|as_float|as_int|iota_lanes|end_of_stream|shift_up|fp16|bf16|"
    # values of the program
    rf"(parts|running|column|kept|by|ld)_.*|({'|'.join((*UNARY, *BINARY, *COMPARE, *REDUCE))}|mean|where|scan|pick|rotate_half)\d+"
)


@dataclass(frozen=True)
class Buffer:
    """One tensor as the kernel sees it."""

    name: str
    """Of the parameter: the tensor's, unless C++ or vec.h has another use for that word."""
    tensor: str
    dtype: str
    role: str
    shape: str
    """As of a Node: full, row, col, one; empty when the program does not use it."""
    strided: bool
    """Whether its rows are a leading dimension apart; otherwise they lie end to end."""


@dataclass(frozen=True)
class Task:
    program: RowProgram
    buffers: tuple[Buffer, ...]
    rows: int
    cols: int
    named_axes: bool
    """Whether the plan may say rows and cols by name."""
    constants: dict[int, str]
    """C++ of the constants that stand for the number of columns."""
    requires: tuple[str, ...]

    @property
    def refusal(self) -> str | None:
        """Why there is no kernel for it, as a clause."""
        for b in self.buffers:
            if b.dtype not in CTYPES or (b.role == "out" and b.dtype not in FLOATS):
                return f"its tensor {b.tensor} is {b.dtype}; it reads {', '.join(CTYPES)} and writes {', '.join(FLOATS)}"
            if b.role == "out" and b.shape not in ("full", "row"):
                return f"its output {b.tensor} has no rows"
        for node in self.program.nodes:
            if node.op == "pick" and self.program.nodes[node.args[1]].op != "input":
                return "it picks columns that are computed, not given"
        return None


@lru_cache(maxsize=64)
def task_of(w: Workload) -> Task:
    """Raises ValueError, with the reason as a clause, when the Workload is not a row program."""
    from kernelwright.problems import problem_of

    problem = problem_of(w)
    trace: Callable[[Workload], RowProgram] | None = getattr(problem, "program", None)
    if trace is None:
        raise ValueError("it writes element-wise, row-reduction and row-scan programs only")
    program = trace(w)
    specs = problem.tensors(w)
    kinds = {n.name: n.shape for n in program.nodes if n.op == "input"}
    kinds |= {name: program.nodes[n].shape for name, n in program.outputs.items()}
    full = [s.shape for s in specs if kinds.get(s.name) == "full"]
    if not full:
        raise ValueError("it needs a tensor of rows and columns")
    rows, cols = math.prod(full[0][:-1]), full[0][-1]
    named = (w.axes.get("rows"), w.axes.get("cols")) == (rows, cols)
    constants, requires = _column_constants(w, trace, program, cols) if named else ({}, [])

    buffers = []
    for s in specs:
        kind = kinds.get(s.name, "")
        column = kind == "row" and len(s.shape) > 1 and s.shape[-1] == 1
        strided = column or (kind == "full" and len(s.shape) > 1)
        if kind == "row" and len(s.shape) > 1 and not column:
            requires.append(f"ld_{s.name} == {s.shape[-1]}")
        buffers.append(Buffer(_identifier(s.name), s.name, s.dtype, s.role, kind, strided))
    return Task(_renamed(program), tuple(buffers), rows, cols, named, constants, tuple(requires))


def _identifier(name: str) -> str:
    word = re.sub(r"\W", "_", name)
    if _TAKEN.fullmatch(word) or not word.isidentifier():
        return f"{word}_" if word[:1].isalpha() else f"t{word}_"
    return word


def _renamed(program: RowProgram) -> RowProgram:
    nodes = tuple(n.replace(name=_identifier(n.name)) if n.op == "input" else n for n in program.nodes)
    return RowProgram(nodes=nodes, outputs={_identifier(name): n for name, n in program.outputs.items()})


def _column_constants(
    w: Workload, trace: Callable[[Workload], RowProgram], program: RowProgram, cols: int
) -> tuple[dict[int, str], list[str]]:
    """The program is traced at one size. Tracing it at another tells which constants stand for the number of columns, so that the
    kernel serves every shape; what that does not explain makes the kernel demand this number of columns."""
    other = 2 * cols + 2
    fixed: tuple[dict[int, str], list[str]] = {}, [f"cols == {cols}"]
    try:
        wider = trace(w.replace(axes={**w.axes, "cols": other}))
    except ValueError:
        return fixed
    if [n.replace(value=0.0) for n in wider.nodes] != [n.replace(value=0.0) for n in program.nodes]:
        return fixed
    forms: dict[str, Callable[[int], float]] = {
        "(float)cols": float,
        "(float)(cols - 1)": lambda c: float(c - 1),
        "(1.0f / (float)cols)": lambda c: 1.0 / c if c else math.inf,
    }
    constants: dict[int, str] = {}
    for i, (a, b) in enumerate(zip(program.nodes, wider.nodes, strict=True)):
        if repr(a.value) != repr(b.value):  # so that NaN equals NaN
            found = [text for text, form in forms.items() if (form(cols), form(other)) == (a.value, b.value)]
            if not found:
                return fixed
            constants[i] = found[0]
    return constants, []
