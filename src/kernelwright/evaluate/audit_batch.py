"""A batch of a Pack's kernels: sent up the ladder, their machine code looked at, run under the sanitizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from kernelwright.evaluate import machine_code, sanitized
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.evaluate.verification import Failure, Kernel, Tool
from kernelwright.evaluate.watched import Request, Watched
from kernelwright.problems import problem_of
from kernelwright.records import Build, Candidate, Outcome, Verdict, Workload
from kernelwright.runtime.pack import Entry, Pack
from kernelwright.targets.sass import sass_mix
from kernelwright.targets.target import Target, TargetUnavailable

RANDOM_RUNGS = ("exact", "normal", "repeat")
"""With a rung beyond a screen's, every element is compared."""
SANITIZED_RANDOM = 4
"""Random shapes under each tool, beside the smallest Workload that the kernel serves."""
SANITIZED_ELEMENTS = 2**22
"""A served Workload with more is too slow under the tools."""
MOST_FAILURES = 5
"""A kernel that has failed so often is not run any further: a hang costs a minute each time."""


class Audit:
    """One kernel on its way. `limit`: most Workloads, the smallest first."""

    def __init__(self, pack: Pack, entries: Sequence[Entry], limit: int | None = None):
        self.entries = entries
        self.candidate, self.buildable = pack.candidate(entries[0]), pack.buildable(entries[0])
        self.artifact = pack.artifact(entries[0])
        self.build = _shipped(self.artifact, pack)
        self.served = sorted((e.workload for e in entries), key=_elements)[:limit]
        self.drawn: Sequence[Workload] = ()
        """Random shapes."""
        self.climbed = self.random = self.cases = self.tails = self.refused = 0
        self.tails_met: set[tuple[Workload, ...]] = set()
        self.failures: list[Failure] = []
        self.seconds = 0.0
        self.not_run: list[Tool] = []
        self.pending: list[tuple[Future[list[Tool]], int]] = []
        """Runs of tools, and the place of this kernel among their results."""

    @property
    def name(self) -> str:
        return f"{self.candidate.origin.name}/{self.candidate.id[:8]}"

    @property
    def alike(self) -> object:
        """Kernels of which this is equal can do the same shapes, and one filter of the tools fits them."""
        plan = self.candidate.plan
        kinds = frozenset(e.workload.replace(axes={}) for e in self.entries)
        return kinds, plan.requires if plan else (), tuple(launch.kernel for launch in plan.launches) if plan else ()

    @property
    def given_up(self) -> bool:
        return len(self.failures) >= MOST_FAILURES

    def count(self, w: Workload, verdict: Verdict, seconds: float) -> None:
        self.seconds += seconds
        self.cases += len(verdict.checks)
        refused = sum(c.rung == "shapes" and c.note.startswith("refused") for c in verdict.checks)
        self.refused += refused
        self.tails += sum(c.rung == "shapes" for c in verdict.checks) - refused
        if not verdict.ok:
            self.failures.append(Failure(where=w.name, outcome=verdict.outcome, evidence=verdict.evidence))

    def done(self) -> bool:
        return all(future.done() for future, _ in self.pending)

    def result(self) -> Kernel:
        """Waits for the tools."""
        tools = (*(future.result()[place] for future, place in self.pending), *self.not_run)
        found = [Failure(where=t.name, outcome=t.outcome, evidence=t.evidence) for t in tools if t.outcome not in ("", Outcome.OK)]
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
            failures=(*self.failures, *found),
            seconds=round(self.seconds, 2),
        )


Step = Callable[[Sequence[Audit], int], None]
"""Told of the kernels that are through with a Workload, and of the checks that were made."""


class Auditor:
    """`pool` waits for the processes of the tools."""

    def __init__(self, target: Target, evaluator: Evaluator, tool: sanitized.Sanitizer | None, versions: dict[str, str], pool: Executor):
        self.target, self.evaluator, self.tool, self.versions, self.pool = target, evaluator, tool, versions, pool

    def compile(self, audits: Sequence[Audit]) -> None:
        """Begins with it, in the background, for the look at the machine code."""
        self.evaluator.builder.want(audit.buildable for audit in audits if audit.candidate.kind == "cuda" and audit.artifact)

    def judge(self, batch: Sequence[Audit], step: Step) -> None:
        """What a kernel does in the judge is a Verdict, a hang a TIMEOUT, as of every candidate. `step` is called after each Job."""
        for audit in batch:
            for w in audit.served:
                tails = problem_of(w).variants(w)  # of all products of a layout the same
                rungs = tuple(rung for rung in ALL_RUNGS if rung != "shapes" or tails not in audit.tails_met)
                if self._job([audit], w, rungs, step):
                    audit.climbed += 1
                    if not audit.failures:
                        audit.tails_met.add(tails)
        takers: dict[Workload, list[Audit]] = {}
        for audit in batch:
            for w in audit.drawn:
                takers.setdefault(w, []).append(audit)
        for w, audits in takers.items():
            for audit in self._job(audits, w, RANDOM_RUNGS, step):
                audit.random += 1

    def _job(self, audits: Sequence[Audit], w: Workload, rungs: tuple[str, ...], step: Step) -> list[Audit]:
        """Those that were run."""
        running = [audit for audit in audits if not audit.given_up]
        before = sum(audit.cases for audit in running)
        ran = self._run(running, w, rungs) if running else []
        step(audits, sum(audit.cases for audit in running) - before)
        return ran

    def _run(self, audits: list[Audit], w: Workload, rungs: tuple[str, ...]) -> list[Audit]:
        job = Job(workload=w, rungs=rungs, together=True)
        built: list[tuple[Candidate, Build | Verdict | None]] = [(audit.candidate, audit.build) for audit in audits]
        try:
            trials = list(self.evaluator.evaluate_built(built, job, stage="verify", session=""))
        except JudgeError as error:
            if len(audits) > 1:  # the trouble may be with one of them
                return [ran for audit in audits for ran in self._run([audit], w, rungs)]
            audits[0].failures.append(Failure(where=w.name, outcome="NOT_RUN", evidence=str(error)))
            return []
        for audit, trial in zip(audits, trials, strict=True):
            audit.count(w, trial.verdict, trial.seconds)
        return audits

    def start_tools(self, batch: Sequence[Audit]) -> None:
        """They go on in the pool."""
        for audit in batch:
            if audit.candidate.kind == "cuda" and audit.artifact is not None:
                audit.pending.append((self.pool.submit(self._machine_code, audit), 0))
        watched: list[tuple[Audit, Watched]] = []
        for audit in batch:
            found = self._watched(audit)
            if isinstance(found, Watched):
                watched.append((audit, found))
            else:
                audit.not_run += [Tool(name=tool, evidence=said) for tool, said in found.items()]
        if watched:
            kernels = tuple(kernel for _, kernel in watched)
            for tool in sanitized.TOOLS:
                run = self.pool.submit(self._sanitize, tool, kernels)
                for place, (audit, _) in enumerate(watched):
                    audit.pending.append((run, place))

    def _machine_code(self, audit: Audit) -> list[Tool]:
        assert audit.artifact is not None
        try:
            ((_, built),) = self.evaluator.builder.builds([audit.buildable])
            found = machine_code.inspect(audit.candidate, built, sass_mix(audit.artifact))
        except (TargetUnavailable, ValueError) as error:
            return [Tool(name="machine code", evidence=f"not run: {error}")]
        if found.faults:
            return [Tool(name="machine code", outcome=Outcome.COMPILE_ERROR, evidence="; ".join(found.faults))]
        return [Tool(name="machine code", outcome=Outcome.OK, evidence=f"{found.registers} registers, no spills, no local memory")]

    def _watched(self, audit: Audit) -> Watched | dict[str, str]:
        """What the tools run, or why each of them does not."""
        if self.tool is None or audit.build is None:
            return self.versions if audit.candidate.kind == "cuda" else {}
        if audit.given_up:
            return dict.fromkeys(sanitized.TOOLS, "not run: the kernel has failed too often")
        smallest = [w for w in audit.served[:1] if _elements(w) <= SANITIZED_ELEMENTS]
        if not (shapes := (*smallest, *audit.drawn[:SANITIZED_RANDOM])):
            return dict.fromkeys(sanitized.TOOLS, "not run: the kernel serves no shape that is small enough")
        return Watched(candidate=audit.candidate, build=audit.build, workloads=shapes)

    def _sanitize(self, tool: str, kernels: tuple[Watched, ...]) -> list[Tool]:
        assert self.tool is not None
        try:
            verdicts = self.tool.run(tool, Request(target=self.target.name, kernels=kernels))
        except OSError as error:
            return [Tool(name=tool, evidence=f"not run: {error}")] * len(kernels)
        return [Tool(name=tool, outcome=verdict.outcome, evidence=verdict.evidence) for verdict in verdicts]


def _shipped(artifact: Path | None, pack: Pack) -> Build | None:
    """The Build as it lies in the Pack; None where nothing is compiled."""
    if artifact is None:
        return None
    made = pack.manifest.environment
    return Build(key=artifact.stem, artifact=str(artifact), compiler=made.versions.get("compiler", ""), arch=made.target)


def _elements(w: Workload) -> int:
    return sum(spec.numel for spec in problem_of(w).tensors(w))
