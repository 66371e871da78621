"""`kernelwright report`: the HTML page of what the archive holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import BAD_REQUEST, Json, command_line, console, emit, open_archive, out_dir


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright report chain:new-gelu:1024x1024")
    def report(
        what: Annotated[str | None, typer.Argument(help="A problem or suite; the default is everything in the archive.")] = None,
        session: Annotated[str | None, typer.Option(help="Only the trials of this run.")] = None,
        out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("kernelwright-out"),
        json_output: Json = False,
    ) -> None:
        """Write a report of trials in the archive; with --json, also print where and how many."""
        from kernelwright.cli.bench import suite_slug
        from kernelwright.cli.common import workloads_of
        from kernelwright.report import html, tables

        with open_archive() as archive:
            if what is None:
                trials = list(archive.trials(session=session))
            else:
                trials = [t for w in workloads_of(what) for t in archive.trials(workload=w, session=session)]
        screen = console(json_output)
        if not trials:
            where = f" for {what}" if what else ""
            screen.print(f"the archive has no trials{where} yet; make some with: kernelwright optimize {what or 'chain:new-gelu'}")
            raise typer.Exit(BAD_REQUEST)
        name = suite_slug(what) if what else (session or "archive")
        path = html.write(
            out_dir(out) / f"report-{name}.html", trials, title=what or "everything measured", command=command_line()
        ).resolve()
        if json_output:
            emit({"report": str(path), "trials": len(trials)})
        else:
            screen.print(tables.result_table(trials))
            screen.print(f"report: {path}")
