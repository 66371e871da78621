"""`kernelwright pack`: save winners, look into a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import BAD_REQUEST, Json, TargetName, console, emit, open_archive, workloads_of

app = typer.Typer(help="Winners as a folder of sources, builds and evidence.", no_args_is_help=True)


@app.command(epilog="Example: kernelwright pack save my-pack chains")
def save(
    path: Annotated[Path, typer.Argument(help="Folder to make.")],
    what: Annotated[str, typer.Argument(help="A suite or problem whose confirmed winners are kept.")],
    target: TargetName = "auto",
    json_output: Json = False,
) -> None:
    """Keep the best confirmed kernel of each workload in the archive."""
    from kernelwright.runtime import pack
    from kernelwright.targets import target as target_of

    name = target_of(target).name
    with open_archive() as archive:
        trials = [
            t
            for w in workloads_of(what)
            for t in archive.trials(workload=w, stage="confirm")
            if t.environment.target == name and t.verdict.ok
        ]
    if not trials:
        console(json_output).print(f"nothing confirmed for {what} on {name} yet; run: kernelwright tune {what} --target {name}")
        raise typer.Exit(BAD_REQUEST)
    pack.save(path, trials)
    _print(path, json_output)


@app.command(epilog="Example: kernelwright pack info my-pack")
def info(path: Annotated[Path, typer.Argument(help="A pack's folder.")], json_output: Json = False) -> None:
    """Check every file of a pack against its checksum, and list what it holds."""
    _print(path, json_output)


def _print(path: Path, json_output: bool) -> None:
    from kernelwright.runtime import pack

    loaded = pack.load(path)
    if json_output:
        emit(loaded.info())
    else:
        screen = console(False)
        for key, value in loaded.info().items():
            screen.print(f"{key}: {value}", markup=False)
