"""Tables for the terminal, and the same as Markdown for an issue or a README.

On the winner of each Workload of the run. rich is imported only where a table is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelwright.records import Comparison, Trial
from kernelwright.report.numbers import NONE, interval, ratio, sig3
from kernelwright.report.roofline import Ceilings, Rate, Work, rate, works
from kernelwright.report.summary import RunSummary, Standing, is_rival, summarise
from kernelwright.report.svg import shorten, visible
from kernelwright.report.wording import CHAIN_NOTE, STANDING_MARKS, STANDING_NAMES, outcome_name

if TYPE_CHECKING:
    from rich.table import Table

_STYLES: dict[Standing, str] = {"win": "bright_blue", "tie": "dim", "loss": "yellow", "failed": "magenta", "alone": ""}
"""Of results; the mark beside each says the same, for terminals and eyes without colour."""


@dataclass(frozen=True)
class _Line:
    """The winner of one Workload in one mode; a Workload without a winner has one line without a mode."""

    workload: str
    standing: Standing
    said: str
    mode: str = NONE
    us: str = NONE
    rate: Rate | None = None
    compared: tuple[Comparison | None, ...] = ()


def _lines(
    run: RunSummary, modes: Sequence[str] | None, ceilings: Ceilings | None, costs: Mapping[str, Work] | None
) -> tuple[list[str], list[_Line]]:
    """Rivals and lines."""
    costs = works(s.workload for s in run.workloads) if costs is None else costs
    rivals = list(dict.fromkeys([*run.rivals, *(c.rival for s in run.workloads if s.winner for c in s.winner.comparisons)]))
    lines = []
    for s in run.workloads:
        name, best, work = visible(shorten(s.workload.name, 80)), s.winner, costs.get(s.workload.name)
        if best is None:
            why = failure_line(s.trials) or "no candidate tried"
            lines.append(_Line(name, "failed", f"{_mark('failed')}: {why}", compared=(None,) * len(rivals)))
            continue
        for mode in s.modes if modes is None else [m for m in s.modes if m in modes]:
            timing = best.timing(mode)
            assert timing is not None, "modes are those the winner was timed in"
            speed = rate(work, timing.median, mode, ceilings) if work else None
            compared = tuple(best.comparison(r, mode) for r in rivals)
            weakest = min((c for c in compared if c), key=lambda c: c.ratio, default=None)
            standing: Standing = weakest.outcome if weakest else "alone"
            lines.append(_Line(name, standing, _mark(standing), mode, sig3(timing.median), speed, compared))
    return rivals, lines


def _mark(standing: Standing) -> str:
    return f"{STANDING_MARKS[standing]} {STANDING_NAMES[standing]}"


def result_table(
    trials: Sequence[Trial],
    *,
    modes: Sequence[str] | None = None,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> Table:
    """Workload, mode, µs, GFLOP/s or GB/s, % of peak, ratio to each rival with its 95 % interval, result against the strongest rival.

    One Workload has a row for each mode and rival (80 columns suffice); several have a row for each Workload and mode, and a column for
    each rival. Rivals go by the names that the command line takes.

    trials: all of a run. modes: which to show; all by default. target_peaks, costs, mode: as for `html.write`.
    """
    from rich.table import Table
    from rich.text import Text  # also keeps names from being read as rich's markup

    run = summarise(trials, mode)
    rivals, lines = _lines(run, modes, Ceilings.from_dict(target_peaks), costs)
    one = len(run.workloads) == 1
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title_justify="left", title_style="bold")

    def cell(c: Comparison | None, between: str) -> Text:
        if c is None:
            return Text(NONE)
        mark = "" if one else f"{STANDING_MARKS[c.outcome]} "
        return Text(f"{mark}{ratio(c.ratio)}{between}({interval(c.low, c.high)})", style=_STYLES[c.outcome])

    for title in [] if one else ["workload"]:
        table.add_column(title, overflow="fold")
    table.add_column("mode", no_wrap=True)
    table.add_column("µs", justify="right", no_wrap=True)
    table.add_column("rate (of peak)", justify="right")
    if one:
        table.title = Text(lines[0].workload) if lines else None
        table.add_column("rival")
        table.add_column("ratio (95 %)", justify="right")
    else:
        for rival in rivals:
            table.add_column(Text(f"vs {visible(rival)}"), justify="right")
    table.add_column("result")
    if any(line.mode == "device-chain" for line in lines):
        table.caption, table.caption_justify = Text(CHAIN_NOTE), "left"

    for line in lines:
        speed, gap = str(line.rate or NONE), " " if one else "\n"
        if line.rate and line.rate.share != NONE:
            speed += f"{gap}({line.rate.share})"
        result = Text(line.said, style=_STYLES[line.standing])
        if not one:
            table.add_row(Text(line.workload), line.mode, line.us, speed, *(cell(c, gap) for c in line.compared), result)
            continue
        shown = [c for c in line.compared if c]
        if not shown:
            table.add_row(line.mode, line.us, speed, NONE, NONE, result)
        for i, c in enumerate(sorted(shown, key=lambda c: c.ratio)):
            own = (line.mode, line.us, speed) if i == 0 else ("", "", "")
            table.add_row(*own, Text(visible(c.rival)), cell(c, gap), Text(_mark(c.outcome), style=_STYLES[c.outcome]))
    return table


def failure_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Verdicts of our own candidates that failed, the most frequent first: `{"WRONG_RESULT": 5, "TIMEOUT": 1}`."""
    counted = Counter(t.verdict.outcome.value for t in trials if not is_rival(t) and not t.verdict.ok)
    return dict(counted.most_common())


def failure_line(trials: Sequence[Trial]) -> str:
    """The same in one line: `5 wrong result, 1 timeout`; empty when nothing failed."""
    return ", ".join(f"{n} {outcome_name(outcome)}" for outcome, n in failure_counts(trials).items())


def _against(c: Comparison | None) -> str:
    return f"{STANDING_MARKS[c.outcome]} {ratio(c.ratio)} ({interval(c.low, c.high)})" if c else NONE


def markdown(
    trials: Sequence[Trial],
    *,
    modes: Sequence[str] | None = None,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> str:
    """The figures of `result_table` as a Markdown table, a column for each rival, aligned to read as plain text too."""
    rivals, found = _lines(summarise(trials, mode), modes, Ceilings.from_dict(target_peaks), costs)
    header = ["workload", "mode", "µs", "rate", "% of peak", *(f"vs {visible(rival)}" for rival in rivals), "result"]
    rows = [
        [
            *(line.workload, line.mode, line.us, str(line.rate or NONE), line.rate.share if line.rate else NONE),
            *(_against(c) for c in line.compared),
            line.said,
        ]
        for line in found
    ]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    text = {0, 1, len(header) - 1}
    lines = []
    for row in cells:
        padded = (c.ljust(w) if i in text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append(f"| {' | '.join(padded)} |")
    rule = ("-" * w if i in text else "-" * (w - 1) + ":" for i, w in enumerate(widths))
    lines.insert(1, f"| {' | '.join(rule)} |")
    if any(line.mode == "device-chain" for line in found):
        lines += ["", CHAIN_NOTE]
    return "\n".join(lines) + "\n"
