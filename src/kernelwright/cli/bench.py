"""`kernelwright bench SUITE`: rivals and our best known kernels side by side; with answers, a leaderboard (`bench_answers`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import (
    BAD_REQUEST,
    LIST_SUFFIX,
    Dtype,
    Json,
    Layouts,
    TargetName,
    command_line,
    console,
    emit,
    open_archive,
    open_target,
    out_dir,
    require_rivals,
    workloads_of,
)


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright bench kernelbench:1 --path KernelBench --answers mine=answers/")
    def bench(
        suite: Annotated[
            str,
            typer.Argument(
                help="A suite (hgemm-1000, llm-shapes ...), a .txt file of problems, one problem, kernelbench:LEVEL or cudahercules."
            ),
        ],
        path: Annotated[Path | None, typer.Option(help="The checkout of KernelBench or CUDAHercules.")] = None,
        answers: Annotated[
            list[str] | None,
            typer.Option(help="Answers to be judged, in sets: [NAME=]PATH of a file, a folder, a KernelBench run or CUDA-L1's JSON lines."),
        ] = None,
        entrant: Annotated[list[str] | None, typer.Option(help="Baselines that enter: torch.compile, families, reference, expert.")] = None,
        only: Annotated[list[str] | None, typer.Option(help="Problems: 7, 3-12, a part of a name; commas join them.")] = None,
        target: TargetName = "auto",
        dtype: Dtype = None,
        layout: Layouts = None,
        mode: Annotated[list[str] | None, typer.Option(help="Timing mode(s); the default is the target's headline mode.")] = None,
        rival: Annotated[list[str] | None, typer.Option(help="Rival(s); the default is all.")] = None,
        rounds: Annotated[int, typer.Option(min=3, help="Most rounds for each workload and mode.")] = 25,
        limit: Annotated[
            int | None, typer.Option(min=1, help="Only so many workloads (of each layout): a random sample, the same one every time.")
        ] = None,
        minutes: Annotated[float | None, typer.Option(min=0.1, help="With answers: end after so many; the same command goes on.")] = None,
        seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds of sampling for each workload and mode.")] = 5.0,
        patience: Annotated[float, typer.Option(min=10, help="With answers: seconds until a silent problem is given up.")] = 1800.0,
        lint: Annotated[bool, typer.Option(help="With answers: look for faults of each problem, once.")] = True,
        lint_only: Annotated[
            bool, typer.Option(help="Judge nothing: only look for faults, which later runs in the same folder know.")
        ] = False,
        operators: Annotated[bool, typer.Option(help="With answers: have nvcc compile once more to see what one executes.")] = True,
        claimed_baseline: Annotated[
            Path | None, typer.Option(help="KernelBench's file of baseline times that a run folder's claims are about.")
        ] = None,
        write: Annotated[
            str, typer.Option(help="A model writes answers (KERNELWRIGHT_LLM_URL): pass (independent samples), refine or tools.")
        ] = "",
        samples: Annotated[int, typer.Option(min=1, max=200, help="With --write pass: answers for each problem.")] = 5,
        turns: Annotated[int, typer.Option(min=1, max=50, help="With --write refine or tools: rounds for each problem.")] = 8,
        judge: Annotated[
            bool, typer.Option("--llm-judge", help="A model reads each answer too; its opinion is shown, and decides nothing.")
        ] = False,
        fresh: Annotated[bool, typer.Option(help="With answers: forget what earlier runs in this folder found.")] = False,
        out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("kernelwright-out"),
        json_output: Json = False,
    ) -> None:
        """Measure rivals beside the best kernels in the archive (a family's first guess where there is none yet); or judge answers and put
        them on a leaderboard."""
        import uuid

        from kernelwright.cli import bench_answers

        asked = bench_answers.Asked(
            suite=suite,
            path=path,
            answers=tuple(answers or ()),
            entrants=tuple(entrant or ()),
            only=tuple(only or ()),
            target=target,
            dtype=dtype,
            layouts=tuple(layout or ()),
            modes=tuple(mode or ()),
            rivals=tuple(rival or ()),
            rounds=rounds,
            seconds=seconds,
            limit=limit,
            minutes=minutes,
            task_seconds=patience,
            lint=lint,
            lint_only=lint_only,
            operators=operators,
            baseline=claimed_baseline,
            out=out,
            fresh=fresh,
            write=write,
            samples=samples,
            turns=turns,
            judge=judge,
            json=json_output,
        )
        if bench_answers.wanted(asked):
            bench_answers.bench(asked)
            return

        from kernelwright import rivals
        from kernelwright.evaluate.evaluator import Evaluator
        from kernelwright.evaluate.jobs import ALL_RUNGS, Job
        from kernelwright.loop import asked_modes, headline_mode
        from kernelwright.report import html, tables

        screen = console(json_output)
        folder, found = out_dir(out), workloads_of(suite, dtype, layout or (), limit=limit)
        device, session, trials = open_target(target), uuid.uuid4().hex[:12], []
        modes = asked_modes(mode or (), device.name) or (headline_mode(device.name),)
        with open_archive() as archive, Evaluator(device) as evaluator:
            peaks = evaluator.peaks
            for index, w in enumerate(found, 1):
                names = rivals.asked(rival, w) if rival else rivals.names_for(w, device.name)
                require_rivals(names, w, device.name)
                candidate = best_known(archive, w, device, evaluator.environment.device)
                job = Job(workload=w, rivals=names, rungs=ALL_RUNGS, modes=modes, max_rounds=rounds, seconds=seconds, noise=True)
                built = list(evaluator.builder.builds([candidate] if candidate else []))
                for trial in evaluator.evaluate_built(built, job, stage="confirm", session=session):
                    archive.append(trial)
                    trials.append(trial)
                screen.print(f"{index}/{len(found)} {w.name}")
        if not trials:
            raise typer.Exit(BAD_REQUEST)
        report = html.write(
            folder / f"bench-{suite_slug(suite)}.html", trials, title=f"bench {suite}", command=command_line(), target_peaks=peaks
        ).resolve()
        if json_output:
            emit(rows(trials) | {"report": str(report)})
        else:
            screen.print(tables.result_table(trials, target_peaks=peaks))
            screen.print(f"report: {report}")


def suite_slug(text: str) -> str:
    return Path(text).name.removesuffix(LIST_SUFFIX).replace(":", "-")


def best_known(archive, w, device, device_name: str):
    """The archive's best own candidate, else the first family's first seed, else None."""
    from kernelwright.families import families_for

    known = archive.best(w, device.name, device_name, own=True)
    if known is not None:
        return known.candidate
    facts = device.facts()
    for family in families_for(w, facts)[0]:
        if seeds := family.seeds(w, facts):
            return family.render(seeds[0], w, facts)
    return None


def rows(trials) -> dict:
    """Results as plain data: one row a workload, and the aggregate against each rival."""
    import dataclasses

    from kernelwright.evaluate import stats

    table, against = [], {}
    for t in trials:
        timings = {x.mode: x.median for x in t.timings}
        row = {
            "problem": t.workload.name,
            "contender": t.candidate.label,
            "verdict": t.verdict.outcome,
            "us": timings,
            "trial": t.id,
        }
        row["ratios"] = [
            {"rival": c.rival, "mode": c.mode, "ratio": c.ratio, "low": c.low, "high": c.high, "outcome": c.outcome} for c in t.comparisons
        ]
        table.append(row)
        for c in t.comparisons:
            against.setdefault((c.rival, c.mode), []).append(c)
    summaries = {f"{rival} {mode}": dataclasses.asdict(stats.summarise(found)) for (rival, mode), found in against.items()}
    return {"results": table, "summary": summaries}
