"""`kernelwright archive`: what is stored, out and in as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import BAD_REQUEST, Json, console, emit, open_archive

app = typer.Typer(help="The store of all trials: what is in it, export and import.", no_args_is_help=True)


@app.command(epilog="Example: kernelwright archive info")
def info(json_output: Json = False) -> None:
    """Where the archive is and what it holds."""
    with open_archive() as archive:
        counts = {str(k): v for k, v in archive.counts().items()}
        found = {"path": str(archive.path), "trials": len(archive), "workloads": len(archive.workloads()), "outcomes": counts}
    if json_output:
        emit(found)
    else:
        outcomes = ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"
        console(False).print(f"{found['path']}: {found['trials']} trials of {found['workloads']} workloads ({outcomes})")


@app.command("export", epilog="Example: kernelwright archive export trials.jsonl.gz")
def export_(file: Annotated[Path, typer.Argument(help="JSON lines; .gz and .xz compress.")], json_output: Json = False) -> None:
    """Write every trial as a line of JSON."""
    with open_archive() as archive:
        count = archive.export(file)
    if json_output:
        emit({"file": str(file), "trials": count})
    else:
        console(False).print(f"{count} trials written to {file}")


@app.command("import", epilog="Example: kernelwright archive import trials.jsonl.gz")
def import_(file: Annotated[Path, typer.Argument(help="JSON lines made by export.")], json_output: Json = False) -> None:
    """Add trials from a file; those that are there already are left alone, bad lines are named and skipped."""
    with open_archive() as archive:
        found = archive.import_(file)
    if json_output:
        emit({"added": found.added, "known": found.known, "bad": list(found.bad)})
    else:
        screen = console(False)
        screen.print(f"{found.added} trials added, {found.known} were there already")
        for line in found.bad:
            screen.print(line, markup=False)
    if found.bad:
        raise typer.Exit(BAD_REQUEST)
