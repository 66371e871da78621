"""A chart of lines over a common axis, with bands, as a file of its own: curves of training, best-so-far curves of searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.report.svg import Linear, Svg, shorten, spread

COLOURS = ("#0b66a8", "#b5480a", "#3d6b1f", "#7a3fa0", "#5d6470", "#8a2f5e", "#9a7d00", "#00807a", "#c23b3b", "#444444")
"""By order of the lines; each line's name stands at its end as well."""
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}.band{stroke:none;opacity:.15}.tick{fill:#555}"
)


@dataclass(frozen=True)
class Line:
    """Points in ascending order; `low` and `high`, if given, bound its band."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def chart(title: str, across: str, lines: Mapping[str, Line], key: str, floor: float | None = None) -> str:
    """SVG. `floor`: the least value that is shown."""
    width, left, right, top, bottom = 640.0, 46.0, 150.0, 34.0, 300.0
    values = [v for line in lines.values() for v in (*line.y, *line.low, *line.high)] or [0.0, 1.0]
    steps = [x for line in lines.values() for x in line.x] or [0.0, 1.0]
    low, high = max(min(values), floor) if floor is not None else min(values), max(values)
    up = Linear(low, high if high > low else low + 1, bottom, top)
    over = Linear(min(steps), max(max(steps), min(steps) + 1), left, width - right)
    svg = Svg(width, bottom + 40, title, ", ".join(lines), key)
    svg.add("style", text=_STYLE)
    svg.rect(0, 0, width, bottom + 40, "paper")
    svg.parts[-1] = svg.parts[-1].replace('class="paper"', 'fill="#fcfcfa"')
    svg.text(6, 16, title)
    for tick in up.ticks(6):
        svg.line(left, up(tick), width - right, up(tick), "grid")
        svg.text(left - 6, up(tick) + 4, f"{tick:g}", "tick", anchor="end")
    for tick in over.ticks(6):
        svg.text(over(tick), bottom + 16, f"{tick:g}", "tick", anchor="middle")
    svg.text((left + width - right) / 2, bottom + 32, across, "tick", anchor="middle")

    def place(x: float, y: float) -> str:
        return f"{over(x):.1f} {up(min(max(y, low), up.high)):.1f}"

    shown = [(name, line) for name, line in lines.items() if len(line.x)]
    at = spread([up(min(max(line.y[-1], low), up.high)) for _, line in shown], 14, top, bottom)
    for i, ((name, line), y) in enumerate(zip(shown, at, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        if len(line.low):
            edge = [place(*p) for p in zip(line.x, line.high, strict=True)]
            edge += [place(*p) for p in reversed(list(zip(line.x, line.low, strict=True)))]
            svg.add("path", "band", d="M" + "L".join(edge) + "Z", fill=colour)
        svg.add("path", "line", d="M" + "L".join(place(*p) for p in zip(line.x, line.y, strict=True)), stroke=colour)
        svg.text(width - right + 6, y + 4, shorten(name, 22), tip=name)
        svg.parts[-1] = svg.parts[-1].replace("<text ", f'<text style="fill:{colour}" ', 1)
    return str(svg)
