"""`kernelwright tune SUITE`: many Workloads -> a Pack."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelwright.cli.common import (
    NO_KERNEL,
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

if TYPE_CHECKING:
    from kernelwright.records import Trial, Workload


TABLE_ROWS = 50
"""Larger suites have their table in the report only."""


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright tune hgemm-1000 --minutes 30 --rival cublas --rival cublaslt-auto")
    def tune(
        suite: Annotated[str, typer.Argument(help="A suite (hgemm-1000, chains ...), a .txt file with a problem a line, or one problem.")],
        target: TargetName = "auto",
        dtype: Dtype = None,
        layout: Layouts = None,
        minutes: Annotated[
            float, typer.Option(min=0, help="Device time for the whole suite, that of earlier runs of this command counted in.")
        ] = 30.0,
        trials: Annotated[int, typer.Option(min=1, help="Most candidates of a workload, those of earlier runs counted in.")] = 32,
        tolerance: Annotated[
            float, typer.Option(min=0, help="How much slower than its best own kernel a workload may be for a smaller set (0.01: 1 %).")
        ] = 0.01,
        confirm_seconds: Annotated[float, typer.Option(min=0, help="Most seconds of a workload's final rounds, for each mode.")] = 1.0,
        rival: Annotated[
            list[str] | None,
            typer.Option(
                help="Rival(s) of the final measurement; the default is all (above 50 workloads: all but compile and compile-max)."
            ),
        ] = None,
        mode: Annotated[list[str] | None, typer.Option(help="Timing mode(s) of the final measurement beside the headline's.")] = None,
        limit: Annotated[
            int | None, typer.Option(min=1, help="Only so many workloads (of each layout): a random sample, the same one every time.")
        ] = None,
        out: Annotated[Path, typer.Option(help="Folder for the report and the pack.")] = Path("kernelwright-out"),
        json_output: Json = False,
    ) -> None:
        """Tune every workload of a suite and keep a small set of kernels in a pack. Goes on where an earlier run stopped."""
        from kernelwright import rivals
        from kernelwright.cli.bench import rows, suite_slug
        from kernelwright.evaluate.pack_build import save_pack
        from kernelwright.loop import asked_modes
        from kernelwright.report import html, tables
        from kernelwright.tune import Limits
        from kernelwright.tune import tune as tune_suite

        screen = console(json_output)
        folder, found = out_dir(out), workloads_of(suite, dtype, layout or (), limit=limit)
        device = open_target(target)
        modes = asked_modes(mode or (), device.name)
        for name in rival or ():
            if not any(set(rivals.asked((name,), w)) <= set(rivals.names_for(w, device.name, every=True)) for w in found):
                require_rivals(rivals.asked((name,), found[0]), found[0], device.name)
        limits = Limits(
            minutes=minutes,
            trials=trials,
            tolerance=tolerance,
            confirm_seconds=confirm_seconds,
            modes=modes,
            rivals=tuple(rival) if rival else None,
        )
        with open_archive() as archive, SuiteProgress(screen, len(found)) as progress:
            done = tune_suite(found, device, archive, limits, listener=progress)
        name = suite_slug(suite)
        saved = report = None
        if any(t.verdict.ok for t in done.trials):
            saved = save_pack(folder / f"pack-{name}", done.trials, done.screens, tolerance).path
        if done.trials:
            report = html.write(
                folder / f"tune-{name}.html", done.trials, title=f"tune {suite}", command=command_line(), target_peaks=done.peaks
            ).resolve()
        summary = {
            "kernels": len(done.kernels),
            "loss": done.loss,
            "worst_loss": done.worst_loss,
            "unfinished": [w.name for w in done.unfinished],
            "skipped": done.skipped,
            "minutes": done.spent / 60,
        }
        if json_output:
            emit(rows(done.trials) | summary | {"report": str(report), "pack": str(saved)})
        else:
            if done.trials and len(found) <= TABLE_ROWS:
                screen.print(tables.result_table(done.trials, target_peaks=done.peaks))
            if done.kernels:
                screen.print(
                    f"{len(done.kernels)} kernels serve {len(found) - len(done.unfinished) - len(done.skipped)} workloads, "
                    f"{done.loss:.2%} slower than each one's best (worst {done.worst_loss:.2%})"
                )
            if done.unfinished:
                screen.print(f"{len(done.unfinished)} workloads are not confirmed; the same command with more --minutes goes on")
            screen.print(f"report: {report or 'none'}\npack: {saved or 'none, nothing is confirmed as right'}")
        if not any(t.verdict.ok and t.candidate.kind != "rival" for t in done.trials):
            raise typer.Exit(NO_KERNEL)


class SuiteProgress:
    """A Listener: a live bar for the whole suite on a terminal, one line a Workload elsewhere. Use as a context manager."""

    def __init__(self, screen: Any, total: int):
        self._screen, self._total = screen, total
        self._first_done: tuple[float, float] | None = None
        self._count = self._searched = self._confirmed = 0
        self._best: dict[Workload, float] = {}
        self._failures: dict[Workload, Counter[str]] = {}
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> SuiteProgress:
        if self._screen.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %  {task.description}"), TimeElapsedColumn()
            self._live = Progress(*columns, console=self._screen, transient=True)
            self._live.start()
            self._task = self._live.add_task("opening the device", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def screened(self, w: Workload, trials: Sequence[Trial], done: float) -> None:
        self._count += len(trials)
        self._failures.setdefault(w, Counter()).update(t.verdict.outcome for t in trials if not t.verdict.ok)
        self._best[w] = max([self._best.get(w, 0.0), *(c.ratio for t in trials for c in t.comparisons)])
        self._show(f"searching {w.name}", done)

    def searched(self, w: Workload, done: float) -> None:
        self._searched += 1
        best = f"best {self._best[w]:.2f}x" if self._best.get(w) else "nothing right"
        self._line(f"[{self._searched}/{self._total}] {w.name}: {best}{_failed(self._failures.get(w, Counter()))}, {self._eta(done)}")

    def confirmed(self, w: Workload, trials: Sequence[Trial], done: float) -> None:
        self._confirmed += 1
        ours = [t for t in trials if t.candidate.kind != "rival"]
        right = min((t for t in ours if t.verdict.ok), key=lambda t: t.timings[0].median, default=None)
        said = "nothing right"
        if right is not None:
            mode = right.timings[0].mode
            ratios = ", ".join(f"{c.ratio:.2f}x {c.rival}" for c in right.comparisons if c.mode == mode)
            said = f"{right.candidate.label} {right.timings[0].median:.3g} us, {ratios}"
        failed = _failed(Counter(t.verdict.outcome for t in ours if not t.verdict.ok))
        self._show(f"confirming {w.name}", done)
        self._line(f"[{self._confirmed}] confirmed {w.name}: {said}{failed}, {self._eta(done)}")

    def skipped(self, w: Workload, reason: str) -> None:
        self._screen.print(f"skipped {w.name}: {reason}", markup=False)

    def _line(self, text: str) -> None:
        if self._live is None:
            self._screen.print(text, markup=False)

    def _show(self, doing: str, done: float) -> None:
        eta = self._eta(done)
        if self._live is not None:
            since = self._first_done[0] if self._first_done else time.monotonic()  # not while the device was opened
            rate = self._count / max(1.0, time.monotonic() - since)
            best = f"best {max(self._best.values()):.2f}x" if any(self._best.values()) else "nothing verified yet"
            failed = _failed(sum(self._failures.values(), Counter()))
            self._live.update(self._task, completed=done, description=f"{eta}  {rate:.0f}/s  {best}{failed}  {doing}")

    def _eta(self, done: float) -> str:
        """Time left for the whole suite, from what this run has done since its first result."""
        now = time.monotonic()
        if self._first_done is None:
            self._first_done = (now, done)
        since, first = self._first_done
        if done - first < 1e-3:
            return "time left unknown"
        return f"{(now - since) * (1 - done) / (done - first):.0f} s left"


def _failed(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{n} {name}' for name, n in counts.most_common(3))})" if counts else ""
