"""`kernelwright optimize PROBLEM`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import (
    NO_KERNEL,
    Dtype,
    Json,
    Layout,
    ProposerName,
    TargetName,
    command_line,
    console,
    emit,
    open_archive,
    open_target,
    out_dir,
    require_rivals,
    warn_of_faults,
    workloads_of,
)


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright optimize gemm:512x512x512:fp16:nt --trials 128")
    def optimize(
        problem: Annotated[
            str, typer.Argument(help="gemm:MxNxK, linear:MxNxK[:bias+gelu], chain:NAME[:RxC], expert:NAME[:SIZES], or a .py file.")
        ],
        target: TargetName = "auto",
        dtype: Dtype = None,
        layout: Layout = None,
        accumulate: Annotated[str | None, typer.Option(help="Accumulator: fp32, or fp16 for fp16 operands.")] = None,
        proposer: ProposerName = "evolve",
        trials: Annotated[int, typer.Option(min=1, help="Candidates to try, those of earlier runs counted in.")] = 64,
        seconds: Annotated[float, typer.Option(min=0, help="Most seconds of search; confirming comes on top.")] = 60.0,
        candidate: Annotated[list[Path] | None, typer.Option(help="Kernel file(s) of yours to try first.")] = None,
        confirm_seconds: Annotated[float, typer.Option(min=0, help="Most seconds of the final rounds, for each mode.")] = 5.0,
        rival: Annotated[
            list[str] | None,
            typer.Option(help="Rival(s) of the final measurement, the first also of the search; the default is all."),
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
        fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on from earlier runs in the archive.")] = False,
        out: Annotated[Path, typer.Option(help="Folder for the report and the pack.")] = Path("kernelwright-out"),
        json_output: Json = False,
    ) -> None:
        """Turn a problem into a verified, measured, faster kernel; write a report and a pack."""
        from kernelwright import rivals
        from kernelwright.candidate_file import load
        from kernelwright.cli.progress import SearchProgress
        from kernelwright.loop import Budget
        from kernelwright.loop import optimize as run
        from kernelwright.report import tables

        screen = console(json_output)
        (w,) = workloads_of(problem, dtype, (layout,) if layout else (), accumulate)
        warn_of_faults(w, screen)
        folder = out_dir(out)
        device = open_target(target)
        names = rivals.asked(rival, w) if rival else rivals.names_for(w, device.name)
        require_rivals(names, w, device.name)
        extra = [load(path, w, device.name) for path in candidate or []]
        with open_archive() as archive, SearchProgress(screen, w.name, trials, names[0]) as progress:
            done = run(
                w,
                device,
                archive,
                proposer=proposer,
                budget=Budget(trials=trials, seconds=seconds, confirm_seconds=confirm_seconds),
                rival_names=names,
                seed=seed,
                resume=not fresh,
                progress=progress,
                extra=extra,
            )
        report = write_report(done, folder)
        if done.winner is not None:
            save_pack(folder / "pack", done)
        if json_output:
            emit(summary(done, report))
        else:
            screen.print(tables.result_table(done.trials, target_peaks=done.peaks))
            screen.print(f"report: {report}")
            for name, value in done.proposer.items():
                text = ", ".join(f"{what} {n}" for what, n in value.items()) if isinstance(value, dict) else value
                screen.print(f"{name}: {text}", markup=False)
        if done.winner is None:
            raise typer.Exit(NO_KERNEL)


def write_report(done, folder: Path) -> Path:
    from kernelwright.report import html

    name = done.workload.name.replace(":", "-").replace("/", "-")
    return html.write(
        folder / f"{name}.html", done.trials, title=done.workload.name, command=command_line(), target_peaks=done.peaks
    ).resolve()


def save_pack(path: Path, done) -> None:
    from kernelwright.runtime import pack

    pack.save(path / done.workload.name.replace(":", "-").replace("/", "-"), done.trials)


def summary(done, report: Path) -> dict:
    """The object that `--json` prints."""
    winner = done.winner
    failed = next((t for t in reversed(done.trials) if t.candidate.kind != "rival" and not t.verdict.ok), None)
    verdict = winner.verdict.outcome if winner else (failed.verdict.outcome if failed else "none")
    speedups: dict[str, dict] = {}
    for c in winner.comparisons if winner else ():
        if c.mode == done.mode:
            speedups[c.rival] = {"ratio": c.ratio, "low": c.low, "high": c.high, "mode": c.mode, "outcome": c.outcome}
    return {
        "problem": done.workload.name,
        "target": done.target,
        "verdict": verdict,
        "candidate": winner.candidate.id if winner else None,
        "origin": winner.candidate.origin.name if winner else None,
        "trial": winner.id if winner else None,
        "speedups": speedups,
        "trials": sum(t.stage == "screen" for t in done.trials),
        "seconds": round(done.seconds, 3),
        "proposer": done.proposer,
        "report": str(report),
    }
