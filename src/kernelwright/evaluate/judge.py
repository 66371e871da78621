"""The judge: a process that owns the device, verifies candidates and clocks them. `python -m kernelwright.evaluate.judge TARGET FD`.

It may be taken down by a candidate at any time; `evaluate.evaluator` starts another. It reads Jobs from its pipe, answers with Notes
(what it is
doing, so that the parent knows whom to blame when it dies) and one Reply for each Job.
"""

from __future__ import annotations

import os
import statistics
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import msgspec
import torch

from kernelwright import rivals as rivals_package
from kernelwright.evaluate.buffers import Buffers, Shape
from kernelwright.evaluate.jobs import SCREEN_RUNGS, Entry, Failure, Hello, Job, Message, Note, Reply, Result
from kernelwright.evaluate.timing import Entrant, Limits, measure
from kernelwright.evaluate.verify import Climber, Ladder
from kernelwright.problems import problem_of
from kernelwright.problems.problem import Tensors
from kernelwright.records import DTYPES, INEXACT, Candidate, Check, Comparison, Outcome, Timing, Verdict, Workload
from kernelwright.targets import usable
from kernelwright.targets.processes import die_with_parent
from kernelwright.targets.python_module import match_precision
from kernelwright.targets.target import CandidateFault, Contender, Device, DeviceLost, TargetUnavailable


@dataclass
class _State:
    """One contender on its way through a Job."""

    label: str
    contender: Contender | None = None
    checks: list[Check] = field(default_factory=list)
    fault: CandidateFault | None = None
    """What ended it, in the ladder or later."""
    timings: list[Timing] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)


class Bench:
    """A Workload's buffers with its rivals loaded: kept from Job to Job while Workload, rivals and sets stay the same."""

    def __init__(self, device: Device, w: Workload, sets: int, sms: int):
        self.device, self.w, self.sets, self.sms = device, w, sets, sms
        self.problem = problem_of(w)
        self.rng = torch.Generator(device=device.torch_device)
        self.reseed()
        self.buffers = self.make_buffers(w, Shape(), sets)
        self.rivals: dict[str, _State] = {}
        self.inputs: Tensors | None = None
        """Drawn once, for warming up; every timed round draws its own."""

    def reseed(self) -> None:
        """PyTorch's own generators too, which begin alike in every process: rows that are looked at are drawn from them."""
        self.rng.manual_seed(int.from_bytes(os.urandom(7), "big"))
        torch.manual_seed(int.from_bytes(os.urandom(7), "big"))

    def make_buffers(self, w: Workload, shape: Shape, sets: int = 1) -> Buffers:
        return Buffers(self.device, problem_of(w), w, sets=sets, shape=shape, sms=self.sms)

    def fill(self) -> None:
        """Puts some inputs into every set. Nothing may run on buffers without: poison is no index into anything."""
        if self.inputs is None:
            normal = next(c for c in self.problem.cases(self.w) if c.rung == "normal")
            self.inputs = self.problem.generate(self.w, normal, self.rng, self.device.torch_device)
        for index in range(len(self.buffers)):
            self.buffers.fill(self.inputs, index)

    def rival(self, name: str, note: Callable[[str], None]) -> _State:
        if name not in self.rivals:
            state = self.rivals[name] = _State(name)
            note("prepare")
            self.fill()  # a rival's set-up may run or tune itself
            try:
                runs, setup = rivals_package.load(name, self.w, self.buffers.bounds)
                state.contender = self.device.load_trusted(runs, setup, self.buffers.bounds)
                if name in INEXACT:
                    state.checks.append(
                        Check(rung="inexact", case=name, passed=True, note="computes something else: not held against the reference")
                    )
                else:
                    self.verify([(state, None, note)], SCREEN_RUNGS)
            except DeviceLost:
                raise
            except CandidateFault as fault:
                state.fault = fault
        return self.rivals[name]

    def verify(self, entrants: Sequence[tuple[_State, Entry | None, Callable[[str], None]]], rungs: tuple[str, ...]) -> None:
        """Loads candidates, which come with their Entry, and sends all up the ladder together. Faults are kept in the states."""
        climbers: list[tuple[_State, Climber]] = []
        for state, entry, note in entrants:
            load = partial(self._load, entry)
            state.checks += _hints(entry)
            try:
                if state.contender is None:
                    note("load")
                    state.contender = load(self.w, self.buffers)
                climbers.append((state, Climber(state.contender, load, note, state.checks)))
            except DeviceLost:
                raise
            except CandidateFault as fault:
                state.fault = fault
        ladder = Ladder(self.problem, self.rng, self.device.torch_device, lambda w, shape: self.make_buffers(w, shape))
        ladder.run(self.w, self.buffers, [climber for _, climber in climbers], rungs)
        for state, climber in climbers:
            state.fault = climber.fault

    def _load(self, entry: Entry | None, w: Workload, buffers: Buffers) -> Contender:
        assert entry is not None, "a rival is loaded with its Bench and climbs no rung that loads it for other shapes"
        try:
            return self.device.load(entry.candidate, entry.build, w, buffers.bounds)
        finally:
            self.reseed()  # a forked contender holds a copy of the generators: they must not tell what is drawn next

    def close(self) -> None:
        for state in self.rivals.values():
            if state.contender is not None:
                state.contender.close()


def _hints(entry: Entry | None) -> list[Check]:
    """What a Python candidate's text shows; it decides nothing."""
    if entry is None or entry.candidate.kind != "python":
        return []
    from kernelwright.targets.python_module import library_calls

    return [
        Check(
            rung="hint", case="library calls", passed=True, note=library_calls(entry.candidate.source) or "calls nothing of torch by name"
        )
    ]


class Judge:
    def __init__(self, device: Device, sms: int, send: Callable[[Message], None]):
        self.device, self.sms, self.send = device, sms, send
        self.bench: Bench | None = None
        self.peaks = device.peaks()

    def run(self, job: Job) -> Reply:
        bench = self._bench_for(job)
        rivals = [bench.rival(name, self._noter(name)) for name in job.rivals]
        states = self._verified(bench, job)
        try:
            before = self.device.sensors() if job.modes else {}
            timed = [self._time(bench, job, mode, states, rivals) for mode in job.modes]
            after = self.device.sensors() if job.modes else {}
            sensors = {k: (v + after[k]) / 2 for k, v in before.items() if k in after}
            results = tuple(self._result(s, timed=any(timed)) for s in states)
            return Reply(results=results, rivals=tuple(self._result(s, timed=any(timed)) for s in rivals), sensors=sensors)
        finally:
            for state in states:
                if state.contender is not None:
                    state.contender.close()
            for state in rivals:
                state.timings, state.comparisons, state.scores = [], [], {}

    def _noter(self, label: str) -> Callable[[str], None]:
        return lambda doing: self.send(Note(label=label, doing=doing))

    def _bench_for(self, job: Job) -> Bench:
        w = job.workload
        problem = problem_of(w)
        # no more than a contender must touch: beside a compressed weight lies a dense one, which its rivals read instead
        every = sum(s.numel * DTYPES[s.dtype] for s in problem.tensors(w))
        sets = self.device.sets(min(every, int(problem.cost(w).bytes)), job.modes)
        if self.bench is None or self.bench.w != w or self.bench.sets != sets:
            if self.bench is not None:
                self.bench.close()
            self.bench = None  # frees the buffers before the next are made
            self.bench = Bench(self.device, w, sets, self.sms)
        return self.bench

    def _verified(self, bench: Bench, job: Job) -> list[_State]:
        states: list[_State] = []
        climbing: list[tuple[_State, Entry, Callable[[str], None]]] = []
        for entry in job.entries:
            note = self._noter(entry.candidate.id)
            if entry.candidate.kind == "rival":
                states.append(self._as_candidate(bench, entry.candidate, note))
                continue
            states.append(_State(entry.candidate.id))
            climbing.append((states[-1], entry, note))
            if not job.together:
                bench.verify(climbing, job.rungs)
                climbing = []
        if climbing:
            bench.verify(climbing, job.rungs)
        return states

    def _as_candidate(self, bench: Bench, candidate: Candidate, note: Callable[[str], None]) -> _State:
        """A vendor's kernel entered as a candidate: the same contender under the candidate's id."""
        if candidate.source in INEXACT:
            fault = CandidateFault(Outcome.REFUSED, "it computes something else than the Workload asks for: it is a rival alone")
            return _State(candidate.id, fault=fault)
        state = bench.rival(candidate.source, note)
        return _State(candidate.id, state.contender, state.checks, state.fault)

    def _time(self, bench: Bench, job: Job, mode: str, states: list[_State], rivals: list[_State]) -> bool:
        """False when no candidate is left to be timed. In mode device-chain those without dependent launches have nothing to add to their
        device-cold."""
        entrants, by_label = [], {}
        for state, trusted in [*((s, False) for s in states), *((s, True) for s in rivals)]:
            if trusted and mode.startswith("device") and state.label in rivals_package.HOST_ONLY:
                continue
            if mode == "device-chain" and not trusted and not (state.contender and state.contender.dependent):
                continue
            if state.fault is None and state.contender is not None:
                entrants.append(Entrant(state.label, state.contender, trusted, exact=state.label not in INEXACT))
                by_label[state.label] = state
        if (states or mode == "device-chain") and all(e.trusted for e in entrants):
            return False
        bench.fill()
        limits = Limits(job.min_rounds, job.max_rounds, job.seconds, job.tolerance, job.noise)
        timings, comparisons = measure(
            bench.problem,
            job.workload,
            bench.buffers,
            entrants,
            mode,
            limits,
            self.peaks,
            bench.rng,
            self.device.torch_device,
            lambda label, doing: self.send(Note(label=label, doing=doing)),
        )
        for e in entrants:
            state = by_label[e.label]
            if isinstance(e.fault, DeviceLost):
                raise e.fault
            if e.fault is not None:
                state.fault = e.fault
                state.checks.append(Check(rung="after-timing", case=mode, passed=False, note=e.fault.evidence))
                continue
            state.checks.append(Check(rung="after-timing", case=mode, passed=True, note=f"{len(e.samples)} rounds"))
            if e.scores and bench.problem.score:
                state.scores[bench.problem.score] = statistics.median(e.scores)
            if e.label in timings:
                state.timings.append(timings[e.label])
            state.comparisons += [c for (label, _), c in comparisons.items() if label == e.label]
        return True

    def _result(self, s: _State, *, timed: bool) -> Result:
        checks = tuple(s.checks)
        if s.fault is not None:
            return Result(label=s.label, verdict=Verdict(outcome=s.fault.outcome, evidence=s.fault.evidence, checks=checks))
        if timed and not s.timings:
            evidence = "right, but every sample was disturbed by other load on this machine; run it again when the machine is idle"
            return Result(label=s.label, verdict=Verdict(outcome=Outcome.NOISY, evidence=evidence, checks=checks))
        verdict = Verdict(outcome=Outcome.OK, evidence=f"{sum(c.passed for c in checks)} checks passed", checks=checks)
        return Result(label=s.label, verdict=verdict, timings=tuple(s.timings), comparisons=tuple(s.comparisons), scores=s.scores)


def main(target_name: str, fd: int) -> int:
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    die_with_parent()
    pipe = Connection(fd)

    def send(message: Message) -> None:
        pipe.send_bytes(msgspec.json.encode(message))

    try:
        match_precision()
        target = usable(target_name)
        device = target.open()
        judge = Judge(device, target.facts().sms, send)
        send(Hello(environment=device.environment(), peaks=judge.peaks))
    except TargetUnavailable as error:
        send(Failure(message=str(error)))
        return 1
    job: Job | None = None
    while True:
        try:
            job = msgspec.json.decode(pipe.recv_bytes(), type=Job)
            send(judge.run(job))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            break  # the user's process has ended, or has been interrupted: nobody waits for an answer
        except DeviceLost as fault:
            # the device's state is gone: say whose fault it was, and let the parent open it afresh
            traceback.print_exc()
            send(Failure(message=fault.evidence, outcome=fault.outcome))
            return 1
        except torch.OutOfMemoryError as error:
            traceback.print_exc()
            greedy = next((e.candidate.id for e in (job.entries if job else ()) if e.candidate.kind == "python"), None)
            if greedy is not None:  # its process takes what it likes of the GPU's memory, and the judge may notice at any time
                send(Note(label=greedy, doing="work beside its process"))
            left = "" if greedy is None else " beside a Python candidate's process"
            send(Failure(message=f"the judge ran out of GPU memory{left}: {error}", outcome=Outcome.OUT_OF_MEMORY if greedy else None))
            return 1
        except MemoryError as error:
            send(Failure(message=f"the device process ran out of memory; try a smaller shape ({error})"))
            return 1
        except Exception as error:  # ours: report it with its traceback on stderr, the parent stops
            traceback.print_exc()
            send(Failure(message=f"{type(error).__name__}: {error}"))
            return 1
    if judge.bench is not None:
        judge.bench.close()
    device.close()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # PyTorch takes 0.15 s to take itself down
