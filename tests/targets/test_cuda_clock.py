"""The clock's rules without a GPU: what is repeated, dropped, captured once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import pytest
import torch

from kernelwright.records import Outcome
from kernelwright.targets import cuda_clock
from kernelwright.targets.cuda_clock import ATTEMPTS, FIRST_SPIN, Clock, CudaContender
from kernelwright.targets.target import CandidateFault, DeviceLost, Fresh

real = pytest.importorskip("cuda.bindings.driver")


class Context:
    """The driver's answer to cuCtxSynchronize."""

    def __init__(self, status: str = "CUDA_SUCCESS"):
        self.status = status

    def cuCtxSynchronize(self) -> tuple:
        return (getattr(real.CUresult, self.status),)


def clock(answers: Iterator[tuple[float, bool]], bindings: Any = None) -> Clock:
    """A Clock whose windows between events are scripted."""
    one = object.__new__(Clock)
    one.bindings, one._spin = bindings or Context(), FIRST_SPIN
    one.between_events = lambda work, *, cold, before: next(answers)  # pyright: ignore[reportAttributeAccessIssue]
    return one


def test_a_sample_with_a_gap_of_the_host_is_repeated_with_a_longer_spin():
    one = clock(chain([(90.0, False), (70.0, False)], repeat((50.0, True))))
    assert one.device_us(lambda: None, cold=True, gaps=False) == 50.0
    spins = [one._spin]
    for _ in range(9):
        one.device_us(lambda: None, cold=True, gaps=False)
        spins.append(one._spin)
    assert FIRST_SPIN < spins[0] < 4 * FIRST_SPIN and spins[-1] == FIRST_SPIN  # and forgets the hiccup


def test_work_that_is_never_ahead_gives_no_sample_and_leaves_the_spin_alone():
    one = clock(iter([(90.0, False)] * ATTEMPTS))
    assert math.isnan(one.device_us(lambda: None, cold=False, gaps=False))
    assert one._spin == FIRST_SPIN


def test_work_that_synchronizes_is_clocked_with_its_gaps():
    assert clock(iter([(90.0, False)] * ATTEMPTS)).device_us(lambda: None, cold=False, gaps=True) == 90.0


def test_work_that_no_spin_outlasts_is_clocked_once():
    one, answers = clock(iter([])), iter([(4e4, False)])
    one.between_events = lambda work, *, cold, before: (work(), next(answers))[1]  # pyright: ignore[reportAttributeAccessIssue]
    assert one.device_us(lambda: time.sleep(0.03), cold=True, gaps=True) == 4e4 and one._spin == FIRST_SPIN


@pytest.mark.parametrize(
    ("error", "context", "outcome", "lost"),
    [
        (torch.OutOfMemoryError("tried to allocate 80 GiB"), "CUDA_SUCCESS", Outcome.OUT_OF_MEMORY, False),
        (RuntimeError("CUDA error: an illegal memory access\nmore"), "CUDA_ERROR_ILLEGAL_ADDRESS", Outcome.CRASH, True),
        (RuntimeError("shapes cannot be multiplied\nmore"), "CUDA_SUCCESS", Outcome.LAUNCH_ERROR, False),
    ],
)
def test_errors_of_pytorch_become_faults(error: Exception, context: str, outcome: Outcome, lost: bool):
    with pytest.raises(CandidateFault) as caught, clock(iter([]), Context(context)).faults("the rival"):
        raise error
    assert caught.value.outcome is outcome and isinstance(caught.value, DeviceLost) == lost
    assert "more" not in caught.value.evidence and caught.value.evidence.startswith("the rival: ")


class StubClock:
    """Captures by remembering; a replay takes 5 us for each launch."""

    def __init__(self) -> None:
        self.captured: list[tuple[int, ...]] = []
        self.modes: list[bool] = []

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        yield

    def synchronize(self, doing: str = "") -> None:
        pass

    def capture(self, enqueue: Callable[[int], object], indices: Sequence[int]) -> Callable[[], None]:
        self.captured.append(tuple(indices))

        def replay() -> None:
            for i in indices:
                enqueue(i)

        return replay

    def device_us(self, work: Callable[[], object], *, cold: bool, gaps: bool, before=None, renew=lambda: None) -> float:
        self.modes.append(cold)
        if before:
            before()
        work()
        return 5.0 * len(self.captured[-1]) if self.captured else math.nan


class Recorder(CudaContender):
    def __init__(self, stub: StubClock, count: int):
        super().__init__(stub, count)  # pyright: ignore[reportArgumentType]
        self.ran: list[int] = []

    def _enqueue(self, index: int) -> None:
        self.ran.append(index)

    def run(self, index: int = 0) -> None:
        self._enqueue(index)


class Dependent(Recorder):
    dependent = True

    def __init__(self, stub: StubClock, count: int):
        super().__init__(stub, count)
        self.ran_dependent: list[int] = []

    def _enqueue_dependent(self, index: int) -> None:
        self.ran_dependent.append(index)


def test_cold_launches_go_round_the_sets_and_warm_ones_stay_on_the_first():
    stub = StubClock()
    one = Recorder(stub, 3)
    assert one.sample("device-cold", 5) == (5.0, 0)
    assert one.sample("device-warm", 4) == (5.0, 0)
    assert stub.captured == [(0, 1, 2, 0, 1), (0, 0, 0, 0)]
    assert stub.modes == [True, False]


class Renewals(Fresh):
    """Notes what was asked of it, and what had run by then."""

    def __init__(self, one: Recorder):
        self.one, self.told = one, []

    def renew(self) -> None:
        self.told.append(("renew", len(self.one.ran)))

    def touch(self, sets: int) -> None:
        self.told.append((f"touch {sets}", len(self.one.ran)))


def test_no_launch_of_a_measured_sample_meets_inputs_that_the_kernel_has_met_before():
    stub = StubClock()
    one = Recorder(stub, 3)
    fresh = Renewals(one)
    for mode in ("device-cold", "device-warm", "device-warm"):
        one.sample(mode, 3, fresh)
    assert stub.captured == [(0, 1, 2)], "warm and cold samples are one graph, a set for each launch"
    assert fresh.told[0] == ("renew", 4), "the capture's eager run and first replay are forgotten before the sample"
    assert ("touch 3", 7) in fresh.told and [told for told, _ in fresh.told].count("renew") == 1
    assert [one.launches_for(mode, 1.0) for mode in ("device-cold", "device-chain", "device-warm", "host-server")] == [3, 3, 1, 3]
    assert one.launches_for("device-cold", 1e6) == 1


def test_a_sample_that_is_taken_again_meets_other_inputs():
    renewed: list[int] = []
    one = clock(iter([(90.0, False), (50.0, True)]))
    assert one.device_us(lambda: None, cold=True, gaps=False, renew=lambda: renewed.append(1)) == 50.0
    assert renewed == [1]


def test_a_chain_is_the_cold_graph_with_programmatic_edges():
    stub = StubClock()
    one = Dependent(stub, 3)
    one.sample("device-cold", 4)
    assert one.ran == [0] + 2 * [0, 1, 2, 0] and one.ran_dependent == []
    one.sample("device-chain", 4)
    assert one.ran_dependent == 2 * [0, 1, 2, 0], "the capture's first replay and the sample; the eager run before them is a plain one"
    assert stub.captured == [(0, 1, 2, 0)] * 2 and stub.modes == [True, True]


def test_without_programmatic_edges_a_chain_is_the_very_cold_graph():
    stub = StubClock()
    one = Recorder(stub, 2)
    assert one.sample("device-cold", 2) == one.sample("device-chain", 2)
    assert stub.captured == [(0, 1)] and stub.modes == [True, True]


def test_a_graph_is_captured_once_after_an_eager_run():
    stub = StubClock()
    one = Recorder(stub, 2)
    for _ in range(3):
        one.sample("device-cold", 2)
    assert stub.captured == [(0, 1)]
    assert one.ran == [0, 0, 1, 0, 1, 0, 1, 0, 1]  # eager, untimed replay, three samples


def test_a_sample_that_failed_counts_its_launches_as_dropped():
    stub = StubClock()
    one = Recorder(stub, 2)
    one.captured = False
    us, dropped = one.sample("device-warm", 3)
    assert math.isnan(us) and dropped == 3
    assert one.ran == [0, 0, 0]


def test_host_modes_take_the_median_of_undisturbed_calls(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 10e-6, 1.0, 1.0 + 30e-6, 2.0, 2.0 + 900e-6, 3.0, 3.0 + 20e-6])
    switches = iter([0, 0, 0, 0, 0, 1, 1, 1])  # the third call is switched out
    pauses: list[float] = []
    monkeypatch.setattr(cuda_clock.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_clock, "_switches", lambda: next(switches))
    monkeypatch.setattr(cuda_clock.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(cuda_clock.time, "sleep", pauses.append)
    one = Recorder(StubClock(), 2)
    us, dropped = one.sample("host-server", 4)
    assert us == pytest.approx(20.0) and dropped == 1
    assert one.ran == [0, 1, 0, 1] and len(pauses) == 4


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="device-lukewarm"):
        Recorder(StubClock(), 1).sample("device-lukewarm", 1)
