"""The few SVG parts that the charts share: an escaping element writer, scales and ticks. No colour is named here or in any chart:
shapes carry classes, and `style.css` colours them for light and dark."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape

WIDTH = 480
"""Width of every chart's viewBox. Text of 12 units is then readable when the chart is as narrow as a telephone (about 10 px) and
when it fills half of a wide page (about 15 px)."""

CHARACTER = 6.9
"""Generous mean advance of a 12-unit sans-serif character, for placing labels without measuring them."""


def visible(text: str) -> str:
    """The text with what HTML cannot carry or a reader cannot see made visible: control characters (a compiler's colours), and
    format characters, which can make source read otherwise than it compiles (bidirectional overrides, CVE-2021-42574)."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else f"<U+{ord(c):04X}>" for c in text)


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def number(value: float) -> str:
    """A coordinate: one decimal is a tenth of a unit, finer than a pixel; bytes count with 500 dots."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


class Svg:
    """Collects elements. Every text and attribute is escaped, so a candidate's words cannot become markup."""

    def __init__(self, width: float, height: float, title: str, description: str, key: str):
        self.parts: list[str] = []
        self.width, self.height = width, height
        name, told = (escape(visible(shorten(text, 800))) for text in (title, description))
        self.head = (
            f'<svg viewBox="0 0 {number(width)} {number(height)}" role="img" '
            f'aria-labelledby="{escape(key)}-t {escape(key)}-d" xmlns="http://www.w3.org/2000/svg">'
            f'<title id="{escape(key)}-t">{name}</title><desc id="{escape(key)}-d">{told}</desc>'
        )

    def add(self, tag: str, css: str = "", tip: str = "", text: str | None = None, **attributes: float | str) -> None:
        """One element; `tip` becomes its tooltip. Attribute names use `_` for `-`."""
        parts = [f' class="{css}"'] if css else []
        for name, value in attributes.items():
            shown = escape(value) if isinstance(value, str) else number(value)
            parts.append(f' {name.replace("_", "-")}="{shown}"')
        inner = f"<title>{escape(visible(shorten(tip, 300)))}</title>" if tip else ""
        if text is not None:
            inner += escape(visible(text))
        self.parts.append(f"<{tag}{''.join(parts)}>{inner}</{tag}>" if inner else f"<{tag}{''.join(parts)}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, tip: str = "") -> None:
        self.add("line", css, tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, x: float, y: float, width: float, height: float, css: str, tip: str = "") -> None:
        self.add("rect", css, tip, x=x, y=y, width=max(0.0, width), height=max(0.0, height))

    def text(self, x: float, y: float, text: str, css: str = "", tip: str = "", anchor: str = "start", turn: float = 0.0) -> None:
        """`turn` in degrees, around (x, y)."""
        attributes = {"text_anchor": anchor} if anchor != "start" else {}
        if turn:
            attributes["transform"] = f"rotate({number(turn)} {number(x)} {number(y)})"
        self.add("text", css, tip, text, x=number(x), y=number(y), **attributes)

    def path(self, points: Sequence[tuple[float, float]], css: str, tip: str = "") -> None:
        self.add("path", css, tip, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points))

    def mark(self, shape: str, x: float, y: float, size: float, css: str, tip: str = "") -> None:
        """A marker whose shape says the same as its colour: `dot`, `ring`, `square`, `diamond`, `up`, `down`, `cross`."""
        s = size
        match shape:
            case "dot" | "ring":
                self.add("circle", css, tip, cx=x, cy=y, r=s)
            case "square":
                self.rect(x - s * 0.88, y - s * 0.88, s * 1.76, s * 1.76, css, tip)
            case "diamond":
                self.path(((x, y - s * 1.25), (x + s * 1.25, y), (x, y + s * 1.25), (x - s * 1.25, y), (x, y - s * 1.25)), css, tip)
            case "up":
                self.path(((x - s * 1.1, y + s), (x + s * 1.1, y + s), (x, y - s * 1.1), (x - s * 1.1, y + s)), css, tip)
            case "down":
                self.path(((x - s * 1.1, y - s), (x + s * 1.1, y - s), (x, y + s * 1.1), (x - s * 1.1, y - s)), css, tip)
            case "cross":
                d = f"M{number(x - s)} {number(y - s)}L{number(x + s)} {number(y + s)}M{number(x - s)} {number(y + s)}"
                self.add("path", css, tip, d=d + f"L{number(x + s)} {number(y - s)}")

    def marks(self, shape: str, points: Sequence[tuple[float, float]], size: float, css: str) -> None:
        """Many markers as one path, without tooltips: a fifth of the bytes of as many elements."""
        s, w = number(size), number(2 * size)
        drawn = {"up": f"h{w}l-{s}-{w}z", "down": f"h{w}l-{s} {w}z"}.get(shape, f"h{w}v{w}h-{w}z")
        offset = size if shape == "up" else -size
        d = "".join(f"M{number(x - size)} {number(y + offset)}{drawn}" for x, y in points)
        self.add("path", css, d=d)

    def __str__(self) -> str:
        return self.head + "".join(self.parts) + "</svg>"


class Log:
    """A logarithmic scale from values [low, high] to coordinates [start, end]. Values outside are drawn at the edge."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        at = (math.log(max(value, 1e-300)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + (self.end - self.start) * min(1.0, max(0.0, at))

    def ticks(self, most: int = 7) -> list[float]:
        """Round values inside the scale, as fine as `most` allows."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        grids = [[m * 10.0**d for d in decades for m in steps] for steps in _LOG_STEPS]
        inside = [[t for t in grid if self.low * 0.9999 <= t <= self.high * 1.0001] for grid in grids]
        fitting = [ticks for ticks in inside if 2 <= len(ticks) <= most]
        if fitting:
            return fitting[0]
        coarse = inside[-1]
        return coarse[:: math.ceil(len(coarse) / most)] if len(coarse) > most else max(inside, key=len)[:most]


_LOG_STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,))


class Linear:
    """A linear scale from values [low, high] to coordinates [start, end]."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        span = self.high - self.low
        raw = span / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions for labels near the wanted ones, at least `gap` apart, in the same order, within [low, high]."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [wanted[i] for i in order]
    for i in range(len(placed)):
        placed[i] = max(placed[i], low if i == 0 else placed[i - 1] + gap)
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], high if i == len(placed) - 1 else placed[i + 1] - gap)
    result = [0.0] * len(wanted)
    for position, i in zip(placed, order, strict=True):
        result[i] = position
    return result
