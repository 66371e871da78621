"""`kernelwright bench` with answers: KernelBench levels, CUDAHercules, or one of our suites, judged and put on a leaderboard."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from kernelwright.cli.common import NO_KERNEL, command_line, console, emit, open_target, out_dir, sampled, workloads_of


@dataclass(frozen=True)
class Asked:
    """The command line's options."""

    suite: str
    path: Path | None
    answers: tuple[str, ...]
    entrants: tuple[str, ...]
    only: tuple[str, ...]
    target: str
    dtype: str | None
    layouts: tuple[str, ...]
    modes: tuple[str, ...]
    rivals: tuple[str, ...]
    rounds: int
    seconds: float
    limit: int | None
    minutes: float | None
    task_seconds: float
    lint: bool
    lint_only: bool
    operators: bool
    baseline: Path | None
    out: Path
    fresh: bool
    write: str
    samples: int
    turns: int
    judge: bool
    json: bool


def wanted(asked: Asked) -> bool:
    """Whether it is this kind of bench. Raises BadParameter for an option that the other kind would not heed."""
    if asked.suite.partition(":")[0] in ("kernelbench", "cudahercules"):
        return True
    if asked.path is not None:
        raise typer.BadParameter(f"--path is the checkout of KernelBench or CUDAHercules; {asked.suite} needs none")
    if asked.answers or asked.entrants or asked.write or asked.lint_only:
        return True
    given = {"--only": asked.only, "--minutes": asked.minutes, "--claimed-baseline": asked.baseline, "--llm-judge": asked.judge}
    given |= {"--fresh": asked.fresh, "--no-lint": not asked.lint, "--no-operators": not asked.operators}
    if word := next((name for name, value in given.items() if value), None):
        raise typer.BadParameter(f"{word} is for judging answers; name some with --answers, --entrant or --write")
    return False


def bench(asked: Asked) -> None:
    """Runs and reports. Exit code 1 when no answer of any entrant is right."""
    from kernelwright.bench import answers as reading
    from kernelwright.bench import run as running
    from kernelwright.bench import tasks as asking
    from kernelwright.bench.board import Board
    from kernelwright.bench.results import Store
    from kernelwright.cli.bench import suite_slug
    from kernelwright.loop import asked_modes

    screen = console(asked.json)
    folder = out_dir(asked.out)
    opened = open_target(asked.target)
    target = opened.name
    tasks = _tasks(asked, asking, opened.facts().sm)
    options = running.Options(
        rivals=asked.rivals,
        modes=asked_modes(asked.modes, target) if asked.modes else (),
        rounds=asked.rounds,
        seconds=asked.seconds,
        task_seconds=asked.task_seconds,
        lint=asked.lint or asked.lint_only,
        operators=asked.operators,
        minutes=math.inf if asked.minutes is None else asked.minutes,
    )
    _known_rivals(asked.rivals, tasks, target)
    entrants = [reading.read(text, tasks, asked.baseline) for text in asked.answers]
    entrants += [running.baseline(name, tasks, asked.path) for name in asked.entrants]
    slug = suite_slug(asked.suite)
    kept = folder / f"bench-{slug}.jsonl"
    if asked.fresh:
        kept.unlink(missing_ok=True)
    store = Store(kept)
    if asked.write:
        from kernelwright.bench import models

        started = time.monotonic()
        entrants.append(models.write(asked.write, tasks, store, target, options, asked.samples, asked.turns, _lines(screen)))
        options = replace(options, minutes=options.minutes - (time.monotonic() - started) / 60)
    if asked.lint_only:
        entrants = []
    elif not entrants:
        entrants = [running.baseline("torch.compile", tasks)]
    names = [e.name for e in entrants]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise typer.BadParameter(f"two sets of answers are called {twice}; name one with --answers NAME=PATH")
    for e in entrants:
        for note in e.notes:
            screen.print(f"{e.name}: {note}", markup=False)
    finished = running.run(tasks, entrants, store, target, options, _lines(screen))
    if asked.judge:
        from kernelwright.bench import opinion

        opinion.ask(tasks, entrants, store, options.asked, folder / f"opinions-{slug}.jsonl")
    board = Board(asked.suite, tasks, entrants, store, options.asked, opinions=folder / f"opinions-{slug}.jsonl")
    page = board.write(folder / f"bench-{slug}.html", command_line()).resolve()
    if asked.json:
        emit(board.data() | {"report": str(page), "finished": finished, "results": str(store.path.resolve())})
    else:
        show(screen, board)
        if not finished:
            screen.print("the minutes are over; the same command goes on from here")
        screen.print(f"report: {page}", markup=False)
    if entrants and not any(r.status == "correct" for r in board.results):
        raise typer.Exit(NO_KERNEL)


def _tasks(asked: Asked, asking: Any, sm: int) -> list[Any]:
    kind = asked.suite.partition(":")[0]
    if kind not in ("kernelbench", "cudahercules"):
        workloads = workloads_of(asked.suite, asked.dtype, asked.layouts, limit=asked.limit)
        return asking.only(asking.tasks_of(asked.suite, None, workloads=workloads), asked.only)
    if asked.layouts:
        raise typer.BadParameter(f"{asked.suite} has no layouts; leave --layout out")
    tasks = asking.only(asking.tasks_of(asked.suite, asked.path, asked.dtype, sm=sm), asked.only)
    return [tasks[i] for i in sampled(len(tasks), asked.limit)]


def _known_rivals(names: Sequence[str], tasks: Sequence[Any], target: str) -> None:
    from kernelwright import rivals

    known = {n for t in tasks if t.workload is not None for n in rivals.names_for(t.workload, target, every=True)}
    if known and (unknown := sorted(set(names) - known)):
        raise typer.BadParameter(f"no rival {unknown[0]!r} on {target}; choose from {', '.join(sorted(known))}")


def _lines(screen: Any) -> Any:
    """Plain lines of progress: one a result."""

    def say(p: Any) -> None:
        line = p.line
        if line is None or not hasattr(line, "status"):
            return
        found = min((c for c in line.comparisons if c.mode == line.mode), key=lambda c: c.ratio, default=None)
        said = f"{found.ratio:.2f}x {found.rival}, {found.outcome}" if found else line.evidence[:120]
        if line.scores:  # of an open challenge, where speed says nothing
            said = ", ".join(f"{quantity}: {value:.4g}" for quantity, value in line.scores.items())
        work = f" [{line.work}]" if line.work in ("flags only", "wraps the library") else ""
        sample = f" sample {line.sample}" if line.sample else ""
        screen.print(f"{p.done}/{p.total} {line.task} {line.entrant}{sample}: {line.status}, {said}{work}", markup=False)

    return say


def show(screen: Any, board: Any) -> None:
    """The leaderboard as a table."""
    from rich.table import Table

    from kernelwright.report.numbers import percent, ratio

    def figure(x: float) -> str:
        return "–" if math.isnan(x) else ratio(x)

    def part(x: float) -> str:
        return "–" if math.isnan(x) else percent(x)

    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(("entrant", "right", "fast 1", "fast 2", "fast 5", "win/tie/loss", "geomean", "flags aside")):
        table.add_column(name, justify="left" if i == 0 else "right")
    for s in board.ranked():
        x = s.score
        table.add_row(
            s.entrant,
            f"{x.correct} of {x.tasks}",
            *(part(x.fast[p]) for p in (1.0, 2.0, 5.0)),
            f"{x.wins}/{x.ties}/{x.losses}",
            figure(x.geomean),
            part(s.own.fast[1.0]),
        )
    if board.standings:
        screen.print(table)
    for f in () if board.standings else board.facts.values():
        found = "; ".join(f"{x.text} ({x.rule}, {x.severity})" for x in f.faults) or ("no faults" if f.linted else "not looked into")
        screen.print(f"{f.task.key} {f.task.name} [{f.task.domain or 'unknown'}]: {found}", markup=False)
    for task, quantity, values in board.challenges:
        reached = ", ".join(f"{entrant} {value:.4g}" if value == value else f"{entrant} {status}" for entrant, status, value in values)
        screen.print(f"open challenge {task}: {quantity or 'no score'}: {reached}", markup=False)
    for f in board.degenerate:
        rules = ", ".join(dict.fromkeys(x.rule for x in f.faults if x.severity != "note"))
        screen.print(f"degenerate, scored apart: {f.task.key} {f.task.name} ({rules})", markup=False)
    for keys, kind, why in board.skipped:
        screen.print(f"not run, {kind}: {keys}: {why}", markup=False)
    for c in board.claims:
        counts = ", ".join(f"{n} {k}" for k, n in c.counts.items())
        said = f"published {figure(c.claimed)}, measured {figure(c.measured)}, on the same {c.both} answers ({counts})"
        screen.print(f"{c.entrant} against {c.rival}: {said}", markup=False)
    for d in board.differences:
        if d.verdict != "reproduced" and len(board.differences) <= 40:
            measured = figure(d.measured.ratio) if d.measured else "–"
            reason = d.reasons[0] if d.reasons else ""
            claimed = f"{d.rival} {figure(d.claimed)}" if d.rival else "correct"
            screen.print(f"  {d.task} claimed {claimed}, measured {measured}: {d.verdict}; {reason[:200]}", markup=False)
