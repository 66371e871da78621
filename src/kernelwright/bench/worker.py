"""The process that runs tasks: it loads their files, lints them, watches the operators of answers and has them judged.

`python -m kernelwright.bench.worker FD`. It executes the code of problems, which are the user's own, and may hang or die in it; `run` then
starts another. Answers run where every candidate runs, in the judge's confined processes, and once more in a confined child of this one.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import msgspec
import torch

from kernelwright import rivals
from kernelwright.archive import Archive
from kernelwright.bench import hercules, operators
from kernelwright.bench.messages import LOADING, Broken, Doing, Done, Opened, Order, Prompt, Said
from kernelwright.bench.results import Answer, Facts, Fault, Result, Work
from kernelwright.bench.tasks import domain_of
from kernelwright.candidate_file import CandidateFileError, parse
from kernelwright.evaluate.evaluator import NOTE_SECONDS, Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Job
from kernelwright.evaluate.watched import find_tool
from kernelwright.loop import Budget, NothingToTry, headline_mode, optimize
from kernelwright.problems import ProblemError, problem_of
from kernelwright.problems.kernelbench import KernelBench
from kernelwright.problems.kernelbench_shrink import extent, shrunk
from kernelwright.problems.lint import lint
from kernelwright.problems.problem import Problem
from kernelwright.propose import llm_prompt
from kernelwright.propose.llm_answer import languages
from kernelwright.records import DTYPES, Candidate, Origin, Outcome, Trial, Workload
from kernelwright.settings import settings
from kernelwright.targets import usable
from kernelwright.targets.processes import die_with_parent
from kernelwright.targets.target import Peaks, TargetUnavailable

_WHY = {"dependency": ("ModuleNotFoundError", "ImportError"), "memory": ("allocate memory", "OutOfMemory")}
"""Why a problem cannot be loaded, by what its error says."""
COMPILING_SECONDS = 600.0
"""A Python answer on a GPU may compile for minutes while it is loaded (nvcc, Triton): its judge is not given up before."""
_COMPILERS = re.compile(r"cpp_extension|load_inline|RawKernel|RawModule|_compile_kernel")
"""What an answer says that has a compiler called for minutes (not Triton's or inductor's)."""
MAX_FLOAT64 = 5
"""float64 tensors as large as inputs and outputs together that a whole reference with its error scale holds at one time."""


def rivals_for(w: Workload, target: str) -> tuple[str, ...]:
    """All that a user could run in place of an answer, eager first."""
    return rivals.names_for(w, target, every=bool(w.source))


def modes_for(target: str) -> tuple[str, ...]:
    """The headline's; on a GPU the host's as well, in which Python answers are compared."""
    return ("device-cold", "host-offline") if target.startswith("cuda") else (headline_mode(target),)


def mode_of(kind: str, target: str, modes: tuple[str, ...]) -> str:
    """The mode that a candidate's ratios are taken from. On a GPU a Python answer's times hold what the host does, in every mode: only in
    host-offline do its rivals' as well."""
    if kind == "python" and target.startswith("cuda") and "host-offline" in modes:
        return "host-offline"
    return modes[0]


class Worker:
    def __init__(self, target: str, send: Callable[[Said], None], watcher: operators.Watcher):
        self.watcher = watcher
        self.target = usable(target)
        self.send = send
        patience = COMPILING_SECONDS if self.target.kind == "cuda" else NOTE_SECONDS
        self.evaluator = Evaluator(self.target, note_seconds=patience)
        self.archive = Archive(settings().archive)
        self.environment = self.evaluator.environment
        self.peaks = msgspec.convert(self.evaluator.peaks, Peaks)
        self.session = f"bench-{int(time.time())}"

    def close(self) -> None:
        """Ends the judge and the watcher."""
        self.watcher.close()
        self.evaluator.close()
        self.archive.close()

    # --------------------------------------------------------------------------------------------------------- the task

    def run(self, order: Order) -> None:
        task = order.task
        facts = order.facts
        if task.workload is None or task.skipped:
            self._tell(order, Facts(task=task, workload=task.workload.id if task.workload else ""))
            self._skip(order, task.skipped or "problem", task.why)
            return
        w = task.workload
        try:
            self.send(Doing(what=LOADING))
            problem = problem_of(w)
        except ProblemError as error:
            why = str(error)
            kind = next((k for k, words in _WHY.items() if any(word in why for word in words)), "problem")
            self._tell(
                order, Facts(task=task.replace(skipped=kind, why=why), workload=w.id, faults=self._faults(order, w), linted=order.lint)
            )
            self._skip(order, kind, why)
            return
        if order.prompt:
            self.send(self._prompt(w))
            return
        if facts is None or (order.lint and not facts.linted):
            facts = self._facts(order, w, problem)
        # what was found elsewhere may have been too large there alone
        reason = self._too_large(w)
        facts = facts.replace(task=facts.task.replace(skipped="memory" if reason else "", why=reason))
        if facts != order.facts:
            self.send(facts)
        if reason:
            self._skip(order, "memory", reason)
            return
        for answer in order.answers:
            self.send(Doing(what=f"{answer.entrant}, sample {answer.sample}"))
            started = time.monotonic()
            try:
                result = self._answer(order, w, problem, answer)
            except JudgeError as error:
                result = self._failed(order, answer, str(error))
            self.send(result.replace(seconds=round(time.monotonic() - started, 2)))

    def _tell(self, order: Order, facts: Facts) -> None:
        """Unless it is known."""
        if order.facts is None:
            self.send(facts)

    def _prompt(self, w: Workload) -> Prompt:
        device = self.target.facts()
        choices = languages(w, device)
        rules = llm_prompt.system(w, device, choices) if choices else ""
        return Prompt(system=rules, task=llm_prompt.task(w, device, self.peaks, (), (), ()), tags=tuple(c.name for c in choices))

    def _skip(self, order: Order, kind: str, why: str) -> None:
        for answer in order.answers:
            self.send(self._result(order, answer, status="skipped", skipped=kind, evidence=why))

    def _result(self, order: Order, answer: Answer, **fields: object) -> Result:
        return order.result(answer, self.environment, **fields)

    def _facts(self, order: Order, w: Workload, problem: Problem) -> Facts:
        faults = self._faults(order, w)
        seen: tuple[str, ...] = ()
        if isinstance(problem, KernelBench):
            self.send(Doing(what="watching the reference's operators"))
            small = shrunk(w).w
            try:
                of_small = problem_of(small)
                assert isinstance(of_small, KernelBench)
                seen = operators.reference_operators(of_small, small, "cpu")
            except Exception:  # the file's own code, on other sizes than its author's
                seen = ()
        task = order.task
        return Facts(
            task=task if task.domain else task.replace(domain=domain_of(seen)),
            workload=w.id,
            faults=faults,
            linted=order.lint,
            operators=seen,
        )

    def _faults(self, order: Order, w: Workload) -> tuple[Fault, ...]:
        if not order.lint:
            return ()
        self.send(Doing(what="looking for faults of the problem"))
        try:
            found = lint(w)
        except Exception as error:  # the file's own code
            return (Fault(rule="unusable", severity="error", text=f"the lint could not run it: {error}"[:300]),)
        return tuple(Fault(rule=f.rule, severity=f.severity, text=f.text, tensor=f.tensor) for f in found)

    def _memory(self) -> float:
        """Bytes that the device has; 0 where that is not known."""
        if self.target.name.startswith("cuda"):
            return float(self.environment.facts.get("memory GB", 0)) * 1e9
        try:
            with open("/proc/meminfo") as file:
                lines = dict(line.split(":", 1) for line in file)
            return float(lines["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return 0.0

    def _needs(self, w: Workload) -> tuple[float, float]:
        """(bytes for a float64 reference of everything, bytes of running it alone); zeros where the file does not tell its sizes."""
        if not w.source:
            stored = float(sum(s.numel * DTYPES[s.dtype] for s in problem_of(w).tensors(w)))
            return 0.0, stored
        size = extent(w.source)
        if size is None:
            return 0.0, 0.0
        stored = float(size.elements * DTYPES[w.dtype])
        # the buffers, those of a Python answer's process, and what it and its rivals allocate
        run = 4 * stored
        return run + MAX_FLOAT64 * 8.0 * size.elements, run

    def _too_large(self, w: Workload) -> str:
        memory, (_, least) = self._memory(), self._needs(w)
        if memory and least > memory:
            return f"running it takes about {least / 2**30:.3g} GiB, and the device has {memory / 2**30:.3g}"
        return ""

    # ------------------------------------------------------------------------------------------------------- an answer

    def _answer(self, order: Order, w: Workload, problem: Problem, answer: Answer) -> Result:
        if order.task.suite == hercules.SUITE and answer.suffix == ".cu" and (why := self._no_nvcc()):
            return self._result(order, answer, status="skipped", skipped="architecture", evidence=why)
        try:
            candidate = self._candidate(order, w, answer)
        except CandidateFileError as error:
            return self._result(order, answer, status="not compiled", outcome=str(Outcome.COMPILE_ERROR), evidence=str(error))
        except NothingToTry as error:
            return self._result(order, answer, status="no answer", evidence=str(error))
        if candidate is None:
            return self._result(order, answer, status="no answer", evidence="the search found no kernel that is right")
        if candidate.kind not in ("python", "rival", self.target.kind):
            why = f"it is a {candidate.kind} kernel, and the target is {self.target.name}"
            return self._result(order, answer, status="skipped", skipped="architecture", kind=candidate.kind, evidence=why)
        trial = self._judged(order, w, candidate)
        if trial is None:
            return self._result(
                order, answer, status="skipped", skipped="rival", kind=candidate.kind, evidence="this rival cannot run the problem here"
            )
        self.archive.append(trial)
        watched = order.operators or not _COMPILERS.search(candidate.source)
        work, why = self._work(w, problem, candidate) if trial.verdict.ok and watched else ("", "")
        return self._of(order, answer, problem, trial, work, why)

    def _no_nvcc(self) -> str:
        """Why a .cu file with host code cannot be compiled here."""
        if self.target.kind != "cuda":
            return f"it is CUDA with host code, and the target is {self.target.name}"
        return "" if find_tool("nvcc") else "it is CUDA with host code, and nvcc is neither on PATH nor in the CUDA toolkit's bin folder"

    def _candidate(self, order: Order, w: Workload, answer: Answer) -> Candidate | None:
        origin = Origin(kind="file", name=answer.origin or answer.entrant)
        match answer.kind:
            case "torch.compile":
                return Candidate(kind="rival", source="compile", origin=Origin(kind="rival", name="compile"))
            case "reference":
                return Candidate(kind="python", source=f"{w.source}\nModelNew = Model\n", origin=origin)
            case "unreadable":
                raise CandidateFileError(answer.text)
            case "families":
                budget = Budget(trials=64, seconds=order.search_seconds, finalists=1, confirm_rounds=9, confirm_seconds=2.0)
                run = optimize(w, self.target, self.archive, budget=budget, rival_names=("eager",), evaluator=self.evaluator)
                return run.winner.candidate if run.winner else None
        if order.task.suite == hercules.SUITE and answer.suffix == ".cu" and "kernelwright-plan" not in answer.text:
            command = (find_tool("nvcc") or "nvcc", *hercules.NVCC[1:])
            return Candidate(kind="python", source=hercules.wrapped(answer.text, w, command, answer.root), origin=origin)
        return parse(answer.text, answer.suffix, w, origin)

    def _work(self, w: Workload, problem: Problem, candidate: Candidate) -> tuple[Work, str]:
        if candidate.kind == "rival":
            return "library operators", "torch.compile of the reference"
        if candidate.kind != "python" or not isinstance(problem, KernelBench):
            return operators.Seen().work("device code")
        device = "cuda" if self.target.kind == "cuda" else "cpu"
        return self.watcher.watch(candidate.source, w, device).work()

    def _judged(self, order: Order, w: Workload, candidate: Candidate) -> Trial | None:
        modes = order.modes or modes_for(self.target.name)
        names = rivals.asked(order.rivals, w) or rivals_for(w, self.target.name)
        names = tuple(n for n in names if n != candidate.source) if candidate.kind == "rival" else names
        memory, (whole, _) = self._memory(), self._needs(w)
        job = Job(
            workload=w,
            rivals=names,
            rungs=SCREEN_RUNGS if memory and whole > memory else ALL_RUNGS,
            modes=modes,
            min_rounds=5,
            max_rounds=order.rounds,
            seconds=order.seconds,
            tolerance=0.02,
            noise=True,
        )
        built = list(self.evaluator.builder.builds([candidate]))
        trials = list(self.evaluator.evaluate_built(built, job, stage="verify", session=self.session))
        return next((t for t in trials if t.candidate.id == candidate.id), None)

    def _of(self, order: Order, answer: Answer, problem: Problem, trial: Trial, work: Work, why: str) -> Result:
        verdict, modes = trial.verdict, order.modes or modes_for(self.target.name)
        mode = mode_of(trial.candidate.kind, self.target.name, modes)
        status, skipped = "wrong", ""
        if verdict.ok or verdict.outcome is Outcome.NOISY:
            status = "correct"
        elif verdict.outcome is Outcome.COMPILE_ERROR:
            status = "not compiled"
        elif verdict.outcome is Outcome.REFUSED and trial.candidate.kind == "python":
            if self.target.kind == "cpu":
                status, skipped = "skipped", "compiler"  # the CPU's sandbox starts none
        elif verdict.outcome is Outcome.REFUSED:
            status = "no answer"  # its own plan excludes the problem
        elif trial.candidate.kind == "rival":
            status, skipped = "skipped", "rival"
        elif verdict.outcome is Outcome.OUT_OF_MEMORY and "exchange area" in verdict.evidence:
            status, skipped = "skipped", "memory"  # what the judge needs beside the answer, not what the answer took
        timed = {c.rival for c in trial.comparisons if c.mode == mode}
        left_out = {
            name: f"{v.outcome}: {v.evidence}"[:300] if not v.ok else "it was not timed in this mode"
            for name, v in trial.rivals.items()
            if name not in timed and verdict.ok
        }
        floor, _ = self.peaks.floor(problem.cost(trial.workload), mode) if trial.timings else (0.0, "")
        memory, (whole, _) = self._memory(), self._needs(trial.workload)
        return self._result(
            order,
            answer,
            kind=trial.candidate.kind,
            status=status,
            skipped=skipped,
            outcome=str(verdict.outcome),
            evidence=verdict.evidence[:1000],
            mode=mode,
            us={t.mode: t.median for t in trial.timings},
            scores=trial.scores,
            comparisons=trial.comparisons,
            rivals=left_out,
            floor_us=floor,
            sampled=bool(memory and whole > memory),
            work=work,
            work_why=why,
            trial=trial.id,
        )

    def _failed(self, order: Order, answer: Answer, message: str) -> Result:
        """The judge failed for a reason that is not the answer's: memory, or the problem's own code."""
        memory = any(words in message for words in ("OutOfMemory", "out of memory", "can't allocate memory"))
        return self._result(order, answer, status="skipped", skipped="memory" if memory else "problem", evidence=message[:500])


def orders(pipe: Connection) -> Iterator[Order]:
    while True:
        try:
            yield msgspec.json.decode(pipe.recv_bytes(), type=Order)
        except (EOFError, ConnectionResetError):
            return


def main(target: str, fd: int) -> int:
    die_with_parent()
    # a process that has started an OpenMP pool cannot fork children that use OpenMP
    torch.set_num_threads(1)
    watcher = operators.Watcher(close_in_it=[fd])
    pipe = Connection(fd)

    def send(said: Said) -> None:
        pipe.send_bytes(msgspec.json.encode(said))

    try:
        worker = Worker(target, send, watcher)
        send(Opened(environment=worker.environment, peaks=worker.peaks))
    except (TargetUnavailable, JudgeError, ValueError) as error:
        send(Broken(message=str(error)))
        return 1
    try:
        for order in orders(pipe):
            worker.run(order)
            send(Done())
    except (BrokenPipeError, ConnectionResetError):
        pass  # whoever asked is gone
    except Exception as error:
        traceback.print_exc()
        send(Broken(message=f"{type(error).__name__}: {error}"))
        return 1
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
