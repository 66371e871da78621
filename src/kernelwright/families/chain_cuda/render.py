"""Puts a kernel together: skeleton, the generated `Chain`, the entry point, and the LaunchPlan."""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.families.chain_cuda.functor import Functor, safe
from kernelwright.families.chain_cuda.members import members, shape_of, strided, struct
from kernelwright.families.chain_cuda.program import ChainProgram
from kernelwright.families.family import Config
from kernelwright.records import DTYPES, Arg, Expr, Launch, LaunchPlan, ScalarArg, TensorArg

_HERE = Path(__file__).parent

_LARGEST = 2_000_000_000
"""Rows and columns are 32-bit in the kernel, with room for the stride of the last step."""


def items_of(config: Config, cols: int) -> int:
    """Vectors that a thread holds of one row (scheme `registers`): as many as the Workload's columns need."""
    return max(1, -(-cols // (int(config["row_threads"]) * int(config["vec"]))))


def tile_width(config: Config, cols: int) -> int:
    """Threads across a tile of scheme `tiles`: a power of two, no wider than the row."""
    width = 1
    while width < int(config["threads"]) and width * int(config["vec"]) < cols:
        width *= 2
    return width


def render(
    chain: ChainProgram, config: Config, *, title: str, rows: Expr, cols: Expr, cols_now: int, dependent: bool
) -> tuple[str, LaunchPlan]:
    """Source and plan. `rows` and `cols` are plan expressions, `cols_now` is the Workload's number of columns; `dependent`: the device
    knows programmatic dependent launch."""
    scheme = config["scheme"]
    functor = Functor(
        chain,
        fast=config.get("math") == "fast",
        keep=scheme == "registers",
        # a row that is read in each stage should stay in cache
        stream_loads=config["hints"] == "stream" and scheme != "reread",
        stream_stores=config["hints"] != "none",
    )
    fixed = bool(config.get("fixed_cols")) or not chain.any_cols
    call, threads, grid = _schedule(chain, config, rows, cols, cols_now)
    parameters, arguments = _interface(functor, rows, cols, cols_now, fixed)
    kernel = "chain_" + re.sub(r"\W", "_", title)
    body = ["launch_dependents();", "grid_dependency_wait();"]
    body += [f"constexpr int cols = {cols_now};"] if fixed else []
    values = ", ".join(name for _, name in members(functor))
    body += [f"const Chain<{config['vec']}> chain{{{values}}};"]
    if scheme == "flat":
        body += [f"const Chain<1> scalar_chain{{{values}}};"]
    entry = [
        f'extern "C" __global__ void __launch_bounds__({threads})',
        f"{kernel}({', '.join(f'{kind} {name}' for kind, name in parameters)}) {{",
        *(f"    {line}" for line in [*body, call]),
        "}",
    ]
    skeleton = "pointwise.cuh" if scheme in ("flat", "tiles") else "rows.cuh"
    source = "\n".join(
        [
            f"// {title}: {_summary(chain, config)}",
            '#include "kernelwright/pdl.cuh"',
            '#include "kernelwright/vector.cuh"',
            "",
            "using namespace kw;",
            "",
            (_HERE / "math.cuh").read_text(encoding="utf-8"),
            (_HERE / skeleton).read_text(encoding="utf-8"),
            f"// {'-' * 100} this chain",
            "",
            f"using Index = {'long long' if scheme == 'flat' else 'int'};",
            "",
            struct(functor),
            *entry,
            "",
        ]
    )
    plan = LaunchPlan(
        launches=(Launch(kernel=kernel, args=arguments, grid=(grid, 1, 1), block=(threads, 1, 1), pdl=dependent),),
        requires=_requires(functor, config, rows, cols, cols_now, fixed),
    )
    return source, plan


def _summary(chain: ChainProgram, config: Config) -> str:
    inputs = ", ".join(f"{n.name} ({n.shape}, {chain.tensors[n.name].dtype})" for n in chain.nodes if n.op == "input")
    outputs = ", ".join(f"{name} ({chain.tensors[name].dtype})" for name in chain.program.outputs)
    return f"{inputs} -> {outputs}; " + ", ".join(f"{k} {v}" for k, v in config.items())


def _schedule(chain: ChainProgram, config: Config, rows: Expr, cols: Expr, cols_now: int) -> tuple[str, int, Expr]:
    """The call of the skeleton, threads a block, and the number of blocks."""
    vec, v = int(config["vec"]), f"Chain<{config['vec']}>"
    if config["scheme"] == "flat":
        threads, items = int(config["threads"]), int(config["items"])
        call = f"pointwise_flat<{v}, Chain<1>, {threads}, {items}>(chain, scalar_chain, rows * 1ll * cols);"
        work: str = f"cdiv({rows} * {cols}, {threads * items * vec})"
    elif config["scheme"] == "tiles":
        threads, items = int(config["threads"]), int(config["items"])
        width = tile_width(config, cols_now)
        call = f"pointwise_tiles<{v}, {threads}, {width}, {items}>(chain, rows, cols);"
        work = f"cdiv({cols}, {width * vec}) * cdiv({rows}, {threads // width * items})"
    else:
        row_threads, per_block = int(config["row_threads"]), int(config["rows_per_block"])
        threads = row_threads * per_block
        work = f"cdiv({rows}, {per_block})"
        if config["scheme"] == "registers":
            hoist = "true" if config.get("columns") == "hoist" else "false"
            items = items_of(config, cols_now)
            call = f"rows_in_registers<{v}, {row_threads}, {per_block}, {items}, {hoist}>(chain, rows, cols);"
        else:
            loop = "rows_carried" if chain.has("scan") else "rows_reread"
            call = f"{loop}<{v}, {row_threads}, {per_block}, {config['items']}>(chain, rows, cols);"
    limit = int(config["blocks_per_sm"])
    # a grid of no blocks is illegal, so an empty matrix gets one block that finds nothing to do
    return call, threads, f"max(1, min({work}, {limit} * sms))" if limit else f"max(1, {work})"


def folded(functor: Functor, name: str, cols_now: int) -> bool:
    """Whether a row of the matrix is more than the tensor's last axis: (16, 4, 64, 64) seen as 16 rows of 16,384 columns."""
    shape = functor.chain.tensors[name].shape
    return shape_of(functor, name) == "full" and len(shape) > 1 and shape[-1] != cols_now


def _interface(functor: Functor, rows: Expr, cols: Expr, cols_now: int, fixed: bool) -> tuple[list[tuple[str, str]], tuple[Arg, ...]]:
    """Parameters of the kernel and the arguments that fill them."""
    parameters = [p for p in members(functor) if p[1] != "cols"]
    arguments: list[Arg] = []
    for name in functor.chain.tensors:
        arguments.append(TensorArg(name=name))
        if strided(functor, name):
            arguments.append(ScalarArg(ctype="i64", value=cols if folded(functor, name, cols_now) else f"ld_{name}"))
    parameters.append(("int", "rows"))
    arguments.append(ScalarArg(ctype="i32", value=rows))
    if not fixed:
        parameters.append(("int", "cols"))
        arguments.append(ScalarArg(ctype="i32", value=cols))
    return [(f"{kind} __restrict__" if kind.endswith("*") else kind, name) for kind, name in parameters], tuple(arguments)


def _requires(functor: Functor, config: Config, rows: Expr, cols: Expr, cols_now: int, fixed: bool) -> tuple[str, ...]:
    """What must hold for the kernel to be right: lengths, alignment of every vector, strides."""
    vec, scheme = int(config["vec"]), config["scheme"]
    conditions = [f"{rows} <= {_LARGEST}", f"{cols} <= {_LARGEST}"]
    if fixed:
        conditions.append(f"{cols} == {cols_now}")
    elif scheme == "registers":
        conditions.append(f"{cols} <= {int(config['row_threads']) * vec * items_of(config, cols_now)}")
    step = 2 * vec if functor.rotated else vec
    if vec > 1 and scheme != "flat":
        conditions.append(f"{cols} % {step} == 0")
    for name, tensor in functor.chain.tensors.items():
        kind, size = shape_of(functor, name), DTYPES[tensor.dtype]
        access = min(16, vec * size)
        if kind in ("full", "col") and access > size:
            conditions.append(f"align_{name} % {access} == 0")
        if folded(functor, name, cols_now):
            conditions.append(f"ld_{name} == {tensor.shape[-1]}")  # no gaps inside a row, nor between rows
        elif kind == "full" and scheme == "flat":
            conditions.append(f"{rows} <= 1 or ld_{name} == {cols}")
        elif kind == "full" and access > size:
            conditions.append(f"ld_{name} % {access // size} == 0")
        elif kind == "row" and not strided(functor, name) and len(tensor.shape) > 1:
            conditions.append(f"ld_{name} == {tensor.shape[-1]}")  # leading axes that fold into rows without gaps
    # where the size is part of the Workload's source, a condition on it alone says nothing
    return tuple(dict.fromkeys(c for c in conditions if re.search("[a-z]", c)))


__all__ = ["items_of", "render", "safe", "tile_width"]
