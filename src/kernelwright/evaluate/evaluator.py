"""The user's side of evaluation: builds candidates, hands Jobs to a judge process, turns what comes back into Trials.

The judge may die or hang; then the candidate it was working on gets the Verdict, another judge is started, and the next candidate
meets a fresh device. No result is lost and no innocent candidate is blamed.
"""

from __future__ import annotations

import datetime
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.jobs import Entry, Failure, Hello, Job, Message, Note, Reply, Result
from kernelwright.records import Build, Candidate, Environment, Origin, Outcome, Trial, Verdict
from kernelwright.settings import child_environment, settings, visible_gpu, writable
from kernelwright.targets.processes import kill_group
from kernelwright.targets.target import Target, TargetUnavailable

OPEN_SECONDS = 180.0
"""A judge imports torch and opens the device in 2 to 20 s; on a busy machine much slower."""
NOTE_SECONDS = 60.0
"""A judge that says nothing for so long, while it works on a candidate, hangs in it."""
RIVAL_SECONDS = 600.0
"""torch.compile with autotuning says nothing for minutes; nor does a Python candidate's compiler, whose time the judge itself limits."""


class JudgeError(RuntimeError):
    """The judge failed for a reason that is not a candidate's: ours, or the machine's."""


class Evaluator:
    """Evaluates candidates on one target. Use as a context manager."""

    def __init__(
        self,
        target: Target,
        *,
        builder: Builder | None = None,
        note_seconds: float = NOTE_SECONDS,
        rival_seconds: float = RIVAL_SECONDS,
        gpu: int | None = None,
    ):
        """`gpu`: the one that the judge opens, counted among those visible here; the first if None."""
        self.target = target
        self._gpu = gpu
        self.builder = builder or Builder(target)
        self._note_seconds, self._rival_seconds = note_seconds, rival_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._hello: Hello | None = None
        self.restarts = 0

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop()
        self.builder.__exit__()

    @property
    def environment(self) -> Environment:
        """Opens the device if need be. Raises TargetUnavailable."""
        return self._opened().environment

    @property
    def peaks(self) -> dict[str, Any]:
        """The device's `Peaks`, as plain data, for reports."""
        return msgspec.to_builtins(self._opened().peaks)

    def _opened(self) -> Hello:
        if self._hello is None:
            self._start()
        assert self._hello is not None
        return self._hello

    def fresh(self) -> None:
        """The next Job meets a new judge process: finalists are measured again where nothing of the search is left."""
        self._stop()

    def evaluate(self, candidates: Iterable[Candidate], job: Job, *, stage: str, session: str, beside: int = 1) -> Iterator[Trial]:
        """One Trial a candidate, in order; `job` gives Workload, rivals, rungs and modes. So many are measured `beside` each other in one
        Job: the rivals' rounds are a large part of what a screen costs, and the first decides how many there are."""
        waiting = []
        for built in self.builder.builds(candidates):
            waiting.append(built)
            if len(waiting) == beside:
                yield from self.evaluate_built(waiting, job, stage=stage, session=session)
                waiting = []
        if waiting:
            yield from self.evaluate_built(waiting, job, stage=stage, session=session)

    def evaluate_built(
        self, built: list[tuple[Candidate, Build | Verdict | None]], job: Job, *, stage: str, session: str
    ) -> Iterator[Trial]:
        """Trials of candidates measured together, interleaved in one Job; then those of the rivals (stages confirm, replay)."""
        started = time.monotonic()
        environment = self.environment
        entries = tuple(Entry(candidate=c, build=b) for c, b in built if not isinstance(b, Verdict))
        found: dict[str, Result] = {}
        rivals: dict[str, Result] = {}
        sensors: dict[str, float] = {}
        if entries or not built:
            found, rivals, sensors = self._run(job.replace(entries=entries))
        rival_verdicts = {name: r.verdict for name, r in rivals.items()}
        seconds = (time.monotonic() - started) / max(1, len(built))

        def trial(candidate: Candidate, result: Result, build: Build | None, **extra: object) -> Trial:
            return Trial(
                workload=job.workload,
                candidate=candidate,
                verdict=result.verdict,
                environment=environment,
                build=build,
                timings=result.timings,
                comparisons=result.comparisons,
                scores=result.scores,
                sensors=sensors,
                stage=stage,  # pyright: ignore[reportArgumentType]
                session=session,
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
                seconds=seconds,
                **extra,  # pyright: ignore[reportArgumentType]
            )

        for candidate, build in built:
            if isinstance(build, Verdict):
                yield trial(candidate, Result(label=candidate.id, verdict=build), None)
            else:
                yield trial(candidate, found[candidate.id], build, rivals=rival_verdicts)
        if stage in ("confirm", "replay"):
            for name, result in rivals.items():
                if result.verdict.ok and not result.timings:
                    continue  # no candidate was left to time it against
                yield trial(rival_candidate(name), result, None)

    def _run(self, job: Job) -> tuple[dict[str, Result], dict[str, Result], dict[str, float]]:
        """Repeats the Job without a candidate that took the judge down, until it comes back."""
        found: dict[str, Result] = {}
        failed: dict[str, Result] = {}
        while True:
            answer, label = self._ask(job)
            if isinstance(answer, Reply):
                found |= {r.label: r for r in answer.results}
                return found, failed | {r.label: r for r in answer.rivals}, answer.sensors
            blamed = next((e for e in job.entries if e.candidate.id == label), None)
            if blamed is not None:
                found[blamed.candidate.id] = Result(label=blamed.candidate.id, verdict=answer)
                job = job.replace(entries=tuple(e for e in job.entries if e is not blamed))
            elif label in job.rivals:
                failed[label] = Result(label=label, verdict=answer)
                job = job.replace(rivals=tuple(r for r in job.rivals if r != label))
            else:
                raise JudgeError(f"the judge process died before it began: {answer.evidence}")
            if not job.entries and (found or not job.rivals):
                return found, failed, {}

    def _ask(self, job: Job) -> tuple[Reply | Verdict, str]:
        """The Reply; or the Verdict of whoever took the judge down, with the label of the last Note."""
        if self._process is None:
            self._start()
        assert self._pipe is not None
        label, doing = "", "start"
        patient = {*job.rivals, *(e.candidate.id for e in job.entries if e.candidate.kind == "python")}
        try:
            self._pipe.send_bytes(msgspec.json.encode(job))
            while True:
                patience = self._rival_seconds if label in patient else self._note_seconds
                if not self._pipe.poll(patience):
                    self._stop()
                    self.restarts += 1
                    return Verdict(outcome=Outcome.TIMEOUT, evidence=f"nothing happened for {patience:.0f} s during: {doing}"), label
                message = msgspec.json.decode(self._pipe.recv_bytes(), type=Message)
                match message:
                    case Note():
                        label, doing = message.label, message.doing
                    case Reply():
                        return message, ""
                    case Failure(outcome=outcome):
                        self._stop()
                        if outcome is None:
                            raise JudgeError(f"{message.message}; the device process's output is in {self._log}")
                        self.restarts += 1
                        return Verdict(outcome=outcome, evidence=f"{message.message} (during: {doing})"), label
        except msgspec.MsgspecError:
            self._stop()
            self.restarts += 1
            return Verdict(outcome=Outcome.CHEAT, evidence=f"somebody else wrote into the judge's pipe during: {doing}"), label
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self._stop()
            self.restarts += 1
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return Verdict(outcome=Outcome.CRASH, evidence=f"the device process ended with {how} during: {doing}"), label

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "kernelwright.evaluate.judge", self.target.name, str(theirs.fileno())]
        # compilers and autotuners talk; what they say is for whoever looks into a failure
        self._log = writable(settings().home) / "judge.log"
        output = self._log.open("ab")
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=_environment(self.target.name, self._gpu),
        )
        output.close()
        theirs.close()
        self._pipe = Connection(ours.detach())
        try:
            if not self._pipe.poll(OPEN_SECONDS):
                self._stop()
                raise JudgeError(f"the device process did not open {self.target.name} within {OPEN_SECONDS:.0f} s")
            message = msgspec.json.decode(self._pipe.recv_bytes(), type=Message)
        except (EOFError, ConnectionResetError):
            code = self._stop()
            raise JudgeError(
                f"the device process ended with code {code} before {self.target.name} was open; its output is in {self._log}"
            ) from None
        if isinstance(message, Failure):
            self._stop()
            raise TargetUnavailable(message.message)
        assert isinstance(message, Hello)
        self._hello = message

    def _stop(self) -> int:
        """Ends the judge with all that it started; returns its exit code."""
        if self._process is None:
            return 0
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        process, self._process = self._process, None
        try:
            # an idle judge ends by itself when its pipe closes; one that is stuck is killed
            code = process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            code = process.wait()
        return code


def _environment(target: str, gpu: int | None) -> dict[str, str]:
    """On the CPU idle OpenMP threads must sleep and compiling must not go on in the background, or they take the core from whoever is
    clocked next."""
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    chosen = {} if gpu is None or target == "cpu" else {"CUDA_VISIBLE_DEVICES": visible_gpu(gpu)}
    return child_environment(quiet if target == "cpu" else chosen)


def rival_candidate(name: str) -> Candidate:
    """A rival as a Candidate: vendor kernels are candidates too."""
    return Candidate(kind="rival", source=name, origin=Origin(kind="rival", name=name))
