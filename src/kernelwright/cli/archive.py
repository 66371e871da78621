"""`kernelwright archive`: what is stored, out and in as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.common import BAD_REQUEST, Json, console, emit, open_archive, workloads_of

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


@app.command(epilog="Example: kernelwright archive rewards chain:softmax:1024x1024 --json")
def rewards(
    problem: Annotated[str | None, typer.Argument(help="A problem or suite; default: all that is there.")] = None, json_output: Json = False
) -> None:
    """What every trial that counts is worth, worked out anew by the rule of docs/learning.md: best first."""
    from kernelwright.learn import reward

    found: dict[str, list[dict[str, Any]]] = {}
    with open_archive() as archive:
        for w in workloads_of(problem) if problem else archive.workloads():
            by_device: dict[str, list[Any]] = {}
            for t in archive.trials(workload=w):
                by_device.setdefault(t.environment.device, []).append(t)
            for device, trials in by_device.items():
                worth = [(reward.reward(t), t) for t in reward.counted(trials) if t.candidate.kind != "rival"]
                ranked = sorted(worth, key=lambda one: -2.0 if one[0] is None else one[0], reverse=True)
                found[f"{w.name} on {device}"] = [
                    {"reward": r, "outcome": str(t.verdict.outcome), "candidate": t.candidate.id, "trial": t.id} for r, t in ranked
                ]
    if json_output:
        emit(found)
        return
    screen = console(False)
    for title, rows in found.items():
        screen.print(title, markup=False)
        for row in rows:
            worth = "     " if row["reward"] is None else f"{row['reward']:5.2f}"
            screen.print(f"  {worth}  {row['outcome']:<16} candidate {row['candidate']}  trial {row['trial']}", markup=False)


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
