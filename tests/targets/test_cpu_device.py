"""How the judge on a CPU asks, and what it makes of a process's claims; requests are scripted, no process runs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from kernelwright.records import Outcome
from kernelwright.targets import cpu_device
from kernelwright.targets.cpu_child import Trusted, Work
from kernelwright.targets.cpu_device import ANSWER_US, CpuContender, _Seen
from kernelwright.targets.target import Bound, CandidateFault


class Asked(CpuContender):
    """Writes down what its process is asked, in place of asking."""

    def __init__(self, *, apart: bool):
        self.log: list[object] = []
        self.apart, self._trusted, self._work, self._seen, self._long = apart, True, Trusted([], None, []), {}, False
        self._sets = [Bound(tensors={}, names={})] * 5
        nothing = _Seen([], [], 5.0)
        self._device = SimpleNamespace(prepare=lambda mode, sets: self.log.append(mode), empty=lambda mode, n: nothing)

    def _launch(self, sets: list[int], seconds: float) -> _Seen:
        self.log.append(list(sets))
        return _Seen([10.0] * len(sets), [False] * len(sets), 5.0 + 2000.0)

    def close(self) -> None:
        pass


def test_a_rival_that_is_asked_apart_has_a_call_before_each_that_counts_and_the_judges_clock():
    one = Asked(apart=False)
    assert one.sample("device-warm", 2) == (10.0, 0) and one.log == ["device-warm", [4, 0, 1]]
    one = Asked(apart=False)
    one.sample("device-cold", 2)
    assert one.log == ["device-cold", [0, 1]]
    one = Asked(apart=True)
    us, dropped = one.sample("device-warm", 2)
    assert one.log == [[0], "device-warm", [0], [1], "device-warm", [1]]
    assert dropped == 0 and us == 2000.0 - ANSWER_US, "2000 us of processor time were seen, 10 claimed"
    one = Asked(apart=True)
    one.sample("device-cold", 1)
    assert one.log == ["device-cold", [0]]


class Claiming(Asked):
    """A candidate whose requests are scripted: what it claims of each launch, and the processor time of all beyond an empty request's.
    `busy`: microseconds that an empty request takes now."""

    def __init__(self, requests: list[tuple[list[float], float]], busy: float = 50.0):
        super().__init__(apart=False)
        self._trusted, self._work, self._requests, self._sets = False, Work(), iter(requests), self._sets[:1] * 17
        self._device.empty = lambda mode, n: _Seen([], [], 50.0)
        self._device.empty_now = lambda mode, n: _Seen([], [], busy)

    def _launch(self, sets: list[int], seconds: float) -> _Seen:
        claims, used = next(self._requests)
        return _Seen(claims, [False] * len(claims), used + 50.0)

    def samples(self, count: int) -> list[float]:
        return [self.sample("device-cold", 16)[0] for _ in range(count)]


HONEST = ([14.0] * 16, 230.0)
LATE = ([14.0] * 16, 850.0)
"""Something else took 600 us of its core."""
UNEVEN = ([14.0] * 12 + [140.0] * 4, 750.0)
FORGED = ([2.0] * 16, 230.0)
FORGED_IN_MOST = ([2.0] * 14 + [101.0] * 2, 230.0)


def test_requests_that_account_for_their_time_count():
    assert Claiming([HONEST] * 20).samples(20) == [14.0] * 20


def test_one_launch_that_works_for_the_others_is_worth_nothing():
    batched = ([60.0] * 14 + [680.0] * 2, 2200.0)
    one = Claiming([batched] * 20)
    least = (2200.0 / 16 - one._slack(50.0, 16)) / cpu_device.HELD
    assert one.samples(20) == [least] * 20 and least > 100, "137 us were used for each, 60 claimed for most"


def test_a_disturbed_request_counts_for_nothing_and_nobody_is_accused_for_a_few():
    bad = [LATE, UNEVEN]
    some = Claiming([HONEST if i % 2 else bad[i % 4 // 2] for i in range(30)]).samples(30)
    assert [math.isnan(us) for us in some] == [i % 2 == 0 for i in range(30)], "every second one, from the first on"
    assert all(math.isnan(us) for us in Claiming([LATE] * cpu_device.REQUESTS).samples(cpu_device.REQUESTS - 1))


@pytest.mark.parametrize("lie", [FORGED, FORGED_IN_MOST, LATE])
def test_whose_claims_do_not_account_for_most_requests_is_accused(lie):
    one = Claiming([HONEST] + [lie] * 8)
    with pytest.raises(CandidateFault, match="in 8 of 9 requests") as found:
        one.samples(9)
    assert found.value.outcome is Outcome.CHEAT


def test_nobody_is_accused_on_a_machine_where_an_empty_request_takes_as_long():
    late = [math.isnan(us) for us in Claiming([LATE] * 12, busy=650.0).samples(12)]
    assert late == [True] * 8 + [False] * 4, "from then on its requests count"


def test_before_long_launches_nothing_goes():
    one = Asked(apart=False)
    one._launch = lambda sets, seconds: one.log.append(list(sets)) or _Seen([30_000.0] * len(sets), [False] * len(sets), 30_000.0)
    assert [one.sample("device-warm", 1) for _ in range(2)] == [(30_000.0, 0)] * 2
    assert one.log == ["device-warm", [4, 0], "device-warm", [0]]
