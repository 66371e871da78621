"""Charts of ratios: bars against each rival for one Workload, and the strip of all Workloads of a run.

Ratios are drawn on a logarithmic axis from 1, so that twice as fast and half as fast are equally long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from kernelwright.records import Comparison
from kernelwright.report.numbers import interval, microseconds, ratio
from kernelwright.report.summary import RunSummary, WorkloadSummary
from kernelwright.report.svg import WIDTH, Log, Svg, shorten
from kernelwright.report.wording import MODE_NAMES, STANDING_MARKS, STANDING_NAMES, rival_name, workload_name

LABELLED_ROWS = 60
"""More Workloads than this are drawn as a curve without names; the table below it names them."""


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds 1 and all values, with a margin so that no interval touches the frame."""
    low, high = min(0.8, *values), max(1.25, *values)
    margin = (high / low) ** 0.04
    return max(low, 1e-4) / margin, high * margin


def _axis(svg: Svg, scale: Log, top: float, bottom: float) -> None:
    for tick in scale.ticks():
        svg.line(scale(tick), top, scale(tick), bottom, "grid")
        svg.text(scale(tick), bottom + 15, f"{tick:g}x", "tick", anchor="middle")
    svg.line(scale(1), top, scale(1), bottom, "one")


def _tip(c: Comparison) -> str:
    return (
        f"{rival_name(c.rival)}, {c.mode}: {ratio(c.ratio)} ({interval(c.low, c.high)}), {STANDING_NAMES[c.outcome]}; rival "
        f"{microseconds(c.rival_us)}, ours {microseconds(c.rival_us / c.ratio)}; noise floor {interval(c.noise_low, c.noise_high)}; "
        f"{c.rounds} rounds"
    )


def speedup_bars(s: WorkloadSummary, mode: str, key: str) -> Markup:
    """The winner against every rival in one mode. All modes of a Workload share one scale, so that charts can be compared."""
    assert s.winner is not None, "a Workload without a winner has no bars"
    low, high = _bounds([v for c in s.winner.comparisons for v in (c.low, c.high, c.noise_low, c.noise_high)])
    rows = s.comparisons(mode)
    pitch, top = 38, 8
    bottom = top + pitch * len(rows)
    said = "; ".join(f"{rival_name(c.rival)} {ratio(c.ratio)} ({interval(c.low, c.high)}), {STANDING_NAMES[c.outcome]}" for c in rows)
    svg = Svg(WIDTH, bottom + 22, f"Speed-up against each rival, {MODE_NAMES[mode]}", said, key)
    scale = Log(low, high, 6, WIDTH - 6)
    ticks = scale.ticks()
    for tick in ticks:
        svg.text(scale(tick), bottom + 15, f"{tick:g}x", "tick", anchor="middle")
    for i, c in enumerate(rows):
        y = top + pitch * i
        noise = f"noise floor {interval(c.noise_low, c.noise_high)}"
        svg.rect(scale(c.noise_low), y + 18, scale(c.noise_high) - scale(c.noise_low), 18, "band", noise)
        # the grid runs behind the bars only, so that it never crosses the words above them
        for tick in ticks:
            svg.line(scale(tick), y + 18, scale(tick), y + 36, "grid")
        left, right = sorted((scale(1), scale(c.ratio)))
        svg.rect(left, y + 21.5, max(right - left, 1.5), 11, f"bar {c.outcome}", _tip(c))
        _whisker(svg, scale(c.low), scale(c.high), y + 27)
        svg.line(scale(1), y + 18, scale(1), y + 36, "one")
        svg.text(6, y + 14, shorten(rival_name(c.rival), 30))
        value = f"{STANDING_MARKS[c.outcome]} {STANDING_NAMES[c.outcome]}  {ratio(c.ratio)}  ({interval(c.low, c.high)})"
        svg.text(WIDTH - 6, y + 14, value, f"{c.outcome}-text", anchor="end")
    return Markup(str(svg))


def _whisker(svg: Svg, x1: float, x2: float, y: float, cap: float = 3.5) -> None:
    svg.line(x1, y, x2, y, "whisker")
    if x2 - x1 > 2:
        svg.line(x1, y - cap, x1, y + cap, "whisker")
        svg.line(x2, y - cap, x2, y + cap, "whisker")


_SHAPES = {"win": "up", "tie": "square", "loss": "down"}


def ratio_strip(run: RunSummary, key: str) -> Markup:
    """Every compared Workload against its strongest rival, the slowest first; a ring marks torch eager where it is another rival."""
    rows = sorted((s for s in run.workloads if s.strongest), key=lambda s: s.strongest.ratio if s.strongest else math.inf)
    if not rows:
        return Markup("")
    strongest = [s.strongest for s in rows if s.strongest]
    title = "Ratio to the strongest rival of each workload"
    said = f"{len(rows)} workloads, from {ratio(strongest[0].ratio)} to {ratio(strongest[-1].ratio)}; the table lists each."
    if len(rows) > LABELLED_ROWS:
        return _ratio_curve(rows, title, said, key)
    eager = [s.reference.ratio for s in rows if s.reference]
    scale = Log(*_bounds([v for c in strongest for v in (c.low, c.high)] + eager), 196, WIDTH - 56)
    pitch, top = 18, 4
    bottom = top + pitch * len(rows)
    svg = Svg(WIDTH, bottom + 22, title, said, key)
    _noise_band(svg, scale, strongest, top, bottom)
    _axis(svg, scale, top, bottom)
    for i, (s, c) in enumerate(zip(rows, strongest, strict=True)):
        y = top + pitch * (i + 0.5)
        name = workload_name(s.workload)
        svg.text(188, y + 4, shorten(name, 31), "row", anchor="end", tip=name)
        if s.reference is not c and s.reference is not None:
            svg.mark("ring", scale(s.reference.ratio), y, 3.2, "ring", _tip(s.reference))
        _whisker(svg, scale(c.low), scale(c.high), y, 2.5)
        svg.mark(_SHAPES[c.outcome], scale(c.ratio), y, 4.2, f"mark {c.outcome}", f"{name}: {_tip(c)}")
        svg.text(WIDTH - 4, y + 4, ratio(c.ratio), f"row {c.outcome}-text", anchor="end")
    return Markup(str(svg))


def _noise_band(svg: Svg, scale: Log, compared: Sequence[Comparison], top: float, bottom: float) -> None:
    """The widest noise floor: each row was judged by its own, which its tooltip states."""
    low, high = min(c.noise_low for c in compared), max(c.noise_high for c in compared)
    svg.rect(scale(low), top, scale(high) - scale(low), bottom - top, "band", f"widest noise floor {interval(low, high)}")


def _ratio_curve(rows: Sequence[WorkloadSummary], title: str, said: str, key: str) -> Markup:
    """The same for many Workloads: ratios in ascending order, without names."""
    height, left, bottom = 300, 46, 268
    compared = [s.strongest for s in rows if s.strongest]
    svg = Svg(WIDTH, height, title, said, key)
    scale = Log(*_bounds([c.ratio for c in compared]), bottom, 10)
    low, high = min(c.noise_low for c in compared), max(c.noise_high for c in compared)
    svg.rect(left, scale(high), WIDTH - 6 - left, scale(low) - scale(high), "band", f"widest noise floor {interval(low, high)}")
    for tick in scale.ticks():
        svg.line(left, scale(tick), WIDTH - 6, scale(tick), "grid")
        svg.text(left - 6, scale(tick) + 4, f"{tick:g}x", "tick", anchor="end")
    svg.line(left, scale(1), WIDTH - 6, scale(1), "one")
    for outcome, shape in _SHAPES.items():
        across = ((left + (WIDTH - 6 - left) * (i + 0.5) / len(rows), c) for i, c in enumerate(compared))
        svg.marks(shape, [(x, scale(c.ratio)) for x, c in across if c.outcome == outcome], 2.2, outcome)
    svg.text((left + WIDTH) / 2, height - 10, f"{len(rows)} workloads, slowest first", "tick", anchor="middle")
    return Markup(str(svg))
