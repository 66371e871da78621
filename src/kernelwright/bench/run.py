"""The run: one task after the other in a worker process, each under a watchdog; a task that fails ends nothing but itself.

Every result is on disk before the next task begins, so the same command goes on after Ctrl-C, a crash or the end of its minutes.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from kernelwright.bench import hercules
from kernelwright.bench.answers import Entrant
from kernelwright.bench.messages import LOADING, Broken, Doing, Done, Opened, Order, Prompt, Said
from kernelwright.bench.results import Answer, Facts, Fault, Result, Store, Task, asked_id
from kernelwright.evaluate.evaluator import JudgeError
from kernelwright.records import Environment
from kernelwright.settings import child_environment, settings, writable
from kernelwright.targets.processes import kill_group
from kernelwright.targets.target import Peaks, TargetUnavailable

OPEN_SECONDS = 240.0
LOADING_SECONDS = 300.0
"""Of importing a problem's file and making its module; then `Options.task_seconds` holds."""
BASELINES = ("torch.compile", "families", "reference")
"""Entrants that need no files: the compiled reference, the best kernel that our own families' search finds, and the reference's own text as
an answer, which should tie."""


@dataclass(frozen=True)
class Options:
    """How tasks are run."""

    rivals: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    rounds: int = 15
    seconds: float = 5.0
    task_seconds: float = 1800.0
    """The watchdog's patience with one step of a task: an answer with all its rivals, or the lint."""
    lint: bool = True
    operators: bool = True
    minutes: float = math.inf
    search_seconds: float = 60.0

    @property
    def asked(self) -> str:
        return asked_id([self.rivals, self.modes, self.rounds, self.seconds])


class WorkerDied(RuntimeError):
    """It hung or died; the message says during what."""


class Running:
    """A worker process. Use as a context manager."""

    def __init__(self, target: str, module: str = "kernelwright.bench.worker"):
        self._command = [sys.executable, "-m", module, target]
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self.environment: Environment | None = None
        self.peaks: Peaks | None = None

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Environment:
        """Raises TargetUnavailable, JudgeError."""
        if self._process is not None and self.environment is not None:
            return self.environment
        ours, theirs = socket.socketpair()
        log = writable(settings().home) / "bench-worker.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=child_environment({"OMP_WAIT_POLICY": "PASSIVE"}),
            )
        theirs.close()
        self._pipe = Connection(ours.detach())
        try:
            said = self._hear(OPEN_SECONDS)
        except WorkerDied as error:
            raise JudgeError(f"the worker did not start: {error}; its output is in {log}") from None
        if isinstance(said, Broken):
            self.stop()
            raise TargetUnavailable(said.message)
        assert isinstance(said, Opened)
        self.environment, self.peaks = said.environment, said.peaks
        return said.environment

    def ask(self, order: Order, seconds: float) -> Iterator[Facts | Result | Doing | Prompt]:
        """What the worker says of an order, each within the seconds. Raises WorkerDied, after which another is started for the next."""
        self.start()
        assert self._pipe is not None
        doing = "the start"
        try:
            self._pipe.send_bytes(msgspec.json.encode(order))
        except (BrokenPipeError, ConnectionResetError):
            self.stop()
            raise WorkerDied("the worker was gone") from None
        while True:
            try:
                said = self._hear(min(seconds, LOADING_SECONDS) if doing == LOADING else seconds)
            except WorkerDied as error:
                raise WorkerDied(f"{error} (during: {doing})") from None
            match said:
                case Done():
                    return
                case Broken(message=message):
                    self.stop()
                    raise WorkerDied(f"{message} (during: {doing})")
                case Doing(what=what):
                    doing = what
                    yield said
                case Facts() | Result() | Prompt():
                    yield said
                case Opened():
                    pass

    def _hear(self, seconds: float) -> Said:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(seconds):
                self.stop(patience=0.0)
                raise WorkerDied(f"nothing happened for {seconds:.0f} s")
            return msgspec.json.decode(self._pipe.recv_bytes(), type=Said)
        except (EOFError, ConnectionResetError):
            code = self.stop()
            raise WorkerDied(f"the worker ended with code {code}") from None

    def stop(self, patience: float = 5.0) -> int:
        """The judge that it started ends with it."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is None:
            return 0
        try:
            return process.wait(timeout=patience)  # an idle one ends when its pipe closes
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            return process.wait()


@dataclass(frozen=True)
class Progress:
    """After each result or step."""

    done: int
    total: int
    task: Task
    line: Facts | Result | None = None
    doing: str = ""


def run(
    tasks: Sequence[Task],
    entrants: Sequence[Entrant],
    store: Store,
    target: str,
    options: Options,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> bool:
    """Judges every answer that the store does not know yet. True when all is done, False when the minutes were over.
    Raises TargetUnavailable, JudgeError."""
    deadline = time.monotonic() + 60 * options.minutes
    with Running(target) as worker:
        environment = worker.start()
        todo = [(task, _left(task, entrants, store, options, environment)) for task in tasks]
        total = sum(max(1, len(answers)) for _, answers in todo)
        done = 0
        for task, answers in todo:
            facts = store.facts.get(task.workload.id if task.workload else task.key)
            wanted = facts is None or (options.lint and not facts.linted and not facts.task.skipped)
            if not answers and not wanted:
                done += 1
                continue
            if time.monotonic() > deadline:
                return False
            done += _one(task, answers, facts, store, worker, environment, options, progress, done, total)
    return True


def _left(task: Task, entrants: Sequence[Entrant], store: Store, options: Options, environment: Environment) -> list[Answer]:
    workload = task.workload.id if task.workload else ""
    found = [a for e in entrants for a in e.answers.get(task.key, ())]
    return [a for a in found if store.known((workload, a.entrant, str(a.sample), a.id, options.asked), environment) is None]


def _one(
    task: Task,
    answers: list[Answer],
    facts: Facts | None,
    store: Store,
    worker: Running,
    environment: Environment,
    options: Options,
    progress: Callable[[Progress], None],
    done: int,
    total: int,
) -> int:
    """Runs one task until each of its answers has a result; returns how many steps that was."""
    steps, left = 0, list(answers)
    while True:
        order = Order(
            task=task,
            answers=tuple(left),
            rivals=options.rivals,
            modes=options.modes,
            rounds=options.rounds,
            seconds=options.seconds,
            facts=facts,
            lint=options.lint,
            operators=options.operators,
            asked=options.asked,
            search_seconds=options.search_seconds,
        )
        try:
            for said in worker.ask(order, options.task_seconds):
                if isinstance(said, Doing):
                    progress(Progress(done + steps, total, task, doing=said.what))
                    continue
                if isinstance(said, Prompt):
                    continue
                store.append(said)
                if isinstance(said, Facts):
                    facts = said
                else:
                    left = [a for a in left if a.id != said.answer or a.sample != said.sample]
                    steps += 1
                progress(Progress(done + steps, total, task, said))
            return max(1, steps)
        except WorkerDied as error:
            if facts is not None and options.lint and not facts.linted:  # the problem is known to run: its lint alone is given up
                fault = Fault(rule="unusable", severity="error", text=f"the lint was given up: {error}")
                facts = facts.replace(faults=(*facts.faults, fault), linted=True)
                store.append(facts)
                continue
            if facts is None:  # before any answer was begun: it is the problem's fault, or the lint's
                why = f"it could not be looked into: {error}"
                facts = Facts(task=task.replace(skipped="time", why=why), workload=task.workload.id if task.workload else "", linted=True)
                store.append(facts)
                progress(Progress(done + steps, total, task, facts))
                guilty = left
            else:
                guilty = left[:1]
            for answer in guilty:
                result = _lost(order, answer, str(error), environment)
                store.append(result)
                steps += 1
                progress(Progress(done + steps, total, task, result))
            left = [a for a in left if a not in guilty]
            if not left:
                return max(1, steps)


def _lost(order: Order, answer: Answer, why: str, environment: Environment) -> Result:
    """An answer during which the worker hung or died. Its own process is watched more closely than that, by the judge: it is not blamed."""
    return order.result(answer, environment, status="skipped", skipped="time", evidence=f"it was given up: {why}")


def baseline(name: str, tasks: Sequence[Task], path: Path | None = None) -> Entrant:
    """An entrant of BASELINES, which answers every task that can run; or `expert`, CUDAHercules' own reference.cu of each task in the
    checkout. Raises ValueError for another name."""
    if name == "expert":
        return Entrant(name, _experts(tasks, path), "baseline")
    if name not in BASELINES:
        raise ValueError(f"no entrant {name!r}; choose from {', '.join(BASELINES)}, and expert for cudahercules")
    able = [t for t in tasks if name != "reference" or (t.workload is not None and t.workload.source)]
    return Entrant(name, {t.key: (Answer(entrant=name, task=t.key, kind=name),) for t in able}, "baseline")


def _experts(tasks: Sequence[Task], path: Path | None) -> dict[str, tuple[Answer, ...]]:
    if path is None or any(t.suite != hercules.SUITE for t in tasks):
        raise ValueError("the entrant expert is the reference.cu of CUDAHercules' tasks; use it with cudahercules --path CHECKOUT")
    root, found = path.resolve(), {}
    for task in tasks:
        file = root / "tasks" / task.key / hercules.REFERENCE
        file = file if file.is_file() else root / task.key / hercules.REFERENCE
        if task.workload is not None and file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            found[task.key] = (Answer(entrant="expert", task=task.key, text=text, suffix=".cu", origin=file.name, root=str(root)),)
    return found
