"""What the run and its worker say to each other: records, as JSON over a pipe, since a worker may die in the middle of anything."""

from __future__ import annotations

from kernelwright.bench.results import Answer, Facts, Result, Task
from kernelwright.records import Environment, Record
from kernelwright.targets.target import Peaks

LOADING = "loading the problem"


class Order(Record, frozen=True, kw_only=True):
    """One task with the answers to be judged."""

    task: Task
    answers: tuple[Answer, ...]
    rivals: tuple[str, ...] = ()
    """Empty: all that are there for it."""
    modes: tuple[str, ...] = ()
    """Empty: the headline's, and host-offline on a GPU."""
    rounds: int = 15
    seconds: float = 5.0
    """Of one mode."""
    facts: Facts | None = None
    """Known from an earlier run."""
    lint: bool = True
    operators: bool = True
    """Whether answers are run once more, to see which operators they execute."""
    asked: str = ""
    search_seconds: float = 60.0
    """Of the entrant `families`."""
    prompt: bool = False
    """Nothing is judged: what a model would be told of the task is said."""

    def result(self, answer: Answer, environment: Environment, **fields: object) -> Result:
        """What became of one of its answers."""
        return Result(
            suite=self.task.suite,
            task=self.task.key,
            workload=self.task.workload.id if self.task.workload else "",
            entrant=answer.entrant,
            sample=answer.sample,
            answer=answer.id,
            claim=answer.claim,
            asked=self.asked,
            environment=environment,
            **fields,  # pyright: ignore[reportArgumentType]
        )


class Opened(Record, frozen=True, kw_only=True, tag="opened"):
    """The device is open."""

    environment: Environment
    peaks: Peaks


class Prompt(Record, frozen=True, kw_only=True, tag="prompt"):
    """What a model is told of a task."""

    system: str
    task: str
    tags: tuple[str, ...]
    """Of the languages that it may answer in."""


class Doing(Record, frozen=True, kw_only=True, tag="doing"):
    """What is being done now, for whoever waits, and for the sentence if it takes too long."""

    what: str


class Done(Record, frozen=True, kw_only=True, tag="done"):
    """The Order is finished."""


class Broken(Record, frozen=True, kw_only=True, tag="broken"):
    """The worker cannot go on."""

    message: str


Said = Opened | Prompt | Doing | Done | Broken | Facts | Result
