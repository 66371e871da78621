"""`kernelwright lint PROBLEM`: is a problem, a suite or a folder of KernelBench files fit to judge kernels by?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.common import NO_KERNEL, Dtype, Json, Layouts, console, emit, workloads_of


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright lint KernelBench/level1/23_Softmax.py --repair softmax.py")
    def lint(
        what: Annotated[
            str, typer.Argument(help="A problem, a suite, a KernelBench .py file or a folder of them.", metavar="PROBLEM|SUITE")
        ],
        dtype: Dtype = None,
        layout: Layouts = None,
        limit: Annotated[int | None, typer.Option(help="At most so many of a suite's workloads.", min=1)] = None,
        memory: Annotated[float | None, typer.Option(help="GiB of the device to judge on; the default is this machine's.", min=0)] = None,
        seed: Annotated[int, typer.Option(help="Of the inputs drawn.")] = 0,
        strict: Annotated[bool, typer.Option("--strict", help="Warnings fail as errors do.")] = False,
        repair: Annotated[Path | None, typer.Option(help="Write a repaired KernelBench file there.")] = None,
        json_output: Json = False,
    ) -> None:
        """Find what lets a wrong kernel pass: constant or tiny outputs, ignored inputs, inputs of low rank. An error ends with code 1."""
        from kernelwright.problems.lint import lint as faults

        workloads = _workloads(what, dtype, layout or (), limit)
        if repair is not None and (len(workloads) != 1 or not workloads[0].source):
            raise typer.BadParameter("--repair is for one KernelBench file; the inputs of other problems are kernelwright's own")
        size = _memory() if memory is None else memory * 2**30
        screen, found = console(json_output), {}
        for w in workloads:
            key = w.name
            while key in found:
                key += "'"
            found[key] = findings = faults(w, seed=seed, memory=size)
            for f in findings:
                screen.print(f"{f.severity}: {w.name}: {f.text} ({f.rule})", markup=False)
        repaired = _repair(repair, workloads[0], found[workloads[0].name], screen) if repair is not None else None
        counts = {s: sum(f.severity == s for each in found.values() for f in each) for s in ("error", "warning", "note")}
        if json_output:
            emit({"problems": {name: [_plain(f) for f in each] for name, each in found.items()}, "counts": counts, "repair": repaired})
        else:
            clean = sum(not any(f.severity != "note" for f in each) for each in found.values())
            screen.print(f"{clean} of {len(found)} without faults; {counts['error']} errors, {counts['warning']} warnings")
        if counts["error"] or (strict and counts["warning"]):
            raise typer.Exit(NO_KERNEL)


def _workloads(what: str, dtype: str | None, layouts: Any, limit: int | None) -> tuple[Any, ...]:
    """KernelBench files are read, not run: one that cannot be used is a finding."""
    path = Path(what)
    if path.is_dir() or path.suffix == ".py":
        from kernelwright.problems import FLOATS
        from kernelwright.problems.kernelbench import read

        if layouts or (dtype is not None and dtype not in FLOATS):
            raise typer.BadParameter(f"a KernelBench file has no layout, and a dtype of {', '.join(FLOATS)}")
        files = sorted(path.glob("*.py"), key=_numbered) if path.is_dir() else [path]
        if not files:
            raise typer.BadParameter(f"there is no .py file in {path}; give a folder of KernelBench files")
        return tuple(read(file, dtype or "fp32") for file in files[:limit])
    return workloads_of(what, dtype, layouts, limit=limit)


def _numbered(path: Path) -> tuple[int, str]:
    """KernelBench's files begin with a number."""
    number = path.stem.split("_")[0]
    return (int(number) if number.isdigit() else 10**9, path.stem)


def _memory() -> float:
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _repair(path: Path, w: Any, findings: Any, screen: Any) -> dict[str, Any]:
    from kernelwright.problems.kernelbench_repair import repair

    done = repair(w, findings)
    if done.changes:
        path.write_text(done.w.source, encoding="utf-8")
    for change in done.changes:
        screen.print(f"repaired: {change}", markup=False)
    for f in done.remaining:
        screen.print(f"left: {f.text} ({f.rule})", markup=False)
    if not done.changes:
        screen.print(f"nothing was written to {path}: no change of inputs repairs a fault of it")
    return {
        "file": str(path) if done.changes else None,
        "changes": list(done.changes),
        "remaining": [_plain(f) for f in done.remaining],
    }


def _plain(f: Any) -> dict[str, Any]:
    return {"rule": f.rule, "severity": f.severity, "tensor": f.tensor, "text": f.text, "figures": dict(f.figures)}
