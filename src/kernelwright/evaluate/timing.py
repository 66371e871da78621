"""Interleaved, order-randomised rounds: every contender meets the same fresh inputs, the same clocks, the same noise.

A round draws fresh inputs for every set that is used, then each contender in random order: inputs altered, outputs poisoned, one sample,
outputs, inputs and guard bands of a secretly chosen set checked. Before a candidate runs again on what was drawn, it is drawn anew. No
timed launch meets inputs that an earlier launch of anybody has met, nor its own contender any that are nearly those, so there is nothing to
replay: not in what the candidate kept, nor in what rivals or references left in the device's memory. Ratios are taken inside a round, so
that drift of the clock falls out. This module does not protect against a candidate that controls the clock itself: device code cannot, and
a CPU candidate's samples are held against the judge's own clock (`targets.cpu_device`).
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from kernelwright.evaluate.buffers import Buffers
from kernelwright.evaluate.stats import LEAST_ROUNDS, comparison, converged, noise_floor, ratio_interval
from kernelwright.evaluate.verify import Judged, compare, expect, limits_of, same_bits, unwritten
from kernelwright.problems.problem import Problem
from kernelwright.records import Comparison, Outcome, Timing, Workload
from kernelwright.targets.target import CandidateFault, Contender, Fresh, Peaks


@dataclass(eq=False)
class Entrant:
    """A contender in the rounds of one mode."""

    label: str
    contender: Contender
    trusted: bool
    exact: bool = True
    """Whether it computes what the problem says."""
    launches: int = 1
    samples: list[float] = field(default_factory=list)
    dropped: int = 0
    scores: list[float] = field(default_factory=list)
    """Of an open challenge, one for each result that was looked at."""
    fault: CandidateFault | None = None


FEWER = 4
"""A timed launch is looked at in so many times fewer rows and columns than a screen's: who leaves out a twentieth of the rows in timed
rounds is missed by one look at 64 of them in 26, and there is one in every round."""
PATIENCE = 4
"""Rounds with a disturbed sample do not count, but at most so many times the wanted rounds are run for their sake."""


@dataclass(frozen=True)
class Limits:
    min_rounds: int
    max_rounds: int
    seconds: float
    tolerance: float
    noise: bool


def measure(
    problem: Problem,
    w: Workload,
    buffers: Buffers,
    entrants: list[Entrant],
    mode: str,
    limits: Limits,
    peaks: Peaks,
    rng: torch.Generator,
    device: str,
    note: Callable[[str, str], None],
) -> tuple[dict[str, Timing], dict[tuple[str, str], Comparison]]:
    """Timings by label, Comparisons by (candidate, rival). The buffers hold inputs on entry. A contender that
    faults is left out from then on and holds its fault. The first candidate and the first rival decide when sampling has converged."""
    order = random.SystemRandom()
    candidates = [e for e in entrants if not e.trusted]
    rivals = [e for e in entrants if e.trusted]
    for e in rivals:
        e.contender.apart = bool(candidates) and all(c.contender.apart for c in candidates)
    for e in entrants:
        e.samples, e.scores, e.dropped = [], [], 0
        note(e.label, f"warm up, {mode}")
        _guarded(e, lambda e=e: _calibrate(e, mode))
    again: list[float] = []
    started, stopped, rounds, clean = time.monotonic(), "round limit", 0, 0
    while clean < limits.max_rounds and rounds < PATIENCE * limits.max_rounds:
        alive = [e for e in entrants if e.fault is None]
        if not any(e.trusted is False for e in alive) and candidates:
            break
        used = min(len(buffers), max((e.contender.covers(mode, e.launches) for e in alive), default=1))
        draw = functools.partial(refill, problem, w, buffers, rng, device, used)
        draw()
        turns: list[tuple[Entrant, list[float]]] = [(e, e.samples) for e in alive]
        if limits.noise and alive and not alive[0].trusted:
            turns.append((alive[0], again))
        order.shuffle(turns)
        ran: set[str] = set()
        for e, samples in turns:
            if e.fault is None:
                note(e.label, f"round {rounds + 1}, {mode}")
                spot = _Spot(problem, w, buffers, used, draw, order, met=e.label in ran and not e.trusted)
                ran.add(e.label)
                _guarded(e, functools.partial(_turn, spot, e, samples, mode, peaks))
        rounds += 1
        clean = _clean_rounds(candidates, rivals)
        if clean >= limits.min_rounds and _converged(candidates, rivals, limits.tolerance):
            stopped = "converged"
            break
        enough = clean >= limits.min_rounds or rounds >= PATIENCE * limits.min_rounds
        if enough and time.monotonic() - started > limits.seconds:
            stopped = "time limit"
            break
    return _summary(entrants, candidates, rivals, again, mode, stopped)


def refill(problem: Problem, w: Workload, buffers: Buffers, rng: torch.Generator, device: str, sets: int) -> None:
    """Fresh inputs for the first so many sets."""
    normal = next(c for c in problem.cases(w) if c.rung == "normal")
    for i in range(sets):
        buffers.fill(problem.generate(w, normal, rng, device), i)


def _guarded(e: Entrant, action: Callable[[], None]) -> None:
    try:
        action()
    except CandidateFault as fault:
        e.fault = fault


def _calibrate(e: Entrant, mode: str) -> None:
    e.launches = e.contender.launches_of(mode)


class _Spot(Fresh):
    """The inputs of one contender's turn, and the check of what it made of them: a random part of a secretly chosen set, of which the judge
    has the inputs in memory of its own."""

    def __init__(
        self, problem: Problem, w: Workload, buffers: Buffers, sets: int, draw: Callable[[], None], order: random.Random, *, met: bool
    ):
        """The first so many `sets` are used. `draw` gives them fresh inputs: where the problem's inputs cannot be altered, and where the
        contender has `met` what was drawn for this round: of inputs that are a column away from others the result is so as well, and can be
        brought up to date instead of computed."""
        self.problem, self.w, self.buffers = problem, w, buffers
        self._sets, self._draw, self._order, self._met = sets, draw, order, met

    def choose(self, sets: int, checked: bool) -> None:
        """One of the first so many sets, before the inputs are renewed; and whether it will be checked at all."""
        self.secret, self._checked = self._order.randrange(sets), checked

    def coin(self) -> bool:
        return self._order.random() < 0.5

    def renew(self) -> None:
        if self._met or not self.buffers.alter(self._order):
            self._draw()
        self._met = True
        self.buffers.poison(self._sets)
        if self._checked:
            inputs = self.buffers.inputs(self.secret)
            self._of_inputs, self._pick = self.problem.sample_rows(self.w, self.buffers.outputs(self.secret), FEWER)
            self._kept = {name: t.clone() if t is inputs[name] else t for name, t in self._of_inputs(inputs).items()}

    def touch(self, sets: int) -> None:
        self.buffers.touch(sets)

    def check(self, contender: Contender, mode: str) -> Judged:
        """Raises CandidateFault."""
        when = f"after-timing rung: right when verified, in a timed round ({mode})"
        outputs = self.buffers.outputs(self.secret)
        if left := unwritten(outputs):
            raise CandidateFault(Outcome.WRONG_RESULT, f"{when} {left} elements hold the poison: they were not written")
        part = self._pick(outputs)
        rows = self.problem.rows_workload(self.w, part)
        judged = compare(self.problem, rows, expect(self.problem, rows, self._kept), part)
        if not judged.passed:
            raise CandidateFault(Outcome.WRONG_RESULT, f"{when} wrong: {judged.note}{limits_of(judged)}")
        now = self._of_inputs(self.buffers.inputs(self.secret))
        for name, kept in self._kept.items():
            if not same_bits(now[name], kept):
                raise CandidateFault(Outcome.INPUT_MUTATED, f"{when} input {name} was changed")
        if trouble := self.buffers.disturbed(self.secret) or contender.disturbed():
            raise CandidateFault(Outcome.OUT_OF_BOUNDS, f"{when} {trouble}")
        return judged

    def check_alone(self, contender: Contender, sets: int) -> None:
        """Each launch does its own work: after some of a sample's launches the outputs of the others' sets are still poison. Raises
        CandidateFault."""
        self.choose(sets, False)
        self.renew()
        first = 1 if self.coin() else self._order.randrange(1, sets)
        for index in range(first):
            contender.run(index)
        if not self.buffers.untouched(first, self._sets):
            raise CandidateFault(
                Outcome.CHEAT, "a launch wrote the outputs of other launches' buffers: the work of several was done in one"
            )


def _turn(spot: _Spot, e: Entrant, samples: list[float], mode: str, peaks: Peaks) -> None:
    sets = min(len(spot.buffers), e.contender.covers(mode, e.launches))
    checked = e.exact and not (e.trusted and samples)  # of a rival the first round says enough (eager: 10 ms a run on a CPU)
    # in half of the turns, before the sample or after it: a candidate that counts must not know which launches these are
    alone = sets > 1 and e.contender.in_place and not e.trusted and spot.coin()
    first = alone and spot.coin()
    if first:
        spot.check_alone(e.contender, sets)
    spot.choose(sets, checked)
    spot.renew()
    value, dropped = e.contender.sample(mode, e.launches, spot)
    e.dropped += dropped
    score = None
    if checked:
        if not e.contender.in_place:
            e.contender.run(spot.secret)
        score = spot.check(e.contender, mode).score
    if alone and not first:
        spot.check_alone(e.contender, sets)
    if math.isnan(value):
        samples.append(math.nan)
        return
    if value > (limit := spot.problem.limit_us(spot.w)):
        raise CandidateFault(Outcome.TIMEOUT, f"{value:.4g} us in mode {mode}, the Workload allows {limit:.4g} us")
    floor, _ = peaks.floor(spot.problem.cost(spot.w), mode)
    if value < floor and not e.trusted:
        raise CandidateFault(
            Outcome.CHEAT, f"{value:.3g} us in mode {mode} is below the physical limit of {floor:.3g} us for this Workload"
        )
    samples.append(value)
    if score is not None:
        e.scores.append(score)  # within the time, as far as is known


def _ratios(e: Entrant | list[float], rival: Entrant | list[float]) -> np.ndarray:
    mine = np.asarray(e if isinstance(e, list) else e.samples)
    theirs = np.asarray(rival if isinstance(rival, list) else rival.samples)
    n = min(len(mine), len(theirs))
    ratio = theirs[:n] / mine[:n]
    return ratio[~np.isnan(ratio)]


def _clean_rounds(candidates: list[Entrant], rivals: list[Entrant]) -> int:
    """Rounds that count: neither the first candidate's sample nor the first rival's was disturbed."""
    leading = [next((e for e in group if e.fault is None), None) for group in (candidates, rivals)]
    taking_part = [e for e in leading if e is not None]
    if not taking_part:
        return 0
    return int((~np.isnan(np.asarray([e.samples for e in taking_part])).any(axis=0)).sum())


def _converged(candidates: list[Entrant], rivals: list[Entrant], tolerance: float) -> bool:
    pairs = [(c, r) for c in candidates[:1] for r in rivals[:1] if c.fault is None and r.fault is None]
    if not pairs:
        return False
    ratios = _ratios(*pairs[0])
    if len(ratios) < LEAST_ROUNDS:
        return False
    median, low, high = ratio_interval(ratios)
    return converged(low, high, median, tolerance)


def _summary(
    entrants: list[Entrant], candidates: list[Entrant], rivals: list[Entrant], again: list[float], mode: str, stopped: str
) -> tuple[dict[str, Timing], dict[tuple[str, str], Comparison]]:
    timings: dict[str, Timing] = {}
    for e in entrants:
        clean = [s for s in e.samples if not math.isnan(s)]
        if e.fault is not None or not clean:
            continue
        median, low, high = ratio_interval(clean)
        timings[e.label] = Timing(
            mode=mode,
            samples=tuple(clean),
            median=median,
            low=low,
            high=high,
            launches=e.launches,
            dropped=e.dropped,
            stopped=stopped,
        )
    noise = noise_floor(_ratios(candidates[0], again)) if again and candidates and candidates[0].fault is None else (1.0, 1.0)
    comparisons: dict[tuple[str, str], Comparison] = {}
    for c in candidates:
        for r in rivals:
            if c.label in timings and r.label in timings:
                found = comparison(r.label, mode, _ratios(c, r), timings[r.label].median, noise)
                if found is not None:
                    comparisons[c.label, r.label] = found
    return timings, comparisons
