"""Tables for the terminal, and the same as Markdown for an issue or a README.

One row for each Workload and mode, on the winner of the run. rich is imported only where a table is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.records import Comparison, Trial
from kernelwright.report.numbers import NONE, interval, ratio, sig3
from kernelwright.report.roofline import Ceilings, Work, rate
from kernelwright.report.summary import RunSummary, WorkloadSummary, is_rival, summarise
from kernelwright.report.svg import shorten, visible
from kernelwright.report.wording import STANDING_MARKS, STANDING_NAMES, outcome_name, rival_name

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"win": "blue", "tie": "dim", "loss": "yellow"}
"""Of ratios; the mark beside each says the same, for terminals and eyes without colour."""


def _against(c: Comparison | None) -> str:
    return f"{STANDING_MARKS[c.outcome]} {ratio(c.ratio)} ({interval(c.low, c.high)})" if c else NONE


def _rows(
    run: RunSummary, modes: Sequence[str] | None, ceilings: Ceilings | None, costs: Mapping[str, Work]
) -> tuple[list[str], list[list[str]]]:
    """Header and cells as plain text."""
    rivals = list(dict.fromkeys([*run.rivals, *(c.rival for s in run.workloads for c in _all(s))]))
    header = ["workload", "mode", "µs", "rate", "% of peak", *(f"vs {visible(rival_name(r))}" for r in rivals), "verdict"]
    rows = []
    for s in run.workloads:
        name, best, work = visible(shorten(s.workload.name, 80)), s.winner, costs.get(s.workload.name)
        if best is None:
            failed = Counter(outcome_name(t.verdict.outcome) for t in s.own)
            why = ", ".join(f"{n} {outcome}" for outcome, n in failed.most_common()) or "no candidate tried"
            rows.append([name, *[NONE] * (4 + len(rivals)), f"{STANDING_MARKS['failed']} nothing verified: {why}"])
            continue
        for mode in s.modes if modes is None else [m for m in s.modes if m in modes]:
            timing = best.timing(mode)
            assert timing is not None, "modes are those the winner was timed in"
            speed = rate(work, timing.median, mode, ceilings) if work else None
            compared = [best.comparison(r, mode) for r in rivals]
            weakest = min((c for c in compared if c), key=lambda c: c.ratio, default=None)
            standing = weakest.outcome if weakest else "alone"
            verdict = f"OK, {STANDING_MARKS[standing]} {STANDING_NAMES[standing]}"
            cells = [name, mode, sig3(timing.median), str(speed or NONE), speed.share if speed else NONE]
            rows.append([*cells, *(_against(c) for c in compared), verdict])
    return header, rows


def _all(s: WorkloadSummary) -> tuple[Comparison, ...]:
    return s.winner.comparisons if s.winner else ()


def result_table(
    trials: Sequence[Trial],
    *,
    modes: Sequence[str] | None = None,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> Table:
    """Workload, mode, µs, GFLOP/s or GB/s, % of peak, ratio to each rival with its interval, verdict against the strongest rival.

    trials: all of a run. modes: which to show; all by default. target_peaks, costs, mode: as for `html.write`; without costs there is
    no rate, since Problems are not asked here (that would import torch for a table).
    """
    from rich.table import Table
    from rich.text import Text

    header, rows = _rows(summarise(trials, mode), modes, Ceilings.from_dict(target_peaks), costs or {})
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for i, title in enumerate(header):
        text = i < 2 or i == len(header) - 1
        table.add_column(title, justify="left" if text else "right", no_wrap=i in (0, 1), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return table


def _style(cell: str) -> str:
    return next(
        (
            style
            for name, style in _STYLES.items()
            if cell.startswith((f"{STANDING_MARKS[name]} ", f"OK, {STANDING_MARKS[name]}"))
        ),
        "",
    )


def failure_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Verdicts of our own candidates that failed, the most frequent first: `{"WRONG_RESULT": 5, "TIMEOUT": 1}`."""
    counted = Counter(t.verdict.outcome.value for t in trials if not is_rival(t) and not t.verdict.ok)
    return dict(counted.most_common())


def failure_line(trials: Sequence[Trial]) -> str:
    """The same in one line: `5 wrong result, 1 timeout`; empty when nothing failed."""
    return ", ".join(f"{n} {outcome_name(outcome)}" for outcome, n in failure_counts(trials).items())


def markdown(
    trials: Sequence[Trial],
    *,
    modes: Sequence[str] | None = None,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> str:
    """`result_table` as a Markdown table, aligned so that it reads as plain text too. Ends with a newline."""
    header, rows = _rows(summarise(trials, mode), modes, Ceilings.from_dict(target_peaks), costs or {})
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    text = {0, 1, len(header) - 1}
    lines = []
    for row in cells:
        padded = (c.ljust(w) if i in text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append(f"| {' | '.join(padded)} |")
    rule = ("-" * w if i in text else "-" * (w - 1) + ":" for i, w in enumerate(widths))
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines) + "\n"
