"""What a run of the benchmark leaves: one JSON line for each task and each answer, appended as it is known, read again to go on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from kernelwright.records import Comparison, Environment, Record, Workload

Status = Literal["correct", "wrong", "not compiled", "no answer", "skipped"]
"""Of an answer. `wrong` is everything that compiled and was refused: wrong results, crashes, time-outs, cheats."""
Work = Literal["", "own kernels", "library operators", "flags only", "wraps the library", "unknown"]
"""What an answer does in place of the reference (`operators`); empty where that was not looked at."""


class Task(Record, frozen=True, kw_only=True):
    """One problem of a suite. Nothing of its code has been executed."""

    suite: str
    key: str
    """`1/23` in KernelBench, a Workload's name in a suite."""
    number: int = 0
    name: str = ""
    level: str = ""
    group: str = ""
    """Class: operator, fusion, architecture, model; single kernel, module, application."""
    domain: str = ""
    """Empty: told by the operators that the reference executes."""
    workload: Workload | None = None
    skipped: str = ""
    """Why it cannot run here: `architecture`, `memory`, `dependency`, `data` ..."""
    why: str = ""
    """One sentence."""


class Claim(Record, frozen=True, kw_only=True):
    """What was published of an answer."""

    source: str
    speedups: dict[str, float] = {}
    """By rival, in our names where we have the same."""
    correct: bool | None = None
    runtime_ms: float | None = None
    note: str = ""


class Answer(Record, frozen=True, kw_only=True):
    """What an entrant gives for a task."""

    not_hashed = ("claim", "origin", "root")

    entrant: str
    task: str
    sample: int = 0
    text: str = ""
    """Empty for a baseline entrant, which `kind` names."""
    kind: str = "file"
    """`file`; `torch.compile`, `families`, `reference`: baselines; `model`; `unreadable`: `text` says why a model's text is no answer."""
    suffix: str = ".py"
    """What a file of that text would end in: .py (ModelNew), .cu, .cpp, .json."""
    origin: str = ""
    root: str = ""
    """CUDAHercules: the checkout, whose headers its sources include."""
    claim: Claim | None = None


class Fault(Record, frozen=True, kw_only=True):
    """A finding of the lint about a task."""

    rule: str
    severity: str
    text: str
    tensor: str = ""


class Facts(Record, frozen=True, kw_only=True, tag="task"):
    """What is known of a task, whoever answers it."""

    task: Task
    workload: str
    """Id."""
    faults: tuple[Fault, ...] = ()
    linted: bool = False
    operators: tuple[str, ...] = ()
    """That the reference executes, in order."""

    @property
    def degenerate(self) -> bool:
        """A wrong kernel would pass, here or where other harnesses judge by allclose on the file's own inputs."""
        return any(f.rule in _LETS_PASS and f.severity in ("error", "warning") for f in self.faults)


_LETS_PASS = ("zeros-pass", "constant-passes", "identity-passes", "replay-passes", "random-output", "non-finite")
"""Rules under which an output that was not computed from the inputs passes: such a problem is scored apart."""


class Result(Record, frozen=True, kw_only=True, tag="answer"):
    """How one answer fared."""

    suite: str
    task: str
    workload: str
    """Id."""
    entrant: str
    sample: int = 0
    answer: str = ""
    """Id of the Answer."""
    kind: str = ""
    """Of the Candidate: python, cuda, cpu, rival; empty where there was none."""
    status: Status
    outcome: str = ""
    """Of the Verdict."""
    evidence: str = ""
    skipped: str = ""
    """For status skipped: `architecture`, `compiler`, `memory`, `dependency`, `problem`, `rival`, `time`."""
    mode: str = ""
    """The timing mode that its ratios are taken from."""
    us: dict[str, float] = {}
    scores: dict[str, float] = {}
    """Of an open challenge (`Trial.scores`)."""
    comparisons: tuple[Comparison, ...] = ()
    rivals: dict[str, str] = {}
    """Those that were not compared with, and why."""
    floor_us: float = 0.0
    """The roofline's limit in `mode`."""
    sampled: bool = False
    """Verified on random rows, as its tensors are too large for a float64 reference of all."""
    work: Work = ""
    work_why: str = ""
    claim: Claim | None = None
    trial: str = ""
    seconds: float = 0.0
    asked: str = ""
    """Id of what was asked for: rivals, modes, rounds. Another question is another result."""
    environment: Environment | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.workload, self.entrant, str(self.sample), self.answer, self.asked)


Line = Facts | Result


class Store:
    """One file of lines. A line that was cut off by a crash is passed over."""

    def __init__(self, path: Path):
        self.path = path
        self.facts: dict[str, Facts] = {}
        """By workload id."""
        self.results: dict[tuple[str, ...], Result] = {}
        self.unreadable = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                self._take(msgspec.json.decode(line, type=Line))
            except ValueError:
                self.unreadable += 1

    def _take(self, line: Facts | Result) -> None:
        if isinstance(line, Facts):
            self.facts[line.workload or line.task.key] = line
        else:
            self.results[line.key] = line

    def append(self, line: Facts | Result) -> None:
        self._take(line)
        with self.path.open("ab") as file:
            if file.tell():
                with self.path.open("rb") as before:
                    before.seek(-1, os.SEEK_END)
                    if before.read(1) != b"\n":
                        file.write(b"\n")
            file.write(msgspec.json.encode(line) + b"\n")

    def known(self, key: tuple[str, ...], environment: Environment | None) -> Result | None:
        """A result that need not be made again: of the same question, on the same device and versions. A package that was missing may have
        been installed since."""
        found = self.results.get(key)
        if found is None or found.outcome == "NOISY" or found.skipped == "dependency" or found.environment is None or environment is None:
            return None
        return found if found.environment.comparable(environment) else None


def asked_id(parts: Iterable[object]) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]
