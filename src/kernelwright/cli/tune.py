"""`kernelwright tune SUITE`: many Workloads -> a Pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import (
    NO_KERNEL,
    Dtype,
    Json,
    ProposerName,
    TargetName,
    command_line,
    console,
    emit,
    open_archive,
    open_target,
    out_dir,
    workloads_of,
)


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright tune chains --trials 32 --seconds 20")
    def tune(
        suite: Annotated[str, typer.Argument(help="A suite (hgemm-1000, llm-shapes, chains ...) or one problem.")],
        target: TargetName = "auto",
        dtype: Dtype = None,
        proposer: ProposerName = "evolve",
        trials: Annotated[int, typer.Option(min=1, help="Candidates for each workload, those of earlier runs counted in.")] = 32,
        seconds: Annotated[float, typer.Option(min=0, help="Most seconds of search for each workload.")] = 30.0,
        rival: Annotated[list[str] | None, typer.Option(help="Rival(s) of the final measurement; the default is all.")] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many workloads.")] = None,
        out: Annotated[Path, typer.Option(help="Folder for the report and the pack.")] = Path("kernelwright-out"),
        json_output: Json = False,
    ) -> None:
        """Optimize every workload of a suite and keep the winners in a pack. Goes on where an earlier run stopped."""
        from kernelwright.cli.bench import rows, suite_slug
        from kernelwright.cli.progress import SearchProgress
        from kernelwright.evaluate.evaluator import Evaluator
        from kernelwright.loop import Budget, NothingToTry, optimize
        from kernelwright.report import html, tables
        from kernelwright.runtime import pack

        screen = console(json_output)
        folder, found = out_dir(out), workloads_of(suite, dtype)[:limit]
        device = open_target(target)
        budget = Budget(trials=trials, seconds=seconds, finalists=2)
        confirmed, skipped = [], {}
        with open_archive() as archive, Evaluator(device) as evaluator:
            peaks = evaluator.peaks
            for index, w in enumerate(found, 1):
                with SearchProgress(screen, f"[{index}/{len(found)}] {w.name}", trials, "eager") as progress:
                    try:
                        done = optimize(
                            w,
                            device,
                            archive,
                            proposer=proposer,
                            budget=budget,
                            rival_names=rival,
                            progress=progress,
                            evaluator=evaluator,
                        )
                    except NothingToTry as reason:
                        skipped[w.name] = str(reason)
                        screen.print(f"skipped: {reason}")
                        continue
                confirmed += [t for t in done.trials if t.stage == "confirm"]
        name = suite_slug(suite)
        saved = report = None
        if any(t.verdict.ok for t in confirmed):
            saved = folder / f"pack-{name}"
            pack.save(saved, confirmed)
        if confirmed:
            report = html.write(
                folder / f"tune-{name}.html", confirmed, title=f"tune {suite}", command=command_line(), target_peaks=peaks
            ).resolve()
        if json_output:
            emit(rows(confirmed) | {"skipped": skipped, "report": str(report), "pack": str(saved)})
        elif confirmed:
            screen.print(tables.result_table(confirmed, target_peaks=peaks))
            screen.print(f"report: {report}\npack: {saved or 'none, nothing is right'}")
        if not any(t.verdict.ok and t.candidate.kind != "rival" for t in confirmed):
            raise typer.Exit(NO_KERNEL)
