"""The set of kernels: every Workload is served, nothing is superfluous."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelwright.records import Workload
from kernelwright.runtime.kernel_set import assign, cover

WORKLOADS = [Workload(problem="gemm", axes={"M": m}) for m in range(1, 9)]
TIMES = st.dictionaries(
    st.sampled_from(WORKLOADS), st.dictionaries(st.sampled_from("abcdef"), st.floats(0.5, 2.0), max_size=6), max_size=len(WORKLOADS)
)


@given(TIMES, st.sampled_from([0.0, 0.01, 0.3, 10.0]))
def test_everyone_is_served_within_the_tolerance(times, tolerance):
    kernels = cover(times, tolerance)
    serving = assign(times, kernels)
    assert set(serving) == {w for w, measured in times.items() if measured}
    for w, kernel in serving.items():
        assert times[w][kernel] <= min(times[w].values()) * (1 + tolerance)


@given(TIMES, st.sampled_from([0.0, 0.01, 0.3]))
def test_no_kernel_can_be_left_out(times, tolerance):
    kernels = cover(times, tolerance)
    assert len(set(kernels)) == len(kernels) <= len(times)
    for kernel in kernels:
        rest = assign(times, [k for k in kernels if k != kernel])
        late = [w for w, m in times.items() if m and (w not in rest or m[rest[w]] > min(m.values()) * (1 + tolerance))]
        assert late, f"{kernel} serves nobody"


@given(TIMES)
def test_the_order_of_measuring_does_not_matter(times):
    turned = {w: dict(reversed(m.items())) for w, m in reversed(times.items())}
    assert cover(times, 0.01) == cover(turned, 0.01)


def test_one_kernel_that_is_nearly_as_good_everywhere_replaces_many():
    times = {w: {f"own {i}": 1.0, "all": 1.009} for i, w in enumerate(WORKLOADS)}
    assert cover(times, 0.01) == ["all"]
    assert len(cover(times, 0.001)) == len(WORKLOADS)
    assert cover({}, 0.01) == [] and assign({}, ["all"]) == {}
