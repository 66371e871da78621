"""The loop over a suite: many Workloads, one device, one time budget, a small set of kernels. `loop` is the loop over one Workload.

    search    Workloads from small to large, neighbour after neighbour; candidates that did well on neighbours first; builds run ahead
    gaps      kernels that serve many Workloads, measured where they are likely but were not tried, if time is left
    confirm   the chosen kernel, the best and the runner-up of each Workload, in fresh processes, the whole ladder, beside the rivals
    select    the fewest confirmed kernels that serve each Workload within the tolerance

Everything measured is in the archive before the next Job begins; a second run reads it there and goes on.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from kernelwright import rivals
from kernelwright.archive import Archive
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.evaluate.stats import geomean
from kernelwright.families import families_for
from kernelwright.loop import CONFIRM_ATTEMPTS, asked_modes, headline_mode, screen_job
from kernelwright.measured import Measured
from kernelwright.problems import problem_of
from kernelwright.propose import score
from kernelwright.propose.configs import SearchSpace
from kernelwright.propose.neighbours import Neighbours, in_order
from kernelwright.records import Candidate, Trial, Workload
from kernelwright.runtime.kernel_set import assign, cover
from kernelwright.targets.target import Peaks, Target

SESSION = "tune-"
"""Sessions of this loop begin so: their Trials count as time already spent."""
BATCH = 8
"""Candidates of one Job: they share the rounds' inputs, the anchor's samples and what the outputs are checked with. On the fake target
281 screens a second instead of 78 one by one, on the CPU (gemm of 32 to 64) 29 instead of 23. One that takes the judge down costs the
others a second measurement, which is less than the judge's new start."""
WINDOW = 8
"""Workloads under way at once: while the candidates of one are built, another is measured."""
GAIN = 1.01
"""A better candidate is one that is better by more than a screen's noise."""
CONFIRM_SHARE = 0.4
"""Of the time, kept for confirming."""
FRESH_EVERY = 50
"""Workloads that one judge process confirms."""
FIXED_SECONDS = 0.02
"""Of one candidate, whatever the size: an H200 screens about 50 small ones a second, each in a Job of its own."""
LAUNCHES = 60
"""Of one candidate, in its verification and its rounds; a first guess, which is only used to compare Workloads with each other."""
LIKELY = 0.9
"""A chosen kernel is tried where its prior is above this."""
GAP_KERNELS = 6
"""Of a Workload, each time."""
MANY = 50
COMPILED = ("compile", "compile-max")
"""Rivals that are left out of the default for more than MANY Workloads: compiling takes them up to minutes on each."""
POLL_SECONDS = 0.002
LOST_JUDGES = 3
"""So many Workloads in a row that took the judge down end the run: that is the machine."""


@dataclass(frozen=True)
class Limits:
    """What a suite may take."""

    minutes: float = 30.0
    """In all, what earlier runs of this loop spent on these Workloads counted in."""
    trials: int = 32
    """Most candidates of a Workload's search, those of earlier runs counted in."""
    patience: int = 12
    """Candidates without a gain that end a Workload's search."""
    tolerance: float = 0.01
    """A Workload may be served by a kernel that is slower than its best by so much, if that saves a kernel."""
    confirm_rounds: int = 25
    confirm_seconds: float = 1.0
    """For each timing mode of a Workload."""
    modes: tuple[str, ...] = ()
    """Of the confirmation, beside the headline's; `device-chain` is measured for candidates whose plan asks for dependent launch."""
    rivals: tuple[str, ...] | None = None
    """Of the confirmation; None: those of the loop over one Workload, those that must be compiled only in suites of up to 50."""


class Listener(Protocol):
    """Told of every step. `done` is the share of the whole run, by estimated time."""

    def screened(self, w: Workload, trials: Sequence[Trial], done: float) -> None:
        pass

    def searched(self, w: Workload, done: float) -> None:
        pass

    def confirmed(self, w: Workload, trials: Sequence[Trial], done: float) -> None:
        pass

    def skipped(self, w: Workload, reason: str) -> None:
        pass


class Silent(Listener):
    """Tells nobody."""


@dataclass(frozen=True)
class Tuned:
    """What a suite came to."""

    trials: tuple[Trial, ...]
    """All confirming Trials, rivals' included."""
    screens: tuple[Trial, ...]
    """Of all candidates: what the chosen ones showed on the other Workloads is for the Pack too."""
    kernels: tuple[str, ...]
    """Ids of the chosen Candidates, the most useful first."""
    loss: float
    """Geometric mean over Workloads of the chosen kernel's time over that of the Workload's best own one, less 1."""
    worst_loss: float
    skipped: dict[str, str]
    """Workloads for which there is no Family, or that took the judge down, with the reason."""
    unfinished: tuple[Workload, ...]
    """Not confirmed, for lack of time or of a right kernel."""
    seconds: float
    spent: float
    """Seconds of the device, earlier runs' included."""
    peaks: dict


def share(left: float, costs: Sequence[float]) -> float:
    """Seconds for the first of the Workloads to come, in proportion to its cost: what one leaves over is the others'."""
    return max(0.0, left) * costs[0] / total if (total := sum(costs)) > 0 else 0.0


@dataclass
class Search:
    """One Workload on its way."""

    w: Workload
    proposer: Neighbours
    batch: list[Candidate] = field(default_factory=list)
    count: int = 0
    """Candidates that this run measured, in `seconds`."""
    seconds: float = 0.0
    allowed: float | None = None


class Suite:
    """A run's phases over one archive."""

    def __init__(self, workloads: Iterable[Workload], target: Target, archive: Archive, evaluator: Evaluator, limits: Limits):
        self.workloads = in_order(workloads)
        self.target, self.evaluator, self.limits = target, evaluator, limits
        self.facts, self.modes = target.facts(), asked_modes((headline_mode(target.name), *limits.modes), target.name)
        self.session = SESSION + uuid.uuid4().hex[:8]
        self.started = time.monotonic()
        self.measured = Measured(self.workloads, archive, evaluator.environment, self.modes[0], self._counts)
        self.before = self.measured.seconds(SESSION)
        peaks = msgspec.convert(evaluator.peaks, Peaks)
        self.cost = {w: FIXED_SECONDS + LAUNCHES * 1e-6 * peaks.floor(problem_of(w).cost(w), self.modes[0])[0] for w in self.workloads}
        self.to_search = self.to_confirm = sum(self.cost[w] for w in self.measured.unconfirmed())
        """Estimated seconds of the Workloads that are still to come in each phase."""
        self.lost = 0
        """Workloads in a row over which the judge was lost."""
        self.skipped: dict[str, str] = {}
        self.reserve = CONFIRM_SHARE * limits.minutes * 60 * len(self.measured.unconfirmed()) / max(1, len(self.workloads))
        """Seconds kept for confirming."""

    def _counts(self, trial: Trial) -> bool:
        """Whether a Trial confirms its Candidate in all that this run asks for."""
        plan = trial.candidate.plan
        modes = {m for m in self.modes if m != "device-chain" or (plan is not None and plan.dependent)}
        return modes <= {t.mode for t in trial.timings} and set(self.rivals(trial.workload)) <= set(trial.rivals)

    def rivals(self, w: Workload) -> tuple[str, ...]:
        if self.limits.rivals is not None:  # a suite may be of several problems: what one of them lacks the others may have
            known = rivals.names_for(w, self.target.name, every=True)
            return tuple(n for n in rivals.asked(self.limits.rivals, w) if n in known)
        left_out = COMPILED if len(self.workloads) > MANY else ()
        names = [n for n in rivals.names_for(w, self.target.name) if n not in left_out]
        device_only = all(m.startswith("device") for m in self.modes)
        return tuple(n for n in names if not (device_only and n in rivals.HOST_ONLY))

    def left(self) -> float:
        return self.limits.minutes * 60 - self.before - (time.monotonic() - self.started)

    def done(self) -> float:
        """Share of the whole run, by estimated time."""
        return 1 - ((1 - CONFIRM_SHARE) * self.to_search + CONFIRM_SHARE * self.to_confirm) / sum(self.cost.values())

    # ---------------------------------------------------------------------------------------------------- searching

    def enough(self, w: Workload) -> bool:
        """Whether a search has come to its end: as many candidates as are allowed, or none of the last few was a gain."""
        best, since = 0.0, 0
        for t in self.measured.screens[w]:
            found = score(t)
            best, since = (found, 0) if found > best * GAIN else (best, since + 1)
        return len(self.measured.screens[w]) >= self.limits.trials or (best > 0 and since >= self.limits.patience)

    def search(self, listener: Listener) -> None:
        waiting = deque(w for w in self.measured.unconfirmed() if not self.enough(w))
        self.to_search = sum(self.cost[w] for w in waiting)
        opening: deque[tuple[Workload, Future[Neighbours | str]]] = deque()
        under_way: list[Search] = []
        # a search begins with 0.3 s of Families' seeds and models (four Families of sm_90): in a thread, while the judge measures
        opener = ThreadPoolExecutor(1)
        try:
            while (waiting or opening or under_way) and self.left() > self.reserve:
                while waiting and len(opening) < WINDOW:
                    opening.append((w := waiting.popleft(), opener.submit(self._proposer, w)))
                while opening and len(under_way) < WINDOW and (opening[0][1].done() or not under_way):
                    under_way += self._opened(*opening.popleft(), listener)
                if under_way:
                    now = self._first_built(under_way)
                    if now.allowed is None:
                        others = (s.w for s in under_way if s is not now)
                        costs = [self.cost[w] for w in (now.w, *others, *(w for w, _ in opening), *waiting)]
                        now.allowed = share(self.left() - self.reserve, costs)
                    if self._screen(now.w, now.batch, listener, now):
                        if not self.enough(now.w) and now.seconds < now.allowed and self._next(now):
                            continue
                        self._searched(now.w, listener)
                    under_way.remove(now)
        finally:
            opener.shutdown(cancel_futures=True)

    def _proposer(self, w: Workload) -> Neighbours | str:
        """Or why there is none."""
        families, refusals = families_for(w, self.facts)
        if not families:
            return "; ".join(f"{name}: {why}" for name, why in refusals.items()) or "there is no family"
        return Neighbours(w, families, self.facts, self.measured.knowledge, int(w.id[:8], 16), self.measured.screens[w])

    def _opened(self, w: Workload, found: Future[Neighbours | str], listener: Listener) -> list[Search]:
        """The search, with its first candidates being built; none if there is nothing to try."""
        if isinstance(proposer := found.result(), str):
            self._skip(w, proposer, listener)
        elif self._next(one := Search(w, proposer)):
            return [one]
        else:
            self._searched(w, listener)
        return []

    def _searched(self, w: Workload, listener: Listener) -> None:
        self.to_search -= self.cost[w]
        listener.searched(w, self.done())

    def _first_built(self, under_way: Sequence[Search]) -> Search:
        """The oldest of those whose candidates are built: it keeps the device, and with it its buffers and rivals, if it can."""
        while True:
            for one in under_way:
                if self.evaluator.builder.ready(one.batch):
                    return one
            time.sleep(POLL_SECONDS)

    def _skip(self, w: Workload, reason: str, listener: Listener) -> None:
        self.skipped[w.name] = reason
        listener.skipped(w, reason)

    def _next(self, one: Search) -> bool:
        """Proposes the next batch, as large as the time that is left to it allows, and has it built; False at the end of the space."""
        count = min(BATCH, self.limits.trials - len(self.measured.screens[one.w]))
        if one.allowed is not None:
            each = one.seconds / max(1, one.count)
            count = min(count, max(1, int((one.allowed - one.seconds) / max(each, 1e-9))))
        one.batch = one.proposer.propose(count)
        self.evaluator.builder.want(one.batch)
        return bool(one.batch)

    def _screen(self, w: Workload, batch: Sequence[Candidate], listener: Listener, one: Search | None = None) -> bool:
        """Measures a batch; False if the judge was lost over it."""
        built = list(self.evaluator.builder.builds(batch))
        started, trials = time.monotonic(), []
        job = screen_job(w, self.target.name, rivals.names_for(w, self.target.name)[:1])
        with self._may_lose_judge(w, listener):
            for t in self.evaluator.evaluate_built(built, job, stage="screen", session=self.session):
                trials.append(self.measured.record(t))
                if one is not None:
                    one.proposer.learn(trials[-1])
        if one is not None:
            one.seconds, one.count = one.seconds + time.monotonic() - started, one.count + len(batch)
        if trials:
            listener.screened(w, trials, self.done())
        return bool(trials)

    @contextmanager
    def _may_lose_judge(self, w: Workload, listener: Listener) -> Iterator[None]:
        """A Workload that the judge cannot do (it has no room for it, say) is passed over; several in a row are the machine's fault."""
        try:
            yield
            self.lost = 0
        except JudgeError as error:
            self.lost += 1
            if self.lost == LOST_JUDGES:
                raise
            self._skip(w, str(error), listener)

    def fill_gaps(self, listener: Listener) -> None:
        """Kernels of the set that are likely but unmeasured on Workloads whose own kernel serves few others: the set gets smaller. Again,
        as long as it does."""
        smallest = math.inf
        while self.left() > self.reserve:
            times = {w: self.measured.times(w) for w in self.workloads}
            kernels = cover(times, self.limits.tolerance)
            if len(kernels) >= smallest:
                break
            smallest, serving = len(kernels), assign(times, kernels)
            alone = {k: sum(v == k for v in serving.values()) for k in kernels}
            for w in sorted((w for w in self.measured.unconfirmed() if w in serving), key=lambda w: alone[serving[w]]):
                if self.left() <= self.reserve:
                    break
                batch = self._likely(w, [k for k in kernels if alone[k] > alone[serving[w]]])
                if batch:
                    self._screen(w, batch, listener)

    def _likely(self, w: Workload, kernels: Sequence[str]) -> list[Candidate]:
        tried = {t.candidate.id for t in self.measured.screens[w]}
        space = SearchSpace(w, families_for(w, self.facts)[0], self.facts)
        priors = self.measured.knowledge.priors(space)
        found = []
        for c in (self.measured.candidates[k] for k in kernels if k not in tried):
            point = space.point(c.origin.name, dict(c.origin.config))
            prior = priors.get(point, 0.0) if point else 0.0
            if point and prior >= LIKELY and space.families[point.family].render(space.config(point), w, self.facts).id == c.id:
                found.append((prior, c))
        return [c for _, c in sorted(found, key=lambda pair: -pair[0])[:GAP_KERNELS]]

    # --------------------------------------------------------------------------------------------------- confirming

    def confirm(self, listener: Listener) -> None:
        todo = deque(w for w in self.measured.unconfirmed() if self.measured.times(w))
        serving = assign(times := {w: self.measured.times(w) for w in self.workloads}, cover(times, self.limits.tolerance))
        count = 0
        while todo and self.left() > 0:
            w = todo.popleft()
            if count % FRESH_EVERY == 0:
                self.evaluator.fresh()
            count += 1
            seconds = min(self.limits.confirm_seconds, share(self.left(), [self.cost[x] for x in (w, *todo)]))
            with self._may_lose_judge(w, listener):
                trials = self._confirm(w, serving.get(w), seconds)
                self.to_confirm -= self.cost[w]
                listener.confirmed(w, trials, self.done())

    def _confirm(self, w: Workload, chosen: str | None, seconds: float) -> list[Trial]:
        """The chosen kernel, the best and the next; where all of them fail the whole ladder, those that come next."""
        trials: list[Trial] = []
        job = Job(
            workload=w,
            rivals=self.rivals(w),
            rungs=ALL_RUNGS,
            modes=self.modes,
            min_rounds=9,
            max_rounds=self.limits.confirm_rounds,
            seconds=seconds,
            noise=True,
        )
        for _ in range(CONFIRM_ATTEMPTS):
            times = self.measured.times(w)
            best = sorted(times, key=times.__getitem__)[:2]
            ids = dict.fromkeys((chosen, *best) if chosen in times else best)
            built = list(self.evaluator.builder.builds([self.measured.candidates[i] for i in ids if i]))
            if not built:
                break
            trials += [self.measured.record(t) for t in self.evaluator.evaluate_built(built, job, stage="confirm", session=self.session)]
            if self.measured.confirmed_times(w):
                break
        return trials

    def result(self) -> Tuned:
        times = {w: found for w in self.workloads if (found := self.measured.confirmed_times(w))}
        kernels = cover(times, self.limits.tolerance)
        serving = assign(times, kernels)
        losses = [times[w][k] / min(times[w].values()) for w, k in serving.items()]
        confirms = [t for w in self.workloads for t in self.measured.confirms[w]]
        seconds = time.monotonic() - self.started
        return Tuned(
            trials=tuple(confirms),
            screens=tuple(t for w in self.workloads for t in self.measured.screens[w]),
            kernels=tuple(kernels),
            loss=geomean(losses) - 1 if losses else 0.0,
            worst_loss=max(losses, default=1.0) - 1,
            skipped={w.name: self.skipped[w.name] for w in self.workloads if w.name in self.skipped and w not in times},
            unfinished=tuple(w for w in self.workloads if w not in times and w.name not in self.skipped),
            seconds=seconds,
            spent=self.before + seconds,
            peaks=self.evaluator.peaks,
        )


def tune(
    workloads: Iterable[Workload],
    target: Target,
    archive: Archive,
    limits: Limits | None = None,
    *,
    evaluator: Evaluator | None = None,
    listener: Listener | None = None,
) -> Tuned:
    """Tunes a suite within its limits, going on from whatever the archive holds. Raises TargetUnavailable, ArchiveError, SettingsError, and
    JudgeError when the device does not come back, ValueError for a mode that the target does not offer."""
    own, listener = evaluator or Evaluator(target), listener or Silent()
    try:
        suite = Suite(workloads, target, archive, own, limits or Limits())
        suite.search(listener)
        suite.fill_gaps(listener)
        suite.confirm(listener)
        return suite.result()
    finally:
        if evaluator is None:
            own.close()
