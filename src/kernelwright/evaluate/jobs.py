"""What travels between the user's process and the judge process: plain records, as JSON, so that neither side trusts a pickle."""

from __future__ import annotations

from kernelwright.records import Build, Candidate, Comparison, Environment, Outcome, Record, Timing, Verdict, Workload
from kernelwright.targets.target import Peaks

SCREEN_RUNGS = ("exact", "normal")
ALL_RUNGS = ("exact", "normal", "adversarial", "repeat", "chain", "shapes")
"""`chain` is for launches that may overlap with their predecessor, where a plan has such. `memory` (guard bands, poison, inputs unchanged)
is part of every run, and `after-timing` of every timed round."""


class Entry(Record, frozen=True, kw_only=True):
    """A candidate with its Build."""

    candidate: Candidate
    build: Build | None = None


class Job(Record, frozen=True, kw_only=True):
    """Verify candidates on one Workload and time those that are right, interleaved with rivals."""

    workload: Workload
    entries: tuple[Entry, ...] = ()
    rivals: tuple[str, ...] = ()
    rungs: tuple[str, ...] = SCREEN_RUNGS
    modes: tuple[str, ...] = ()
    """Empty: verify only. In `device-chain` only candidates whose plan asks for dependent launch are timed, beside all rivals."""
    min_rounds: int = 5
    max_rounds: int = 9
    seconds: float = 1.0
    """Time limit of one mode; reached, sampling stops with what it has."""
    tolerance: float = 0.01
    """Stop when the ratio's interval is narrower than this share of it."""
    together: bool = False
    """All entries are loaded first and climb each rung on the same inputs, with one reference. Otherwise one entry after the other, each on
    inputs of its own."""
    noise: bool = False
    """Time the first candidate twice in each round (A/A) for the noise floor."""


class Result(Record, frozen=True, kw_only=True):
    """One contender's outcome."""

    label: str
    """Candidate id, or rival name."""
    verdict: Verdict
    timings: tuple[Timing, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    scores: dict[str, float] = {}


class Note(Record, frozen=True, kw_only=True, tag="note"):
    """The judge lives, and works on this contender: restarts the watchdog, and tells who is to blame if it dies."""

    label: str
    doing: str


class Reply(Record, frozen=True, kw_only=True, tag="reply"):
    results: tuple[Result, ...]
    rivals: tuple[Result, ...]
    sensors: dict[str, float] = {}


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """First message of a judge: the device is open."""

    environment: Environment
    peaks: Peaks


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """The judge cannot go on; it exits after this."""

    message: str
    outcome: Outcome | None = None
    """Set when a candidate is to blame: the last Note tells which."""


Message = Note | Reply | Hello | Failure
