"""Heat maps of a suite of products: one panel for each K, M down, N across, the ratio as number and as colour.

Colour diverges from 1 on a logarithmic scale, so that twice as fast and half as fast are equally strong. It is the `win` or the `loss`
colour of the style sheet with an opacity, on paper: light and dark come from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from markupsafe import Markup

from kernelwright.report.numbers import interval, microseconds, ratio, sig3
from kernelwright.report.shapes import Shape, Versus
from kernelwright.report.svg import WIDTH, Svg
from kernelwright.report.wording import STANDING_NAMES, rival_name

STRONGEST = 1.6
"""Ratios beyond this, or beyond its inverse, have the full colour."""
ROW, LEFT, TOP, BOTTOM = 25, 44, 36, 4
DARK = 0.7
"""From this opacity on a number is drawn in the colour of paper."""


def panels(versus: Mapping[Shape, Versus], mode: str, key: str) -> list[tuple[int, Markup]]:
    """(K, chart), K ascending; all panels have the same rows and columns, so that they can be laid side by side."""
    found = []
    ms, ns, ks = _axes(versus)
    for k in ks:
        cells = {s.sizes: v for s, v in versus.items() if s.sizes[2] == k}
        svg = Svg(WIDTH, _height(ms), f"K = {k}", f"{len(cells)} shapes; the numbers are in the cells", f"{key}-{k}")
        _panel(svg, 0, 0, ms, ns, k, cells, mode)
        found.append((k, Markup(str(svg))))
    return found


def picture(versus: Mapping[Shape, Versus], mode: str, title: str, columns: int = 2) -> str:
    """All panels as one SVG file that brings its own colours, light or dark as the viewer asks for."""
    ms, ns, ks = _axes(versus)
    gap, head = 28, 64
    columns = min(columns, max(1, len(ks)))
    width = columns * WIDTH + (columns + 1) * gap
    height = head + math.ceil(len(ks) / columns) * (_height(ms) + gap)
    svg = Svg(width, height, title, f"{len(versus)} shapes in {len(ks)} panels", "heatmap")
    svg.add("style", text=_style())
    svg.rect(0, 0, width, height, "paper")
    svg.text(gap, 26, title, "title")
    _scale(svg, gap, 40, min(WIDTH, width - 2 * gap))
    for i, k in enumerate(ks):
        cells = {s.sizes: v for s, v in versus.items() if s.sizes[2] == k}
        _panel(svg, gap + i % columns * (WIDTH + gap), head + gap / 2 + i // columns * (_height(ms) + gap), ms, ns, k, cells, mode)
    return str(svg)


def legend(key: str) -> Markup:
    svg = Svg(WIDTH, 26, "Colours", f"from {1 / STRONGEST:.2g}x, ours slower, over 1x to {STRONGEST:.2g}x, ours faster", key)
    _scale(svg, 0, 0, WIDTH)
    return Markup(str(svg))


def _axes(versus: Iterable[Shape]) -> tuple[list[int], ...]:
    sizes = [s.sizes for s in versus]
    return tuple(sorted({size[i] for size in sizes}) for i in range(3))


def _height(ms: Sequence[int]) -> float:
    return TOP + ROW * len(ms) + BOTTOM


def _opacity(value: float) -> float:
    return min(1.0, abs(math.log(value)) / math.log(STRONGEST)) * 0.92


def _panel(
    svg: Svg, x: float, y: float, ms: Sequence[int], ns: Sequence[int], k: int, cells: Mapping[tuple[int, int, int], Versus], mode: str
) -> None:
    """A table of M x N with its corner at (x, y)."""
    cell = (WIDTH - LEFT) / len(ns)
    svg.text(x, y + 12, f"K = {k}", "strong")
    svg.text(x + LEFT + cell * len(ns), y + 12, "N across, M down", "tick", anchor="end")
    for j, n in enumerate(ns):
        svg.text(x + LEFT + cell * (j + 0.5), y + TOP - 6, str(n), "tick", anchor="middle")
    for i, m in enumerate(ms):
        top = y + TOP + ROW * i
        svg.text(x + LEFT - 5, top + ROW / 2 + 4, str(m), "tick", anchor="end")
        for j, n in enumerate(ns):
            left = x + LEFT + cell * j
            found = cells.get((m, n, k))
            if found is None:
                svg.rect(left + 0.5, top + 0.5, cell - 1, ROW - 1, "empty", f"{m}x{n}x{k}: not measured")
                continue
            strength = _opacity(found.c.ratio)
            side = "win" if found.c.ratio >= 1 else "loss"
            width, height = cell - 1, ROW - 1
            svg.add("rect", side, x=left + 0.5, y=top + 0.5, width=width, height=height, fill_opacity=f"{strength:.2f}")
            css = ("on" if strength > DARK else "cell") + (" beyond" if found.c.outcome == "loss" else "")
            svg.text(left + cell / 2, top + ROW / 2 + 4, _number(found.c.ratio), css, _tip(m, n, k, found, mode), anchor="middle")


def _number(value: float) -> str:
    """Two decimals, which is what the rounds tell apart."""
    return f"{value:.2f}" if value < 9.995 else sig3(value)


def _tip(m: int, n: int, k: int, v: Versus, mode: str) -> str:
    timing = v.trial.timing(mode)
    ours = (
        f"{v.serves} in place of ours"
        if v.serves
        else f"ours ({v.trial.workload.layout}) {microseconds(timing.median if timing else None)}"
    )
    said = f"{m}x{n}x{k}: {ratio(v.c.ratio)} ({interval(v.c.low, v.c.high)}), {STANDING_NAMES[v.c.outcome]}"
    return f"{said}; {ours}, {rival_name(v.c.rival)} {microseconds(v.c.rival_us)}"


def _scale(svg: Svg, x: float, y: float, width: float) -> None:
    """The colours with their ratios."""
    steps = 24
    for i in range(steps):
        value = STRONGEST ** ((i + 0.5) / steps * 2 - 1)
        side = "win" if value >= 1 else "loss"
        svg.add("rect", side, x=x + width * i / steps, y=y, width=width / steps, height=10, fill_opacity=f"{_opacity(value):.2f}")
    for value in (1 / STRONGEST, 0.8, 0.9, 1.0, 1.1, 1.25, STRONGEST):
        at = x + width * (math.log(value) / math.log(STRONGEST) + 1) / 2
        anchor = "start" if value < 0.7 else "end" if value == STRONGEST else "middle"
        svg.text(at, y + 22, f"{value:.2g}x" if value != 1.25 else "1.25x", "tick", anchor=anchor)


def _style() -> str:
    """Of the page's style sheet, what concerns charts: its colours, and the rules for `svg`."""
    sheet = files("kernelwright.report").joinpath("style.css").read_text(encoding="utf-8")
    kept = [line for line in sheet.splitlines() if line.startswith((":root", "@media (prefers-color-scheme", "svg "))]
    return "\n".join([*kept, 'svg{font-family:system-ui,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;background:var(--paper)}'])
