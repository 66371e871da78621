"""`kernelwright verify FILE --problem PROBLEM`: is it right, is it honest, how fast is it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import (
    NO_KERNEL,
    Dtype,
    Json,
    Layout,
    TargetName,
    console,
    emit,
    open_archive,
    open_target,
    warn_of_faults,
    workloads_of,
)


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright verify my_kernel.cpp --problem gemm:64x64x64:fp32")
    def verify(
        file: Annotated[Path, typer.Argument(help="A .cu, .cpp, .py or .json candidate.")],
        problem: Annotated[str, typer.Option(help="gemm:MxNxK, linear:MxNxK[:bias+gelu], chain:NAME[:RxC], or a KernelBench .py file.")],
        target: TargetName = "auto",
        dtype: Dtype = None,
        layout: Layout = None,
        time: Annotated[bool, typer.Option(help="Also time it against torch eager.")] = True,
        json_output: Json = False,
    ) -> None:
        """Climb the whole correctness ladder with one kernel; report each check."""
        from kernelwright.candidate_file import load
        from kernelwright.evaluate.evaluator import Evaluator
        from kernelwright.evaluate.jobs import ALL_RUNGS, Job
        from kernelwright.loop import headline_mode

        (w,) = workloads_of(problem, dtype, (layout,) if layout else ())
        warn_of_faults(w, console(json_output))
        device = open_target(target)
        candidate = load(file, w, device.name)
        modes = (headline_mode(device.name),) if time else ()
        job = Job(workload=w, rivals=("eager",) if time else (), rungs=ALL_RUNGS, modes=modes, min_rounds=9, max_rounds=25, noise=True)
        with open_archive() as archive, Evaluator(device) as evaluator:
            (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="")
            archive.append(trial)
        if json_output:
            speedups = {c.rival: {"ratio": c.ratio, "low": c.low, "high": c.high, "mode": c.mode} for c in trial.comparisons}
            checks = [{"rung": c.rung, "case": c.case, "passed": c.passed, "note": c.note} for c in trial.verdict.checks]
            emit(
                {
                    "problem": w.name,
                    "target": device.name,
                    "verdict": trial.verdict.outcome,
                    "evidence": trial.verdict.evidence,
                    "candidate": candidate.id,
                    "trial": trial.id,
                    "speedups": speedups,
                    "checks": checks,
                }
            )
        else:
            show(console(False), trial)
        if not trial.verdict.ok:
            raise typer.Exit(NO_KERNEL)


def show(screen, trial) -> None:
    from rich.table import Table

    table = Table("rung", "case", "passed", "error", "bound", "vs vendor", "note", box=None, pad_edge=False)
    for c in trial.verdict.checks:
        ratio = "" if c.vendor_ratio is None else f"{c.vendor_ratio:.2f}"
        table.add_row(c.rung, c.case, "yes" if c.passed else "NO", f"{c.error:.3g}", f"{c.bound:.3g}", ratio, c.note)
    screen.print(table)
    screen.print(f"{trial.verdict.outcome}: {trial.verdict.evidence}", markup=False)
    for c in trial.comparisons:
        screen.print(f"{c.ratio:.2f}x {c.rival} [{c.low:.2f}, {c.high:.2f}], {c.mode}, {c.rounds} rounds: {c.outcome}", markup=False)
    screen.print(f"trial {trial.id}")
