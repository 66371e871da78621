"""Charts of a search and of a device: the search curve and the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from kernelwright.records import Trial
from kernelwright.report.numbers import count, microseconds, percent, ratio, si, sig3
from kernelwright.report.roofline import Ceilings, Work
from kernelwright.report.summary import RunSummary, WorkloadSummary
from kernelwright.report.svg import WIDTH, Linear, Log, Svg, shorten, spread
from kernelwright.report.wording import outcome_name, rival_name, workload_name

LEFT, RIGHT = 46, 128
"""Margins: tick labels; names of rivals and failures."""

TOOLTIPS = 200
"""More points than this are drawn without their tooltips; the table names them."""


def search_curve(s: WorkloadSummary, key: str) -> Markup:
    """Every Trial of ours in order: verified ones as dots at their speed, the best so far as a line, failures in lanes below.

    Speed is the ratio to the reference rival where nearly every Trial was compared with it (a ratio of interleaved rounds is immune
    to a machine that slows down during the search), and the median time otherwise.
    """
    trials = s.own
    timed = [t for t in trials if t.timing(s.mode)]
    failures = [t for t in trials if not t.verdict.ok]
    lanes = list(dict.fromkeys(t.verdict.outcome for t in failures))
    reference = s.reference.rival if s.reference else None
    by_ratio = reference is not None and sum(t.comparison(reference, s.mode) is not None for t in timed) >= 0.9 * len(timed)

    def speed(trial: Trial) -> float | None:
        if by_ratio and reference is not None:
            c = trial.comparison(reference, s.mode)
            return c.ratio if c else None
        timing = trial.timing(s.mode)
        return timing.median if timing else None

    plot_top, plot_bottom = 22, 232 if timed else 22
    lane_pitch = 16
    height = plot_bottom + 12 + lane_pitch * len(lanes) + 34
    best = f"best {ratio(speed(s.winner)) if by_ratio else microseconds(speed(s.winner))}" if s.winner else "none verified"
    svg = Svg(WIDTH, height, "Search curve", f"{count(len(trials), 'trial')}, {len(failures)} failed, {best}.", key)
    across = Linear(0.0, len(trials) + 1.0, LEFT, WIDTH - RIGHT)
    if timed:
        levels = _rival_levels(s, by_ratio)
        values = [v for t in timed if (v := speed(t)) is not None]
        low, high = min(*values, *levels.values(), math.inf), max(*values, *levels.values(), 0)
        scale = Log(low / 1.12, high * 1.12, plot_bottom, plot_top)
        what = f"speed relative to {rival_name(reference or '')}, higher is better" if by_ratio else "median time in µs, lower is better"
        svg.text(6, 12, what, "tick")
        for tick in scale.ticks(6):
            svg.line(LEFT, scale(tick), WIDTH - RIGHT, scale(tick), "grid")
            svg.text(LEFT - 6, scale(tick) + 4, f"{tick:g}x" if by_ratio else sig3(tick), "tick", anchor="end")
        at = spread([scale(v) for v in levels.values()], 14, plot_top + 4, plot_bottom - 2)
        for (rival, level), y in zip(levels.items(), at, strict=True):
            svg.line(LEFT, scale(level), WIDTH - RIGHT, scale(level), "rival-line", f"{rival_name(rival)}: {sig3(level)}")
            svg.path(((WIDTH - RIGHT, scale(level)), (WIDTH - RIGHT + 8, y)), "leader")
            svg.text(WIDTH - RIGHT + 11, y + 4, shorten(rival_name(rival), 17), "tick", tip=rival_name(rival))
        _best_so_far(svg, [(across(i + 1), speed(t)) for i, t in enumerate(trials)], scale, max if by_ratio else min, WIDTH - RIGHT)
        for i, trial in enumerate(trials):
            value = speed(trial)
            if value is None:
                continue
            told = ratio(value) if by_ratio else microseconds(value)
            css = "mark screened" if trial.stage == "screen" else "mark confirmed"
            if trial is s.winner:
                svg.mark("diamond", across(i + 1), scale(value), 5, "mark winner", f"{i + 1} winner {trial.candidate.label} {told}")
            else:
                svg.mark("dot", across(i + 1), scale(value), 2.6, css, f"{i + 1} {trial.candidate.label} {told}")
    _lanes(svg, trials, lanes, across, plot_bottom + 12, lane_pitch)
    bottom = plot_bottom + 12 + lane_pitch * len(lanes)
    for tick in Linear(1.0, max(len(trials), 2), 0, 1).ticks(5):
        if tick >= 1 and tick == int(tick):
            svg.text(across(tick), bottom + 12, f"{tick:.0f}", "tick", anchor="middle")
    svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 28, "trial", "tick", anchor="middle")
    return Markup(str(svg))


def _rival_levels(s: WorkloadSummary, by_ratio: bool) -> Mapping[str, float]:
    """Where each rival's line goes; a rival's own speed relative to the reference is a quotient of two ratios of the same rounds."""
    if not by_ratio:
        return {c.rival: c.rival_us for c in s.comparisons()}
    reference = s.reference
    assert reference is not None
    return {c.rival: reference.ratio / c.ratio for c in s.comparisons()}


def _best_so_far(svg: Svg, points: list[tuple[float, float | None]], scale: Log, better, end: float) -> None:
    steps: list[tuple[float, float]] = []
    best: float | None = None
    for x, value in points:
        if value is None or (best is not None and better(value, best) == best):
            continue
        if best is not None:
            steps.append((x, scale(best)))
        best = value
        steps.append((x, scale(best)))
    if best is not None:
        svg.path([*steps, (end, scale(best))], "best", "best so far")


def _lanes(svg: Svg, trials: tuple[Trial, ...], lanes: list, across: Linear, top: float, pitch: float) -> None:
    """One lane for each kind of failure present: its name tells it apart, not a colour."""
    for row, outcome in enumerate(lanes):
        y = top + pitch * (row + 0.5)
        svg.line(LEFT, y, WIDTH - RIGHT, y, "grid")
        hits = [i for i, t in enumerate(trials) if t.verdict.outcome is outcome]
        for i in hits:
            svg.mark("cross", across(i + 1), y, 2.6, "fail", f"{i + 1} {trials[i].candidate.label} {outcome_name(outcome)}")
        svg.text(WIDTH - RIGHT + 11, y + 4, f"{outcome_name(outcome)} {len(hits)}", "tick")


def roofline_one(s: WorkloadSummary, work: Work, ceilings: Ceilings, key: str) -> Markup:
    """The winner and every rival under the device's ceilings, in the main mode."""
    if work.flops <= 0 or work.bytes <= 0:
        return Markup("")
    points = [(work, us, rival_name(name), "rival", "ring") for name, us in s.rival_times.items()]
    timing = s.winner.timing(s.mode) if s.winner else None
    if timing:
        points.append((work, timing.median, "winner", "winner", "diamond"))
    return _roofline(points, ceilings, s.mode, key, labels=True)


def roofline_all(run: RunSummary, works: Mapping[str, Work], ceilings: Ceilings, key: str) -> Markup:
    """The winner of every Workload whose Cost is known."""
    shapes = {"win": "up", "tie": "square", "loss": "down", "alone": "dot"}
    points = []
    for s in run.workloads:
        work, timing = works.get(s.workload.name), s.winner.timing(run.mode) if s.winner else None
        if work and timing and work.flops > 0 and work.bytes > 0:
            points.append((work, timing.median, workload_name(s.workload), s.standing, shapes[s.standing]))
    return _roofline(points, ceilings, run.mode, key, labels=False)


def _crowd(svg: Svg, marks: Sequence[tuple[str, str, float, float]]) -> None:
    for css, shape in dict.fromkeys((css, shape) for css, shape, _, _ in marks):
        svg.marks(shape, [(px, py) for one, _, px, py in marks if one == css], 2.2, css)


def _along(svg: Svg, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    """Text just above a rising line, near its start."""
    (x1, y1), (x2, y2) = start, end
    px, py = x1 + 0.12 * (x2 - x1), y1 + 0.12 * (y2 - y1)
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    svg.text(px - 4, py - 6, text, "halo tick", turn=angle)


def _roofline(points: list, ceilings: Ceilings, mode: str, key: str, *, labels: bool) -> Markup:
    if not points:
        return Markup("")
    bandwidth, kind = ceilings.bandwidth(mode)
    roofs = {unit: peak for unit in dict.fromkeys(p[0].unit for p in points) if (peak := ceilings.compute(unit))}
    intensities = [work.flops / work.bytes for work, *_ in points]
    speeds = [work.flops / us * 1e6 for work, us, *_ in points]
    ridges = [peak / bandwidth for peak, _ in roofs.values()]
    x_low, x_high = min(intensities + ridges) / 3, max(intensities + ridges) * 4
    y_high = max([peak for peak, _ in roofs.values()] + speeds + [bandwidth * max(intensities)]) * 1.7
    y_low = min(*speeds, bandwidth * min(intensities)) / 3
    y_high = min(y_high, max([peak for peak, _ in roofs.values()], default=y_high) * 2.2) if roofs else y_high
    y_high = max(y_high, max(speeds) * 1.3)
    right, bottom, height = (RIGHT if labels else 14), 262, 304
    x, y = Log(x_low, x_high, LEFT + 26, WIDTH - right), Log(y_low, y_high, bottom, 10)
    said = "; ".join(f"{name} {si(v, 'FLOP/s')}" for (_, _, name, *_), v in list(zip(points, speeds, strict=True))[:12])
    svg = Svg(WIDTH, height, f"Roofline, {mode}", f"{len(points)} points under the ceilings of the device: {said}.", key)
    for tick in x.ticks(6):
        svg.line(x(tick), 10, x(tick), bottom, "grid")
        svg.text(x(tick), bottom + 15, f"{tick:g}", "tick", anchor="middle")
    for tick in y.ticks(6):
        svg.line(x.start, y(tick), x.end, y(tick), "grid")
        svg.text(x.start - 6, y(tick) + 4, si(tick, "").strip(), "tick", anchor="end")
    svg.text(x.start + (x.end - x.start) / 2, height - 8, "arithmetic intensity, FLOP/byte", "tick", anchor="middle")
    svg.text(12, (10 + bottom) / 2, "FLOP/s", "tick", anchor="middle", turn=-90)
    top = max((peak for peak, _ in roofs.values()), default=y_high)
    start, end = ((x(e), y(e * bandwidth)) for e in (max(x_low, y_low / bandwidth), min(x_high, top / bandwidth)))
    svg.path((start, end), "roof", f"{kind} bandwidth {si(bandwidth, 'B/s')}")
    _along(svg, start, end, f"{si(bandwidth, 'B/s')} {kind}")
    for unit, (peak, source) in roofs.items():
        svg.line(x(max(x_low, peak / bandwidth)), y(peak), x.end, y(peak), "roof", f"{source} {unit} peak {si(peak, 'FLOP/s')}")
    # the highest is named above its line, the others below theirs
    ceilings_down = sorted(roofs.items(), key=lambda item: -item[1][0])
    heights = spread([y(peak) + (13 if i else -5) for i, (_, (peak, _)) in enumerate(ceilings_down)], 13, 8, bottom)
    for (unit, (peak, source)), height in zip(ceilings_down, heights, strict=True):
        svg.text(x.end - 3, height, f"{unit} {si(peak, 'FLOP/s')} {source}", "halo tick", anchor="end")
    if len(points) > TOOLTIPS:
        _crowd(svg, [(css, shape, x(i), y(v)) for (_, _, _, css, shape), i, v in zip(points, intensities, speeds, strict=True)])
        return Markup(str(svg))
    at = spread([y(v) for v in speeds], 15, 30, bottom - 4) if labels else []
    for i, (work, us, name, css, shape) in enumerate(points):
        px, py = x(intensities[i]), y(speeds[i])
        roof = min([bandwidth * intensities[i]] + ([roofs[work.unit][0]] if work.unit in roofs else []))
        rates = f"{si(speeds[i], 'FLOP/s')}, {sig3(intensities[i])} FLOP/byte, {microseconds(us)}"
        tip = f"{name}: {rates}, {percent(speeds[i] / roof)} of the roof"
        if labels:
            svg.path(((px + 5, py), (x.end + 6, at[i])), "leader")
            svg.text(x.end + 9, at[i] + 4, shorten(name, 17), "tick", tip=name)
        svg.mark(shape, px, py, 5 if shape == "diamond" else 3.6, f"mark {css}", tip)
    return Markup(str(svg))
