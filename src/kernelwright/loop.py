"""The loop: propose -> build -> verify -> time -> record -> learn. The whole of it is `optimize` below."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kernelwright import propose, rivals
from kernelwright.archive import Archive
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Job
from kernelwright.evaluate.profile import Profiler
from kernelwright.families import families_for
from kernelwright.learn import reward
from kernelwright.problems import resolve
from kernelwright.records import MODES, Candidate, Trial, Workload
from kernelwright.settings import settings
from kernelwright.targets import usable
from kernelwright.targets.target import Peaks, Target


class NothingToTry(ValueError):
    """No Family writes kernels for the Workload on the target; the message says why for each."""


@dataclass(frozen=True)
class Budget:
    """When the search ends, and what a final measurement costs."""

    trials: int = 64
    seconds: float = 90.0
    """Of search; confirming the finalists comes on top."""
    finalists: int = 3
    confirm_rounds: int = 25
    confirm_seconds: float = 5.0
    """For each timing mode."""


@dataclass(frozen=True)
class Run:
    """What one call of `optimize` did."""

    workload: Workload
    target: str
    session: str
    trials: tuple[Trial, ...]
    """Screens that count for this Workload on this device, earlier runs' as well if it was resumed, then this run's confirmations."""
    winner: Trial | None
    """The fastest verified candidate of our own, as confirmed; None if none is right."""
    mode: str
    """Timing mode of the headline."""
    seconds: float
    peaks: dict
    """The device's roofline, for reports: the fields of `targets.target.Peaks`."""
    proposer: dict = field(default_factory=dict)
    """What the proposer says of its work: calls of models and what they cost, tries and gains by proposer."""


SCREEN_TOLERANCE = 0.03
"""A screen ends when the ratio's interval is this narrow."""
SCREEN_ROUNDS = 5
SCREEN_SECONDS = 0.05
"""After three rounds and so long a screen ends as it is: rounds of slow rivals (10 ms for eager new-gelu on a CPU) are not worth more."""

CONFIRM_ATTEMPTS = 3
"""A screen looks at few rows and two rungs: when all finalists fail the whole ladder, the next best are tried."""

Progress = Callable[[Trial], None]


def headline_mode(target: str) -> str:
    """A GPU's kernels are judged on cold data, as they meet it in a model; a CPU's on warm data, since its caches hold these operands."""
    return "device-cold" if target.startswith("cuda") else "device-warm"


def optimize(
    problem: Workload | str,
    target: Target | str = "auto",
    archive: Archive | None = None,
    *,
    proposer: str = "evolve",
    budget: Budget | None = None,
    rival_names: Sequence[str] | None = None,
    seed: int = 0,
    resume: bool = True,
    progress: Progress = lambda trial: None,
    evaluator: Evaluator | None = None,
    extra: Sequence[Candidate] = (),
) -> Run:
    """Searches for the fastest verified kernel for one Workload. Every Trial is in the archive before the next begins, so an interrupted
    run goes on where it stopped. A screen that is faster than can be believed counts once a fresh process has shown the same
    (`learn.reward`).
    Raises NothingToTry, ProblemError, TargetUnavailable, ArchiveError, SettingsError.

    `problem` and `target` may be the texts that the command line takes; the default archive is the user's. `extra` are candidates to try
    first (a user's files); `evaluator` may be shared between calls to save the device's opening.
    """
    w = resolve(problem) if isinstance(problem, str) else problem
    target = usable(target) if isinstance(target, str) else target
    archive = Archive(settings().archive) if archive is None else archive  # an empty one is false
    budget = budget or Budget()
    started, session = time.monotonic(), uuid.uuid4().hex[:12]
    device, mode = target.facts(), headline_mode(target.name)
    families, refusals = families_for(w, device)
    if not families and not extra and propose.kind(proposer).needs_families:
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise NothingToTry(f"no family writes kernels for {w.name} on {target.name} ({reasons}); verify a kernel of your own instead")
    names = tuple(rival_names if rival_names is not None else rivals.names_for(w, target.name))
    anchor, own, searcher, profiler = names[:1], evaluator or Evaluator(target), None, None
    try:
        environment, peaks = own.environment, own.peaks
        history = [t for t in (archive.trials(workload=w) if resume else ()) if t.environment.comparable(environment)]
        trials, limit = reward.counted(history), reward.ceiling(history)
        deadline = time.monotonic() + budget.seconds
        context = propose.Context(archive, msgspec.convert(peaks, Peaks), deadline)
        searcher = propose.make(proposer, w, families, device, seed=seed, history=trials, context=context)
        screen = screen_job(w, target.name, anchor)
        profiler = Profiler(target.name) if searcher.reads_counters else None
        queue = [c for c in extra if c.id not in {t.candidate.id for t in trials}]
        while len(trials) < budget.trials and time.monotonic() < deadline:
            batch = queue or searcher.propose(min(8, budget.trials - len(trials)))
            queue = []
            if not batch:
                break
            for trial in own.evaluate(batch, screen, stage="screen", session=session):
                if profiler is not None and propose.score(trial) > max(map(propose.score, trials), default=0.0):
                    trial = trial.replace(sensors=trial.sensors | profiler.counters(trial))
                archive.append(trial)
                progress(trial)
                if (claimed := reward.reference(trial)) is not None and claimed.ratio > limit:
                    again = measured_again(own, trial, session, archive, progress)
                    trial, limit = reward.settle(trial, again), max(limit, reward.ceiling([again]))
                trials.append(trial)
                searcher.learn(trial)
        confirmed: list[Trial] = []
        for _ in range(CONFIRM_ATTEMPTS):
            failed = {t.candidate.id for t in confirmed}
            best = finalists([t for t in trials if t.candidate.id not in failed], budget.finalists)
            confirmed += confirm(own, best, w, names, budget, session, target.name, archive, progress)
            if not best or any(t.verdict.ok for t in confirmed if t.candidate.kind != "rival"):
                break
    finally:
        if searcher is not None:
            searcher.close()
        if evaluator is None:
            own.close()
    ours = [t for t in confirmed if t.candidate.kind != "rival" and t.verdict.ok]
    winner = min(ours, key=lambda t: t.median(mode), default=None)
    assert searcher is not None
    trials = [t for t in trials if t.stage == "screen"]
    said = searcher.summary() | ({"no counters": profiler.why} if profiler and profiler.why else {})
    return Run(w, target.name, session, (*trials, *confirmed), winner, mode, time.monotonic() - started, peaks, said)


def measured_again(own: Evaluator, trial: Trial, session: str, archive: Archive, progress: Progress) -> Trial:
    """A screen that claims too much to be believed, replayed in a fresh process."""
    own.fresh()
    again, *_ = own.evaluate([trial.candidate], replay_job(trial, own.target.name), stage="replay", session=session)
    archive.append(again)
    progress(again)
    return again


def replay_job(trial: Trial, target: str) -> Job:
    """The whole ladder, and the modes and rivals of the Trial: what is replayed counts as much as what was confirmed."""
    return Job(
        workload=trial.workload,
        rivals=tuple(dict.fromkeys(c.rival for c in trial.comparisons)) or ("eager",),
        rungs=ALL_RUNGS,
        modes=tuple(m for m in modes_for(target) if trial.timing(m)) or ("device-warm",),
        min_rounds=9,
        max_rounds=25,
        seconds=5.0,
        noise=True,
    )


def screen_job(w: Workload, target: str, anchor: tuple[str, ...]) -> Job:
    """What a candidate of the search goes through: enough to tell finalists from the rest, at tens of candidates a second."""
    return Job(
        workload=w,
        rivals=anchor,
        rungs=SCREEN_RUNGS,
        modes=(headline_mode(target),),
        min_rounds=3,
        max_rounds=SCREEN_ROUNDS,
        seconds=SCREEN_SECONDS,
        tolerance=SCREEN_TOLERANCE,
    )


def confirm(
    evaluator: Evaluator,
    best: Sequence[Trial],
    w: Workload,
    rival_names: Sequence[str],
    budget: Budget,
    session: str,
    target: str,
    archive: Archive,
    progress: Progress,
) -> Iterator[Trial]:
    """Measures the best of the search again, in a fresh process, on every rung and in every mode, beside all rivals: the best of many
    noisy samples is partly luck (the winner's curse), and only this measurement is reported."""
    evaluator.fresh()
    job = Job(
        workload=w,
        rivals=tuple(rival_names),
        rungs=ALL_RUNGS,
        modes=modes_for(target),
        min_rounds=9,
        max_rounds=budget.confirm_rounds,
        seconds=budget.confirm_seconds,
        noise=True,
    )
    built = list(evaluator.builder.builds([t.candidate for t in best]))
    for trial in evaluator.evaluate_built(built, job, stage="confirm", session=session):
        archive.append(trial)
        progress(trial)
        yield trial


def finalists(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The best verified Trials, one a Candidate."""
    by_candidate = {t.candidate.id: t for t in sorted(trials, key=propose.score) if t.verdict.ok}
    return sorted(by_candidate.values(), key=propose.score, reverse=True)[:count]


def modes_for(target: str) -> tuple[str, ...]:
    """Those that the target offers; the headline's first. Launches overlap with their predecessors from sm_90 on only."""
    first = headline_mode(target)
    able = target.startswith("cuda:sm_") and int(target.removeprefix("cuda:sm_")) >= 90
    return (first, *(m for m in MODES if m != first and (able or m != "device-chain")))


def asked_modes(asked: Iterable[str], target: str) -> tuple[str, ...]:
    """The modes asked for, device-cold before device-chain, which is read beside it. Raises ValueError for one that the target does not
    offer."""
    modes, offered = tuple(dict.fromkeys(asked)), modes_for(target)
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f"unknown timing mode {mode!r}; choose from {', '.join(offered)}")
        if mode not in offered:
            raise ValueError(
                f"{mode} times launches that overlap with their predecessors, which needs a GPU of sm_90 or newer; "
                f"{target} offers {', '.join(offered)}"
            )
    return ("device-cold", *(m for m in modes if m != "device-cold")) if "device-chain" in modes else modes
