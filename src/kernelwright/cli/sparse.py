"""`kernelwright sparse`: compress checkpoints of pruned models, look into them, time the layouts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.common import Json, console, emit

app = typer.Typer(help="Checkpoints pruned to about half, in half the bytes.", no_args_is_help=True)

Skip = Annotated[list[str] | None, typer.Option(help="A layer that stays dense: its name or the last part; lm_head unless given.")]


@app.command(epilog="Example: kernelwright sparse convert llama-7b-wanda llama-7b-wanda-sparse")
def convert(
    source: Annotated[
        Path, typer.Argument(help="A .safetensors file or a Hugging Face folder, dense or in compressed-tensors' sparse-bitmask.")
    ],
    target: Annotated[Path, typer.Argument(help="File or folder to make.")],
    min_sparsity: Annotated[float, typer.Option(min=0.0, max=1.0, help="Matrices with fewer zeros stay dense.")] = 0.3,
    skip: Skip = None,
    drop_negative_zeros: Annotated[bool, typer.Option(help="Count -0.0 as pruned; else it is kept as a value.")] = False,
    json_output: Json = False,
) -> None:
    """Compress the sparse matrices of a checkpoint, exactly; from_pretrained then loads the folder."""
    from kernelwright.sparse.checkpoint import SKIP, convert_checkpoint

    screen = console(json_output)
    reports = convert_checkpoint(
        source,
        target,
        min_sparsity=min_sparsity,
        skip=tuple(skip or SKIP),
        negative_zero="drop" if drop_negative_zeros else "keep",
        told=lambda r: screen.print(_line(r), markup=False),
    )
    if json_output:
        emit({"target": str(target), **_sums(reports), "weights": [asdict(r) for r in reports]})
    else:
        screen.print(f"{_sentence(reports)}; wrote {target}", markup=False)


@app.command(epilog="Example: kernelwright sparse inspect llama-7b-wanda-sparse")
def inspect(
    path: Annotated[Path, typer.Argument(help="A .safetensors file or a folder with some.")],
    json_output: Json = False,
) -> None:
    """List every matrix of a checkpoint with its sparsity and size, and check the checksums."""
    from kernelwright.sparse.checkpoint import inspect as look

    reports = []
    for report in look(path):
        reports.append(report)
        if not json_output:
            console(False).print(_line(report), markup=False)
    if json_output:
        emit({**_sums(reports), "weights": [asdict(r) for r in reports]})
    else:
        console(False).print(_sentence(reports), markup=False)


@app.command(epilog="Example: kernelwright sparse bench --shape 4096x11008")
def bench(
    shape: Annotated[list[str] | None, typer.Option(help="Rows x columns of a weight; may be given several times.")] = None,
    sparsity: Annotated[float, typer.Option(min=0.3, max=0.99, help="Part of each row that is zero.")] = 0.5,
    dtype: Annotated[str, typer.Option(help="fp16 or bf16.")] = "fp16",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Of which the median is shown.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_output: Json = False,
) -> None:
    """Time packing, unpacking and the layer's product beside dense. Kernels of the pack that KERNELWRIGHT_PACK names multiply what they
    were measured for; else the layer is slower than dense by the time of unpacking."""
    from kernelwright.sparse.bench import LAYER_ROWS, bench_shape

    rows = [
        row
        for text in shape or ["4096x4096", "4096x11008"]
        for row in bench_shape(*_shape(text), sparsity=sparsity, dtype=dtype, repeats=repeats, device=device)
    ]
    if json_output:
        emit({"sparsity": sparsity, "dtype": dtype, "device": device, "repeats": repeats, "rows": rows})
        return
    from rich.table import Table

    header = ("weight", "layout", "B/weight", "pack s", "unpack s", *(f"N={n}: ms (dense)" for n in LAYER_ROWS))
    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        layers = (f"{row['layer_ms'][n]:.1f} ({row['dense_ms'][n]:.1f})" for n in LAYER_ROWS)
        times = (f"{row[key]:.2f}" for key in ("pack_seconds", "unpack_seconds"))
        table.add_row(row["weight"], row["layout"], f"{row['bytes_per_weight']:.3f}", *times, *layers)
    screen = console(False)
    screen.width = max(screen.width, 110)  # a table cut off is worth nothing
    screen.print(table)


def _shape(text: str) -> tuple[int, int]:
    sizes = text.lower().split("x")
    if len(sizes) != 2 or not all(s.isascii() and s.isdigit() and 0 < int(s) <= 1 << 20 for s in sizes):
        raise typer.BadParameter(f"{text!r} is no shape; write rows x columns, as 4096x11008")
    return int(sizes[0]), int(sizes[1])


def _line(r: Any) -> str:
    size = f"{r.bytes_per_weight:.3f} bytes/weight" if r.compressed else f"dense{': ' + r.why if r.why else ''}"
    negative = f", {r.negative_zeros:.1%} -0.0" if r.negative_zeros > 0.001 else ""
    return f"{r.name}  {'x'.join(map(str, r.shape))} {r.dtype}  {r.sparsity:.1%} zeros{negative}  {size}"


def _sums(reports: list[Any]) -> dict[str, Any]:
    packed = [r for r in reports if r.compressed]
    weights = sum(r.shape[0] * r.shape[1] for r in packed)
    size = sum(r.shape[0] * r.shape[1] * r.bytes_per_weight for r in packed)
    return {
        "compressed": len(packed),
        "dense": len(reports) - len(packed),
        "weights": weights,
        "bytes": round(size),
        "bytes_per_weight": size / weights if weights else None,
    }


def _sentence(reports: list[Any]) -> str:
    sums = _sums(reports)
    if not sums["compressed"]:
        return f"{sums['dense']} matrices, none of them compressed"
    each = f"{sums['weights']:,} weights in {sums['bytes'] / 2**20:.1f} MiB, {sums['bytes_per_weight']:.3f} bytes each"
    return f"{sums['compressed']} matrices compressed ({each}), {sums['dense']} dense"
