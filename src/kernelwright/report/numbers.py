"""How numbers look, in every table, chart and sentence: three significant digits, microseconds, `1.83x`.

A missing number is an en dash, so that a gap in a column is seen as one.
"""

from __future__ import annotations

import math
import sys

NONE = "–"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def sig3(value: float | None) -> str:
    """Three significant digits without an exponent where that is readable: 0.00214, 1.83, 27.1, 412, 12,300."""
    if value is None or math.isnan(value):
        return NONE
    if abs(value) >= sys.float_info.max:  # records store an error that is not finite as the largest float64
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.2e}"
    # rounding first decides the digits: 9.996 is 10.0, not 10.00
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def microseconds(value: float | None) -> str:
    """`27.1 us`."""
    return NONE if value is None else f"{sig3(value)} µs"


def ratio(value: float | None) -> str:
    """`1.83x`: rival time / candidate time."""
    return NONE if value is None else f"{sig3(value)}x"


def interval(low: float, high: float) -> str:
    """`1.79–1.88`."""
    return f"{sig3(low)}–{sig3(high)}"


def percent(fraction: float | None) -> str:
    """`74 %`, and one decimal below ten percent."""
    if fraction is None:
        return NONE
    value = 100 * fraction
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def si(value: float, unit: str) -> str:
    """`989 TFLOP/s`, `4.8 TB/s`: trailing zeros dropped, for axis labels and ceilings."""
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale * 0.9995:
            return f"{float(f'{value / scale:.3g}'):g} {prefix}{unit}"
    return f"{float(f'{value:.3g}'):g} {unit}"


def seconds(value: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    total = round(value)
    if value < 10:
        return f"{sig3(value)} s"
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """`1 check`, `12 checks`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
