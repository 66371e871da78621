"""Interleaved, order-randomised rounds: every contender meets the same fresh inputs, the same clocks, the same noise.

A round draws fresh inputs for every set, then each contender in random order: outputs poisoned, one sample, outputs of a secretly chosen
set checked. Ratios are taken inside a round, so that drift of the clock falls out. This module does not protect against a candidate that
controls the clock itself: device code cannot, and a CPU candidate's samples are held against the judge's own clock (`targets.cpu`).
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
from kernelwright.evaluate.stats import bootstrap_median, converged, ratio_interval
from kernelwright.evaluate.verify import Expected, Judged, compare, expect
from kernelwright.problems.problem import Problem
from kernelwright.records import COLD_MODES, Comparison, Outcome, Timing, Workload
from kernelwright.targets.target import CandidateFault, Contender, Peaks


@dataclass(eq=False)
class Entrant:
    """A contender in the rounds of one mode."""

    label: str
    contender: Contender
    trusted: bool
    launches: int = 1
    samples: list[float] = field(default_factory=list)
    dropped: int = 0
    fault: CandidateFault | None = None


PATIENCE = 4
"""Rounds with a disturbed sample do not count, but at most so many times the wanted rounds are run for their sake."""


@dataclass(frozen=True)
class Limits:
    min_rounds: int
    max_rounds: int
    seconds: float
    tolerance: float
    noise: bool


def roofline_us(problem: Problem, w: Workload, mode: str, peaks: Peaks) -> float:
    """No implementation can be faster than this: microseconds."""
    cost = problem.cost(w)
    bandwidth = peaks.bandwidth_cold if mode in COLD_MODES else peaks.bandwidth_warm
    flops = peaks.flops.get(cost.unit, max(peaks.flops.values()))
    return 1e6 * max(cost.flops / flops, cost.bytes / bandwidth)


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
    for e in entrants:
        e.samples, e.dropped = [], 0
        note(e.label, f"warm up, {mode}")
        _guarded(e, lambda e=e: _calibrate(e, mode))
    candidates = [e for e in entrants if not e.trusted]
    rivals = [e for e in entrants if e.trusted]
    again: list[float] = []
    started, stopped, rounds, clean = time.monotonic(), "round limit", 0, 0
    while clean < limits.max_rounds and rounds < PATIENCE * limits.max_rounds:
        alive = [e for e in entrants if e.fault is None]
        if not any(e.trusted is False for e in alive) and candidates:
            break
        refill(problem, w, buffers, rng, device)
        # every contender's sample covers the sets below the smallest number of launches
        spread = mode in COLD_MODES or any(e.contender.spread for e in alive)
        used = min([len(buffers), *(e.launches for e in alive)]) if spread else 1
        secret = order.randrange(used)
        turns: list[tuple[Entrant, list[float]]] = [(e, e.samples) for e in alive]
        if limits.noise and alive and not alive[0].trusted:
            turns.append((alive[0], again))
        order.shuffle(turns)
        spot = _Spot(problem, w, buffers, secret)
        had: list[Entrant] = []
        for e, samples in turns:
            if e in had:  # no contender is clocked twice on the same inputs
                refill(problem, w, buffers, rng, device)
                spot = _Spot(problem, w, buffers, secret)
            had.append(e)
            if e.fault is None:
                note(e.label, f"round {rounds + 1}, {mode}")
                turn = functools.partial(_turn, problem, w, buffers, e, samples, mode, spot, peaks)
                _guarded(e, turn)
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


def refill(problem: Problem, w: Workload, buffers: Buffers, rng: torch.Generator, device: str) -> None:
    """Fresh inputs for every set."""
    normal = next(c for c in problem.cases(w) if c.rung == "normal")
    for i in range(len(buffers)):
        buffers.fill(problem.generate(w, normal, rng, device), i)


def _guarded(e: Entrant, action: Callable[[], None]) -> None:
    try:
        action()
    except CandidateFault as fault:
        e.fault = fault


def _calibrate(e: Entrant, mode: str) -> None:
    """Chooses launches per sample: long enough for the clock, short enough for many rounds."""
    known = e.contender.launches
    if mode not in known:
        once = min((v for v in (e.contender.estimate(mode) for _ in range(2)) if not math.isnan(v)), default=1e6)
        known[mode] = e.contender.launches_for(mode, once)
    e.launches = known[mode]


class _Spot:
    """The part of a round's outputs that is checked after each sample: random rows of a secretly chosen set. What is expected of them is
    worked out after the first sample, for all contenders of the round."""

    def __init__(self, problem: Problem, w: Workload, buffers: Buffers, secret: int):
        self._problem, self._buffers, self.secret = problem, buffers, secret
        outputs = buffers.outputs(secret)
        self._inputs, self._pick = problem.sample_rows(w, buffers.inputs(secret), outputs)
        self._w = problem.rows_workload(w, self._pick(outputs))
        self._expected: Expected | None = None

    def check(self) -> Judged:
        if self._expected is None:
            self._expected = expect(self._problem, self._w, self._inputs)
        return compare(self._problem, self._w, self._expected, self._pick(self._buffers.outputs(self.secret)))


def _turn(problem: Problem, w: Workload, buffers: Buffers, e: Entrant, samples: list[float], mode: str, spot: _Spot, peaks: Peaks) -> None:
    buffers.poison()
    value, dropped = e.contender.sample(mode, e.launches)
    e.dropped += dropped
    # a candidate may do other work in some rounds than in others; of a rival the first round says enough (eager: 10 ms a run on a CPU)
    if not (e.trusted and samples):
        if not e.contender.in_place:
            e.contender.run(spot.secret)
        judged = spot.check()
        if not judged.passed:
            raise CandidateFault(
                Outcome.WRONG_RESULT,
                f"after-timing rung: right when verified, wrong in a timed round ({mode}): {judged.note} "
                f"(normalised error {judged.error:.3g}, at most {judged.bound:.3g})",
            )
    if math.isnan(value):
        samples.append(math.nan)
        return
    floor = roofline_us(problem, w, mode, peaks)
    if value < floor and not e.trusted:
        raise CandidateFault(
            Outcome.CHEAT, f"{value:.3g} us in mode {mode} is below the physical limit of {floor:.3g} us for this Workload"
        )
    samples.append(value)


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
    if len(ratios) < 3:
        return False
    median, low, high = bootstrap_median(ratios, np.random.default_rng(0), 200)
    return converged(low, high, median, tolerance)


def _summary(
    entrants: list[Entrant], candidates: list[Entrant], rivals: list[Entrant], again: list[float], mode: str, stopped: str
) -> tuple[dict[str, Timing], dict[tuple[str, str], Comparison]]:
    rng = np.random.default_rng(0)
    timings: dict[str, Timing] = {}
    for e in entrants:
        clean = [s for s in e.samples if not math.isnan(s)]
        if e.fault is not None or not clean:
            continue
        median, low, high = bootstrap_median(np.asarray(clean), rng)
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
    noise_low = noise_high = 1.0
    if again and candidates and candidates[0].fault is None:
        same = _ratios(candidates[0], again)
        if len(same) >= 3:
            _, noise_low, noise_high = ratio_interval(same, rng)
    comparisons: dict[tuple[str, str], Comparison] = {}
    for c in candidates:
        for r in rivals:
            if c.label not in timings or r.label not in timings:
                continue
            ratios = _ratios(c, r)
            if len(ratios) < 3:
                continue
            median, low, high = ratio_interval(ratios, rng)
            comparisons[c.label, r.label] = Comparison(
                rival=r.label,
                mode=mode,
                ratio=median,
                low=low,
                high=high,
                rival_us=timings[r.label].median,
                noise_low=noise_low,
                noise_high=noise_high,
                rounds=len(ratios),
            )
    return timings, comparisons
