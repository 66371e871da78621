from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.stats import converged, fast_p, geomean, median_interval, ratio_interval, summarise
from kernelwright.records import Comparison

times = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(times)
def test_median_lies_in_its_interval_and_that_within_the_samples(samples):
    median, low, high = median_interval(samples)
    assert median == pytest.approx(float(np.median(samples)))
    assert low <= median <= high
    if len(samples) > 5:
        assert min(samples) <= low and high <= max(samples)


@given(times, st.floats(1e-3, 1e3))
def test_units_do_not_matter(samples, scale):
    plain = median_interval(samples)
    assert median_interval([x * scale for x in samples]) == pytest.approx([x * scale for x in plain])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 25, 51])
@pytest.mark.parametrize("noise", ["normal", "student", "one-sided"])
def test_the_interval_holds_the_true_median_about_95_times_of_100(size, noise):
    draw = rng(size)
    shapes = {
        "normal": draw.normal(size=(4000, size)),
        "student": draw.standard_t(3, size=(4000, size)),
        "one-sided": draw.exponential(size=(4000, size)) - math.log(2),
    }
    hits = sum(low <= 0 <= high for _, low, high in map(median_interval, shapes[noise]))
    # 4,000 draws have a standard error of 0.3 points; two samples of one-sided noise are the hardest
    assert 0.94 <= hits / 4000 <= 0.975 or (size == 2 and hits / 4000 > 0.925)


def test_one_spike_does_not_move_the_interval():
    clean = [10.0 + 0.01 * i for i in range(30)]
    assert median_interval([*clean, 1e6])[2] < 10.4


def test_more_samples_narrow_the_interval():
    draw = rng()
    intervals = [median_interval(draw.normal(100, 1, n)) for n in (10, 100, 1000)]
    few, more, many = (high - low for _, low, high in intervals)
    assert few > more > many > 0


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
def test_bad_samples_are_refused(samples):
    with pytest.raises(ValueError, match="at least one sample"):
        median_interval(samples)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_a_ratio_turned_round_is_the_reciprocal(ratios):
    median, low, high = ratio_interval(ratios)
    back, back_low, back_high = ratio_interval([1 / r for r in ratios])
    assert (back, back_low, back_high) == pytest.approx((1 / median, 1 / high, 1 / low))


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [math.nan]])
def test_bad_ratios_are_refused(ratios):
    with pytest.raises(ValueError, match="above zero"):
        ratio_interval(ratios)


def test_converged():
    assert converged(0.996, 1.005, 1.0) and not converged(0.99, 1.01, 1.0) and converged(90, 110, 100, tol=0.2)


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_geomean_bounds_and_symmetry(ratios):
    g = geomean(ratios)
    assert min(ratios) * (1 - 1e-9) <= g <= max(ratios) * (1 + 1e-9)
    assert geomean(1 / r for r in ratios) == pytest.approx(1 / g)


def test_geomean_edges():
    assert geomean([2.0, 0.5]) == pytest.approx(1.0)
    assert math.isnan(geomean([]))
    with pytest.raises(ValueError, match="above zero"):
        geomean([1.0, 0.0])


def test_fast_p_is_strict_and_counts_failures():
    assert fast_p([1.0, 1.01, 2.0, None]) == 0.5
    assert fast_p([1.0, 2.0], 2.0) == 0.0
    assert math.isnan(fast_p([]))


def comparison(ratio: float, width: float = 0.01, rival: str = "eager") -> Comparison:
    low, high = ratio * (1 - width), ratio * (1 + width)
    return Comparison(
        rival=rival,
        mode="device-cold",
        ratio=ratio,
        low=low,
        high=high,
        rival_us=10.0,
        noise_low=0.98,
        noise_high=1.02,
        rounds=20,
    )


def test_summary_counts_a_difference_inside_the_noise_as_a_tie():
    s = summarise([comparison(2.0), comparison(1.02), comparison(0.985), comparison(0.5), comparison(1.5, 0.6)])
    assert (s.wins, s.ties, s.losses, s.count) == (1, 3, 1, 5)
    assert (s.worst, s.best, s.median) == (0.5, 2.0, 1.02)
    assert s.geomean == pytest.approx((2.0 * 1.02 * 0.985 * 0.5 * 1.5) ** 0.2)


def test_summaries_do_not_mix_rivals():
    with pytest.raises(ValueError, match="eager device-cold, vendor device-cold"):
        summarise([comparison(1.0), comparison(1.0, rival="vendor")])
    with pytest.raises(ValueError, match="no comparison"):
        summarise([])
