"""Progress of a search: a live bar on a terminal, plain lines elsewhere. Shows rate, time left, best so far, and how the failures died."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evaluate.audit import Progress
    from kernelwright.records import Trial

PLAIN_SECONDS = 5.0
"""At most one plain line in this time."""


class SearchProgress:
    """Call it with each Trial; use as a context manager."""

    def __init__(self, console: Any, title: str, total: int, rival: str):
        self.console, self.title, self.total, self.rival = console, title, total, rival
        self.count, self.best, self.failures = 0, 0.0, Counter[str]()
        self._started = self._printed = time.monotonic()
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> SearchProgress:
        if self.console.is_terminal:
            self._live = _bar(self.console)
            self._live.start()
            self._task = self._live.add_task(self.title, total=self.total, status="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self.count:
            self._line()

    def __call__(self, trial: Trial) -> None:
        if trial.stage == "confirm":
            self.stage(f"confirmed {trial.candidate.label}: {trial.verdict.outcome}")
            return
        if trial.stage == "replay":
            found = f"{max((c.ratio for c in trial.comparisons), default=0):.2f}x" if trial.verdict.ok else trial.verdict.outcome
            self.stage(f"{trial.candidate.label} is surprisingly fast; in a fresh process: {found}")
            return
        self.count += 1
        if trial.verdict.ok:
            self.best = max([self.best, *(c.ratio for c in trial.comparisons)])
        else:
            self.failures[trial.verdict.outcome] += 1
        if self._live is not None:
            self._live.update(self._task, advance=1, status=self._status())
        elif time.monotonic() - self._printed > PLAIN_SECONDS:
            self._line()

    def stage(self, text: str) -> None:
        """A line that stays."""
        self.console.print(f"{self.title}: {text}")

    def _status(self) -> str:
        rate = self.count / max(1e-9, time.monotonic() - self._started)
        best = f"best {self.best:.2f}x {self.rival}" if self.best else "nothing verified yet"
        failed = ", ".join(f"{n} {name}" for name, n in self.failures.most_common(3))
        return f"{rate:.1f}/s  {best}" + (f"  ({failed})" if failed else "")

    def _line(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._started
        left = (self.total - self.count) * elapsed / max(1, self.count)
        self.console.print(f"{self.title}: {self.count}/{self.total}  {self._status()}  {elapsed:.0f} s, {left:.0f} s left")


@contextmanager
def steps(console: Any, title: str) -> Iterator[Callable[..., None]]:
    """Of work whose steps are counted: call what it gives with (done, total), and a status if there is more to say."""
    started = printed = time.monotonic()

    def line(done: int, total: int, status: str = "") -> None:
        nonlocal printed
        if (now := time.monotonic()) - printed > PLAIN_SECONDS:
            printed = now
            said = f"  {status}  {now - started:.0f} s" if status else ""
            console.print(f"{title}: {done}/{total}{said}", markup=False)

    if not console.is_terminal:
        yield line
        return
    with _bar(console) as live:
        task = live.add_task(title, total=None, status="")
        yield lambda done, total, status="": live.update(task, completed=done, total=total, status=status)


@contextmanager
def proving(console: Any) -> Iterator[Callable[[Progress], None]]:
    """Of `verify_pack`: runs of one kernel on one Workload, checks a second, and what fails."""
    started = time.monotonic()
    with steps(console, "verify") as told:

        def show(far: Progress) -> None:
            status = f"{far.through} of {far.kernels} kernels through, {far.cases / max(1e-9, time.monotonic() - started):.0f} checks/s"
            status += f", {far.before} proved before" if far.before else ""
            if far.failing:
                named = ", ".join(far.failing[:3]) + (" ..." if len(far.failing) > 3 else "")
                status += f", {len(far.failing)} FAIL: {named}"
            told(far.done, far.total, status)

        yield show


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
