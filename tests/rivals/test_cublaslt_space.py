"""The search of cuBLASLt's algorithm space, against a small space of our own (stub_cublas.py) and made-up times."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stub_cublas import Seen, bound, expected, workload

from kernelwright import rivals
from kernelwright.records import Outcome
from kernelwright.rivals import cublaslt, cublaslt_space
from kernelwright.targets.target import CandidateFault

BEST = {"id": 3, "tile": 4, "stages": 9, "cluster": 3, "inner": 0, "split_k": 4, "reduction": 2, "swizzle": 1, "custom": 2}
K_OF_FOUR_SLICES = 256


def settings_of(stub: Seen) -> dict[str, int]:
    return cublaslt_space.describe(cublaslt.Result(algo=stub.last))


def made_up_us(s: dict[str, int]) -> float:
    """Each of BEST's settings makes it faster; so does the option whose result is wrong."""
    if s["id"] >= 100:
        return {100: 41.0, 102: 40.0}[s["id"]]
    gain = sum(s[name] == value for name, value in BEST.items() if name != "reduction")
    return 50.0 - 3.0 * gain - 0.5 * (s["reduction"] == 2) - 40.0 * (s["tile"] == 2 and s["custom"] == 1)


class Times:
    """What the clock saw."""

    def __init__(self) -> None:
        self.now = 0.0
        self.each = 0.0
        """Seconds that pass in a sample."""
        self.samples: list[dict[str, int]] = []
        self.slow_tile = -1


@pytest.fixture
def times(stub: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[Times]:
    seen = Times()

    class Clock:
        def __init__(self, *_: Any):
            pass

        def synchronize(self, doing: str) -> None:
            pass

        def capture_launches(self, enqueue: Callable[[int], object], indices: list[int]) -> Callable[[], object]:
            return lambda: [enqueue(i) for i in indices]

        def device_us(self, work: Callable[[], object], *, cold: bool, gaps: bool) -> float:
            work()
            assert cold
            seen.now += seen.each
            seen.samples.append(settings := settings_of(stub))
            slow = 3.0 if settings["tile"] == seen.slow_tile else 1.0
            return made_up_us(settings) * slow * 1e3  # so long that a sample is one launch

    monkeypatch.setattr("kernelwright.targets.cuda_clock.Clock", Clock)
    monkeypatch.setattr("kernelwright.targets.driver.load", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1))
    monkeypatch.setattr(cublaslt_space, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(cublaslt, "_chosen", {})
    stub.ids = stub.reductions = stub.illegal = stub.checks = 0
    yield seen


def chosen() -> dict[str, int]:
    (result,) = cublaslt._chosen.values()
    return cublaslt_space.describe(result)


def test_the_fastest_right_algorithm_of_the_space_is_found(stub: Seen, times: Times):
    w = workload(16, 24, K_OF_FOUR_SLICES)
    sets = [bound(w) for _ in range(2)]
    runs, setup = rivals.load("cublaslt-all", w, sets)
    assert setup is not None
    setup()
    assert chosen() == BEST
    for run, one in zip(runs, sets, strict=True):
        one.tensors["c"].fill_(torch.nan)
        run.call()
        assert settings_of(stub) == BEST
        assert torch.allclose(one.tensors["c"].double(), expected(w, one), rtol=1e-5, atol=1e-4)
    assert any(s["tile"] == 2 and s["custom"] == 1 for s in times.samples), "the faster one, whose result is wrong, was seen"
    before = len(times.samples)
    rivals.load("cublaslt-all", w, sets)[1]()  # pyright: ignore[reportOptionalCall]
    assert len(times.samples) == before, "searched once in a process"


def test_what_the_library_refuses_is_not_launched(stub: Seen, times: Times):
    w = workload(8, 8, 1024)
    rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    assert stub.ids & 1 << 3 and not stub.ids & (1 << 8 | 1 << 9), "8 wants other addresses, 9 other types"
    assert stub.checks > 2 * len(times.samples) and stub.illegal == 0
    tried = {(s["tile"], s["stages"], s["cluster"]) for s in times.samples if s["id"] == 3}
    legal = {(t, s, c) for t in (2, 4, 6) for s in (8, 9) for c in (0, 2, 3, 5)} - {(6, 8, c) for c in (0, 2, 3, 5)}
    fails_at_launch = {(4, s, 5) for s in (8, 9)}
    assert tried == legal - fails_at_launch
    assert {s["split_k"] for s in times.samples} == {1, 2, 3, 4, 5, 6}, "7 slices do not fit into the workspace"


@pytest.mark.parametrize(
    ("dtype", "accumulate", "reductions", "ids"), [("fp32", "fp32", 7, {3}), ("fp16", "fp32", 2, {3}), ("fp16", "fp16", 7, {3, 7})]
)
def test_the_precision_is_the_workloads(stub: Seen, times: Times, dtype: str, accumulate: str, reductions: int, ids: set[int]):
    w = workload(8, 8, 256, "nn", dtype, accumulate)
    rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    assert stub.reductions == reductions
    assert {i for i in range(64) if stub.ids >> i & 1} == ids, "7 accumulates in fp16"


def test_an_id_whose_best_is_hopeless_is_left_out(stub: Seen, times: Times, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cublaslt_space, "HOPELESS", 1.0)
    monkeypatch.setattr(cublaslt_space, "KEPT", 1)
    w = workload(8, 8, 64)
    rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    assert chosen()["id"] == 102
    assert {(s["tile"], s["stages"]) for s in times.samples if s["id"] == 3} == {(2, 8)}, "the seed alone"


def test_a_hopeless_tile_is_tried_with_one_cluster_alone(stub: Seen, times: Times, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cublaslt_space, "KEPT", 1)
    times.slow_tile = 6
    w = workload(8, 8, 64)
    rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    assert {s["cluster"] for s in times.samples if s["tile"] == 6} == {0}
    assert {s["cluster"] for s in times.samples if s["tile"] == 4} == {0, 2, 3}


@pytest.mark.parametrize("each", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("seconds", [2, 20])
def test_the_time_limit_holds(stub: Seen, times: Times, monkeypatch: pytest.MonkeyPatch, each: float, seconds: int):
    monkeypatch.setenv("KERNELWRIGHT_CUBLASLT_SECONDS", str(seconds))
    times.each = each
    w = workload(8, 8, 256)
    rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    # a round of the final is always made, and what is under way is finished
    assert times.now <= seconds + (cublaslt_space.FINALISTS + 2) * each
    assert chosen()["id"] in (3, 100, 102)


def test_the_search_is_the_same_each_time(stub: Seen, times: Times):
    w, orders = workload(8, 8, 256), []
    for _ in range(2):
        cublaslt._chosen.clear()
        times.samples.clear()
        rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
        orders.append(list(times.samples))
    assert orders[0] == orders[1]


def test_descriptors_are_freed(stub: Seen, times: Times):
    gc.collect()
    before = stub.live
    w = workload(8, 8, 64)
    runs, setup = rivals.load("cublaslt-all", w, [bound(w)])
    assert setup is not None
    setup()
    assert stub.live > before
    del runs, setup
    gc.collect()
    assert stub.live == before


def test_the_other_layout_is_searched_as_well(stub: Seen, times: Times):
    w = workload(33, 65, K_OF_FOUR_SLICES)
    one = bound(w)
    (run,), setup = rivals.load("cublaslt-all-nt", w, [one])
    assert setup is not None and run.prepare is not None
    setup()
    run.prepare()
    run.call()
    assert chosen() == BEST
    assert torch.allclose(one.tensors["c"].double(), expected(w, one), rtol=1e-5, atol=1e-4)


def test_a_product_without_any_algorithm_is_refused(stub: Seen, times: Times, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cublaslt_space.Space, "ids", lambda self: [])
    monkeypatch.setattr(cublaslt_space.Space, "seeds", lambda self: iter(()))
    w = workload(8, 8, 64)
    with pytest.raises(CandidateFault) as caught:
        rivals.load("cublaslt-all", w, [bound(w)])[1]()  # pyright: ignore[reportOptionalCall]
    assert caught.value.outcome is Outcome.REFUSED
