"""Every kernel of a Pack proved once more, from the files that ship: `kernelwright pack verify`.

    ladder        all rungs on every Workload that the kernel serves, tails included
    random        rungs exact, normal and repeat on shapes drawn from all that the kernel's plan accepts
    machine code  compiled again: no spills, no local memory, the expected matrix instructions (CUDA)
    sanitizers    memcheck and racecheck (CUDA, where compute-sanitizer is installed)

What could not be run is said and counted as not run, never as passed.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernelwright import __version__
from kernelwright.evaluate import machine_code, sanitized
from kernelwright.evaluate.drawn import drawn_shapes
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.problems import problem_of
from kernelwright.records import Build, Environment, Outcome, Record, Workload
from kernelwright.runtime.pack import Entry, Pack
from kernelwright.targets.target import Target, TargetUnavailable

FILE = "verification.json"
"""In the Pack's folder."""
RANDOM_RUNGS = ("exact", "normal", "repeat")
"""With a rung beyond a screen's, every element is compared."""
SANITIZED_RANDOM = 4
"""Random shapes under each tool, beside the smallest Workload that the kernel serves."""
SANITIZED_ELEMENTS = 2**22
"""A served Workload with more is too slow under the tools."""
SANITIZERS = max(1, min(12, (os.cpu_count() or 2) // 2 - 1))
"""Processes under a tool at one time. One takes about 8 s, most of it to start."""
MOST_FAILURES = 5
"""A kernel that has failed so often is not run any further: a hang costs a minute each time."""


@dataclass(frozen=True)
class Extent:
    """How much is run."""

    workloads: int | None = None
    """Most Workloads of each kernel, the smallest first; None: all that it serves."""
    random: int = 100
    """Random shapes of each kernel."""
    seed: int = 0
    sanitize: bool = True


class Failure(Record, frozen=True, kw_only=True):
    where: str
    """A Workload, or the tool that found it."""
    outcome: str
    evidence: str


class Tool(Record, frozen=True, kw_only=True):
    """One kernel under one tool."""

    name: str
    outcome: str = ""
    """Of its Verdict; empty if it was not run."""
    evidence: str = ""
    """Also why it was not run."""


class Kernel(Record, frozen=True, kw_only=True):
    """All that one kernel went through."""

    candidate: str
    name: str
    config: dict[str, int | str | bool | float] = {}
    serves: int
    """Workloads of the Pack."""
    workloads: int
    """Those among them on which it was sent up the whole ladder."""
    cases: int
    """Checks made, on served and random shapes."""
    tails: int
    """Shapes of the `shapes` rung that ran, over all Workloads."""
    refused: int
    """Those that its plan excludes."""
    random: int
    """Random shapes that ran; fewer than asked for where the plan accepts no more, or the kernel failed too often."""
    tools: tuple[Tool, ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    """In the judge: the tools' processes run beside it."""


class Verification(Record, frozen=True, kw_only=True):
    """`verification.json`."""

    manifest: str
    """Checksum of the manifest: a Pack that was made anew is not this one."""
    kernelwright: str = __version__
    created: str
    """UTC, ISO 8601."""
    environment: Environment
    random: int
    seed: int
    limit: int | None
    tools: dict[str, str]
    """Version of each tool, or why it was not run."""
    rivals: int
    """Workloads that a rival serves: there is no kernel of ours to verify."""
    kernels: tuple[Kernel, ...]

    @property
    def failed(self) -> tuple[Kernel, ...]:
        return tuple(k for k in self.kernels if k.failures)

    @property
    def not_run(self) -> int:
        """Runs of a tool that did not take place."""
        return sum(not tool.outcome for k in self.kernels for tool in k.tools)


def verify_pack(
    pack: Pack, target: Target, evaluator: Evaluator, extent: Extent | None = None, told: Callable[[Kernel], None] = lambda kernel: None
) -> Verification:
    """Raises PackError when the Pack is for another device, TargetUnavailable when this one cannot be opened."""
    extent = extent or Extent()
    environment = evaluator.environment
    pack.check(environment.target, environment.device)
    tool_path, versions = _tools(target, extent)
    kernels: list[Kernel] = []
    stop, waiting = threading.Event(), deque[_Audit]()
    pool = ThreadPoolExecutor(SANITIZERS)  # the tools' processes work while the judge goes on to the next kernels
    try:
        for entries in pack.kernels().values():
            waiting.append(audit := _Audit(pack, entries, target, evaluator, extent, tool_path, versions))
            audit.start(pool, stop)
            while waiting and waiting[0].done():
                kernels.append(waiting.popleft().result())
                told(kernels[-1])
        for audit in waiting:
            kernels.append(audit.result())
            told(kernels[-1])
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    found = Verification(
        manifest=pack.manifest.checksum,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment,
        random=extent.random,
        seed=extent.seed,
        limit=extent.workloads,
        tools=versions,
        rivals=sum(bool(e.rival) for e in pack.entries),
        kernels=tuple(kernels),
    )
    partly = pack.path / f"{FILE}.new"
    partly.write_bytes(msgspec.json.format(found.to_json().encode(), indent=1) + b"\n")
    partly.rename(pack.path / FILE)
    return found


def verification(pack: Pack) -> Verification | None:
    """What `verify_pack` left in the Pack; None where there is nothing, or it is of another manifest."""
    try:
        found = Verification.from_json((pack.path / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if found.manifest == pack.manifest.checksum else None


def _tools(target: Target, extent: Extent) -> tuple[str | None, dict[str, str]]:
    """Path of the sanitizer if it is to be run, and what is said of each tool."""
    if target.kind != "cuda":
        return None, {tool: "not run: it is for CUDA kernels" for tool in sanitized.TOOLS}
    if not extent.sanitize:
        return None, {tool: "not run: it was not asked for" for tool in sanitized.TOOLS}
    if (path := sanitized.sanitizer()) is None:
        why = "not run: compute-sanitizer is neither on PATH nor in the CUDA toolkit's bin folder"
        return None, {tool: why for tool in sanitized.TOOLS}
    try:
        version = f"compute-sanitizer {sanitized.sanitizer_version(path)}"
    except OSError as error:
        return None, {tool: f"not run: {error}" for tool in sanitized.TOOLS}
    return path, {tool: version for tool in sanitized.TOOLS}


class _Audit:
    """One kernel on its way."""

    def __init__(
        self,
        pack: Pack,
        entries: Sequence[Entry],
        target: Target,
        evaluator: Evaluator,
        extent: Extent,
        tool_path: str | None,
        versions: dict[str, str],
    ):
        self.entries, self.target, self.evaluator, self.extent = entries, target, evaluator, extent
        self.tool_path, self.versions = tool_path, versions
        self.candidate, self.buildable = pack.candidate(entries[0]), pack.buildable(entries[0])
        self.artifact = pack.artifact(entries[0])
        self.build = _shipped(self.artifact, pack)
        self.served = sorted((e.workload for e in entries), key=_elements)
        self.cases = self.tails = self.refused = 0
        self.failures: list[Failure] = []

    def start(self, pool: Executor, stop: threading.Event) -> None:
        """All but the sanitizers, which go on in the pool."""
        started = time.monotonic()
        self.climbed = sum(self._judge(w, ALL_RUNGS) for w in self.served[: self.extent.workloads])
        drawn = drawn_shapes(self.candidate, self.served, self.extent.random, self.extent.seed, self.target.facts().sms)
        self.random = sum(self._judge(w, RANDOM_RUNGS) for w in drawn)
        self.tools = self._machine_code()
        self.sanitizing = self._sanitizers(drawn[:SANITIZED_RANDOM], pool, stop)
        self.seconds = time.monotonic() - started

    def done(self) -> bool:
        return all(isinstance(found, Tool) or found.done() for found in self.sanitizing)

    def result(self) -> Kernel:
        """Waits for the sanitizers."""
        tools = (*self.tools, *(found if isinstance(found, Tool) else found.result() for found in self.sanitizing))
        self.failures += [Failure(where=t.name, outcome=t.outcome, evidence=t.evidence) for t in tools if t.outcome not in ("", Outcome.OK)]
        return Kernel(
            candidate=self.candidate.id,
            name=self.candidate.origin.name,
            config=self.candidate.origin.config,
            serves=len(self.entries),
            workloads=self.climbed,
            cases=self.cases,
            tails=self.tails,
            refused=self.refused,
            random=self.random,
            tools=tools,
            failures=tuple(self.failures),
            seconds=round(self.seconds, 2),
        )

    def _judge(self, w: Workload, rungs: tuple[str, ...]) -> bool:
        """In the judge, as every candidate: what the kernel does there is a Verdict, a hang a TIMEOUT. False if it was not run."""
        if len(self.failures) >= MOST_FAILURES:
            return False
        try:
            job = Job(workload=w, rungs=rungs)
            (trial,) = self.evaluator.evaluate_built([(self.candidate, self.build)], job, stage="verify", session="")
        except JudgeError as error:
            self.failures.append(Failure(where=w.name, outcome="NOT_RUN", evidence=str(error)))
            return False
        checks = trial.verdict.checks
        self.cases += len(checks)
        refused = sum(c.rung == "shapes" and c.note.startswith("refused") for c in checks)
        self.refused += refused
        self.tails += sum(c.rung == "shapes" for c in checks) - refused
        if not trial.verdict.ok:
            self.failures.append(Failure(where=w.name, outcome=trial.verdict.outcome, evidence=trial.verdict.evidence))
        return True

    def _machine_code(self) -> tuple[Tool, ...]:
        if self.candidate.kind != "cuda" or self.artifact is None:
            return ()
        try:
            ((_, built),) = self.evaluator.builder.builds([self.buildable])
            found = machine_code.inspect(self.candidate, built, self.artifact)
        except (TargetUnavailable, ValueError) as error:
            return (Tool(name="machine code", evidence=f"not run: {error}"),)
        if found.faults:
            return (Tool(name="machine code", outcome=Outcome.COMPILE_ERROR, evidence="; ".join(found.faults)),)
        return (Tool(name="machine code", outcome=Outcome.OK, evidence=f"{found.registers} registers, no spills, no local memory"),)

    def _sanitizers(self, drawn: Sequence[Workload], pool: Executor, stop: threading.Event) -> tuple[Tool | Future[Tool], ...]:
        if self.tool_path is None or self.build is None:
            versions = self.versions if self.candidate.kind == "cuda" else {}
            return tuple(Tool(name=tool, evidence=said) for tool, said in versions.items())
        if len(self.failures) >= MOST_FAILURES:
            return tuple(Tool(name=tool, evidence="not run: the kernel has failed too often") for tool in sanitized.TOOLS)
        smallest = [w for w in self.served[:1] if _elements(w) <= SANITIZED_ELEMENTS]
        if not (shapes := (*smallest, *drawn)):
            why = "not run: the kernel serves no shape that is small enough"
            return tuple(Tool(name=tool, evidence=why) for tool in sanitized.TOOLS)
        request = sanitized.Request(target=self.target.name, candidate=self.candidate, build=self.build, workloads=shapes)
        path = self.tool_path

        def run(tool: str) -> Tool:
            try:
                verdict = sanitized.sanitize(path, tool, request, stop=stop)
            except OSError as error:
                return Tool(name=tool, evidence=f"not run: {error}")
            return Tool(name=tool, outcome=verdict.outcome, evidence=verdict.evidence)

        return tuple(pool.submit(run, tool) for tool in sanitized.TOOLS)


def _shipped(artifact: Path | None, pack: Pack) -> Build | None:
    """The Build as it lies in the Pack; None where nothing is compiled."""
    if artifact is None:
        return None
    made = pack.manifest.environment
    return Build(key=artifact.stem, artifact=str(artifact), compiler=made.versions.get("compiler", ""), arch=made.target)


def _elements(w: Workload) -> int:
    return sum(spec.numel for spec in problem_of(w).tensors(w))
