"""Numbers, scales, source highlighting and aggregates."""

from __future__ import annotations

import itertools
import math
import re
import sys

import pytest
from fake_trials import PEAKS, FakeCost, bench_run
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.report import numbers
from kernelwright.report.roofline import Ceilings, rate
from kernelwright.report.source import gutter, highlight
from kernelwright.report.summary import summarise
from kernelwright.report.svg import Linear, Log, spread


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.826, "1.83"),
        (9.996, "10.0"),
        (99.96, "100"),
        (27.08, "27.1"),
        (12345.0, "12,300"),
        (0.0021449, "0.00214"),
        (-1.5, "-1.50"),
        (1.2e-7, "1.20e-07"),
        (None, "–"),
        (math.nan, "–"),
        (sys.float_info.max, "∞"),
    ],
)
def test_three_significant_digits(value, text):
    assert numbers.sig3(value) == text


@given(st.floats(min_value=1e-4, max_value=1e8))
def test_sig3_is_within_half_a_unit_of_the_third_digit(value):
    shown = float(numbers.sig3(value).replace(",", ""))
    assert abs(shown - value) <= 0.5001 * 10 ** (math.floor(math.log10(value)) - 2)


def test_units():
    assert numbers.si(9.89e14, "FLOP/s") == "989 TFLOP/s"
    assert numbers.si(4.8e12, "B/s") == "4.8 TB/s"
    assert numbers.ratio(1.826) == "1.83x" and numbers.microseconds(3.4) == "3.40 µs"
    assert numbers.seconds(185) == "3 min 05 s" and numbers.seconds(7800) == "2 h 10 min"


@given(low=st.floats(1e-6, 1e12), factor=st.floats(1.05, 1e9))
def test_log_ticks_are_inside_and_few(low, factor):
    scale = Log(low, low * factor, 0, 100)
    ticks = scale.ticks(7)
    assert len(ticks) <= 7 and ticks == sorted(set(ticks))
    assert all(low * 0.999 <= t <= low * factor * 1.001 for t in ticks)
    assert 0 <= scale(low) <= scale(low * factor) <= 100


@given(low=st.floats(-1e3, 1e3), span=st.floats(1e-2, 1e6))
def test_linear_ticks_are_inside(low, span):
    assert all(low - span * 1e-6 <= t <= low + span * 1.000001 for t in Linear(low, low + span, 0, 1).ticks())


@given(st.lists(st.floats(0, 200), max_size=10))
def test_labels_keep_their_distance_and_order(wanted):
    placed = spread(wanted, 14, 0, 200)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert all(placed[b] - placed[a] >= 13.999 for a, b in itertools.pairwise(order))
    assert all(-1e-6 <= p <= 200 + 1e-6 for p in placed)


@given(st.text(alphabet="ab01 \n\"'/*#<>&\\", max_size=200), st.sampled_from(["cuda", "cpu", "python", "fake"]))
def test_highlighting_changes_no_character(source, kind):
    html = str(highlight(source, kind))
    plain = re.sub(r"</?i( class=.)?>", "", html)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&#34;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        plain = plain.replace(entity, char)
    assert plain == source
    assert len(gutter(source).splitlines()) == source.count("\n") + 1


def test_highlighting_knows_comments_and_strings():
    html = str(highlight('#include <a>\n/* int\n"x" */ float y = 0x1F; char* s = "// no";', "cuda"))
    assert "<i class=c>/* int\n&#34;x&#34; */</i>" in html and "<i class=s>&#34;// no&#34;</i>" in html
    assert "<i class=t>float</i>" in html and "<i class=n>0x1F</i>" in html and "<i class=p>#include</i>" in html


def test_rates_take_the_limiting_quantity():
    ceilings = Ceilings.from_dict(PEAKS)
    streaming, dense = FakeCost(1e6, 8e6, "fp32"), FakeCost(1e9, 1e6, "fp32")
    assert str(rate(streaming, 1000, "device-cold", ceilings)) == "8.00 GB/s"
    found = rate(dense, 20000, "device-cold", ceilings)
    assert found and str(found) == "50.0 GFLOP/s" and found.share == "55 %" and found.ceiling == "measured fp32 peak"
    cached = rate(streaming, 100, "device-warm", ceilings)
    assert cached and cached.share == "cached", "80 GB/s is above the memory's 13"
    assert rate(FakeCost(0, 0, "fp32"), 10, "device-cold", ceilings) is None
    alone = rate(dense, 20000, "device-cold", None)
    assert alone and alone.fraction is None


def test_aggregates_agree_with_their_definition():
    trials, _ = bench_run(40)
    run = summarise(trials)
    strongest, eager = run.aggregates[0], next(a for a in run.aggregates if a.rival == "eager")
    ratios = [c.ratio for c in strongest.compared.values()]
    assert strongest.geomean == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)))
    assert strongest.geomean_dispatched == pytest.approx(math.exp(sum(math.log(max(1, r)) for r in ratios) / len(ratios)))
    assert strongest.count("win") + strongest.count("tie") + strongest.count("loss") + strongest.missing == 40
    assert strongest.worst[1].ratio == min(ratios) and strongest.best[1].ratio == max(ratios)
    assert all(strongest.compared[name].ratio <= c.ratio for name, c in eager.compared.items())
