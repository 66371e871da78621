"""Corpora of cheats, and of honest kernels beside them: what the judge must refuse, and what it must not.

A cheat is a candidate file (`candidate_file.py`) whose first comments say what it is:

    // cheat: replay                                   its kind
    // idea: results kept by the address of an input   whose idea it is, or what it does
    // problem: gemm:96x80x64:fp32                     a Workload, or a KernelBench file beside it
    // verdict: WRONG_RESULT|CRASH                     the outcomes that are right for it
    // target: cpu|cuda                                where it runs; otherwise a .cu file is for cuda, another for cpu
    // harmless: why it gains nothing                  where OK is among the outcomes

In a Python file the lines stand in its docstring. `honest:` in place of `cheat:` and `idea:` is a kernel whose verdict must be OK.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.candidate_file import CandidateFileError, load
from kernelwright.evaluate.evaluator import NOTE_SECONDS, Evaluator, JudgeError
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.evaluate.sanitized import TOOLS, Sanitizer
from kernelwright.evaluate.watched import Request, Watched, find_tool
from kernelwright.families import DeviceFacts, Family, families_for
from kernelwright.problems import resolve
from kernelwright.records import Build, Candidate, Outcome, Trial, Workload
from kernelwright.targets.target import Target

_HEADER = re.compile(r"^(?://|#)?\s*(cheat|honest|idea|problem|verdict|target|harmless):\s*(.+?)\s*$", re.MULTILINE)
_SUFFIXES = {".cu": "cuda", ".cpp": "cpu", ".py": "cpu"}
HONEST = "honest"
"""The kind of a kernel that is none of a cheat."""
MODES = {"cpu": ("device-warm",), "cuda": ("device-cold", "device-chain", "device-warm"), "fake": ("device-warm",)}

JUDGE_ERROR = "JUDGE_ERROR"
"""In place of an outcome: the judge failed and blamed nobody. Of a cheat that is harm done."""
MOST_ERRORS = 3
"""Of the judge in a row: then it is the machine."""
SANITIZER_SECONDS = 120.0
"""For one small kernel under a tool, the start of the process included: 8 s on an H200's host."""


@dataclass(frozen=True)
class Suspect:
    """A candidate with the outcomes that are right for it."""

    name: str
    kind: str
    workload: Workload
    candidate: Candidate
    verdicts: tuple[Outcome, ...] = (Outcome.OK,)
    idea: str = ""
    harmless: str = ""
    """Why it gains nothing, where it is not refused."""


def header(path: Path) -> dict[str, str]:
    """What the first comments of a file say. Raises CandidateFileError for one that cannot be read."""
    try:
        return dict(_HEADER.findall(path.read_text()[:4000]))
    except (OSError, UnicodeDecodeError) as error:
        raise CandidateFileError(f"{path} cannot be read: {error}") from None


def files(folder: Path, kind: str) -> list[Path]:
    """The cheats of a folder for a kind of target. Raises CandidateFileError for one whose header is incomplete."""
    return list(_with(folder, "cheat", kind, ("idea", "problem", "verdict")))


def _with(folder: Path, word: str, kind: str, needs: Sequence[str]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _SUFFIXES or word not in (said := header(path)):
            continue
        if missing := [key for key in needs if key not in said]:
            raise CandidateFileError(f"{path} says `{word}:` but not `{missing[0]}:`; evaluate/corpus.py lists what a header has")
        if kind in said.get("target", _SUFFIXES[path.suffix]).split("|"):
            yield path


def _workload(path: Path) -> Workload:
    """Of a header's `problem:`, which may name a file beside the candidate or in the folder above."""
    named = header(path)["problem"]
    beside = next((f for f in (path.parent / named, path.parents[1] / named) if f.is_file()), None)
    return resolve(str(beside or named))


def suspect(path: Path, target: Target) -> Suspect:
    """Raises CandidateFileError, ValueError for a header that is wrong."""
    said = header(path)
    w = _workload(path)
    try:
        verdicts = tuple(Outcome(v.strip()) for v in said["verdict"].split("|"))
    except ValueError:
        raise CandidateFileError(f"{path}: {said['verdict']!r} are no outcomes; choose from {', '.join(Outcome)}") from None
    if (Outcome.OK in verdicts) != ("harmless" in said):
        raise CandidateFileError(f"{path}: a cheat may be OK only where `harmless:` says why, and then OK is among its verdicts")
    return Suspect(
        name=path.name,
        kind=said["cheat"],
        workload=w,
        candidate=load(path, w, target.name),
        verdicts=verdicts,
        idea=said["idea"],
        harmless=said.get("harmless", ""),
    )


def job_for(w: Workload, kind: str) -> Job:
    """All that a reported kernel goes through: every rung, then rounds beside PyTorch."""
    return Job(workload=w, rivals=("eager",), rungs=ALL_RUNGS, modes=MODES[kind], min_rounds=5, max_rounds=9, noise=True)


def judge(evaluator: Evaluator, one: Suspect) -> Trial:
    (trial,) = evaluator.evaluate([one.candidate], job_for(one.workload, evaluator.target.kind), stage="verify", session="audit")
    return trial


@dataclass(frozen=True)
class Finding:
    """A Suspect with what the judge said."""

    name: str
    kind: str
    expected: tuple[str, ...]
    outcome: str
    evidence: str
    seconds: float
    note: str = ""
    """Why it may pass, or why it does so far."""
    us: dict[str, float] = field(default_factory=dict)
    """Medians by mode of one that passed: what is let through as harmless is held against the same kernel without its trick."""
    candidate: str = ""
    """Its id."""

    @property
    def honest(self) -> bool:
        return self.kind == HONEST

    @property
    def right(self) -> bool:
        return self.outcome in self.expected

    @property
    def what(self) -> str:
        """What is wrong when it is not right."""
        if self.outcome == JUDGE_ERROR:
            return "an error of the judge's"
        return "a false alarm" if self.honest else "a cheat that got through" if self.outcome in ("OK", "NOISY") else "another verdict"


def suspects(folder: Path, target: Target, honest_kernels: int) -> tuple[list[Suspect], list[Suspect]]:
    """The cheats of a folder that are for the target, and so many honest kernels.
    Raises CandidateFileError."""
    cheats = [suspect(path, target) for path in files(folder, target.kind)]
    if not cheats:
        raise CandidateFileError(f"{folder} holds no cheats for the {target.kind} target; a file of them has a line `// cheat: KIND`")
    # those of one Workload behind each other: its buffers and rivals are made ready once
    return cheats, sorted(honest(target, honest_kernels, folder.resolve()), key=lambda one: one.workload.name)


def auditor(target: Target) -> Evaluator:
    """On a GPU a kernel that hangs says nothing; an honest one of these small Workloads takes moments."""
    return Evaluator(target, note_seconds=20.0 if target.kind == "cuda" else NOTE_SECONDS)


def audit_of(evaluator: Evaluator, ones: Iterable[Suspect]) -> Iterator[Finding]:
    """Raises JudgeError where the judge fails again and again."""
    ones, ahead, errors = list(ones), max(4, len(os.sched_getaffinity(0))), 0
    for i, one in enumerate(ones):
        evaluator.builder.want(later.candidate for later in ones[i : i + ahead])  # compiled while the judge works
        begun = time.monotonic()
        try:
            verdict, timings = (trial := judge(evaluator, one)).verdict, trial.timings
            outcome, evidence, errors = str(verdict.outcome), verdict.evidence, 0
            if verdict.ok and Outcome.OK not in one.verdicts:
                outcome, evidence = under_sanitizers(evaluator, one) or (outcome, evidence)
        except JudgeError as error:
            outcome, evidence, timings, errors = JUDGE_ERROR, str(error), (), errors + 1
            if errors == MOST_ERRORS:
                raise
        # a right kernel that could not be timed on a busy machine was not refused
        expected = (*one.verdicts, Outcome.NOISY) if Outcome.OK in one.verdicts else one.verdicts
        yield Finding(
            name=one.name,
            kind=one.kind,
            expected=tuple(str(v) for v in expected),
            outcome=outcome,
            evidence=evidence,
            seconds=time.monotonic() - begun,
            note=one.harmless,
            us={t.mode: t.median for t in timings},
            candidate=one.candidate.id,
        )


def under_sanitizers(evaluator: Evaluator, one: Suspect) -> tuple[str, str] | None:
    """Outcome and evidence, as `pack verify` would say of device code that the ladder lets through; None where no tool finds anything. A
    race may give right results every time."""
    if one.candidate.kind != "cuda" or (path := find_tool("compute-sanitizer")) is None:
        return None
    ((_, built),) = evaluator.builder.builds([one.candidate])
    assert isinstance(built, Build), "it has run"
    request = Request(target=evaluator.target.name, kernels=(Watched(candidate=one.candidate, build=built, workloads=(one.workload,)),))
    tool = Sanitizer(path, seconds=SANITIZER_SECONDS)
    with suppress(OSError):  # it cannot be started
        for name in TOOLS:
            (verdict,) = tool.run(name, request)
            if not verdict.ok:
                return str(verdict.outcome), verdict.evidence
    return None


def summary(found: Sequence[Finding]) -> dict[str, Any]:
    """Counts, names of what went wrong, and every Finding, as plain data."""
    cheats, honest = ([f for f in found if f.honest == honest] for honest in (False, True))
    return {
        "cheats": len(cheats),
        "caught": sum(f.right and f.outcome not in ("OK", "NOISY") for f in cheats),
        "harmless": sum(f.right and f.outcome in ("OK", "NOISY") for f in cheats),
        "passed": [f.name for f in cheats if not f.right],
        "honest": len(honest),
        "false_alarms": [f.name for f in honest if not f.right],
        "noisy": sum(f.outcome == "NOISY" for f in honest),
        "findings": [
            {
                "name": f.name,
                "kind": f.kind,
                "verdict": f.outcome,
                "expected": f.expected,
                "right": f.right,
                "evidence": f.evidence,
                "note": f.note,
                "seconds": round(f.seconds, 2),
            }
            for f in found
        ],
    }


HONEST_WORKLOADS = {
    "cpu": (
        *(f"gemm:{shape}:{dtype}" for shape in ("64x64x64", "33x65x129") for dtype in ("fp32", "bf16")),
        *(f"gemm:40x56x72:fp32:{layout}" for layout in ("nt", "tn", "tt")),
        *(f"chain:{name}:64x256" for name in ("softmax", "new-gelu", "rmsnorm", "layernorm", "cumsum", "l2-normalise", "silu-mul")),
    ),
    "cuda": (
        *(f"gemm:{shape}:{dtype}" for shape in ("256x256x256", "200x136x72") for dtype in ("fp16", "bf16", "fp32")),
        *(f"gemm:512x384x1024:fp16:{layout}" for layout in ("nt", "tn", "tt")),
        "gemm:256x512x512:fp16:nn:acc=fp16",
        "linear:256x512x512:fp16:nt:bias+gelu",
        *(f"chain:{name}:1024x1024" for name in ("softmax", "new-gelu", "rmsnorm", "layernorm", "cumsum")),
    ),
    "fake": ("gemm:16x16x16:fp32",),
}


def honest(target: Target, limit: int, folder: Path) -> Iterator[Suspect]:
    """At most `limit`: the folder's files that say so, the example, the Families' seeds for the Workloads above, and their neighbours."""
    count = 0
    example = folder.parents[1] / "examples" / f"matmul{next(s for s, kind in _SUFFIXES.items() if kind == target.kind)}"
    for path in (*_with(folder, "honest", target.kind, ("problem",)), *([example] if example.is_file() else [])):
        if count < limit:
            w = resolve("gemm:64x64x64:fp32") if path == example else _workload(path)
            yield Suspect(path.name, HONEST, w, load(path, w, target.name))
            count += 1
    facts = target.facts()
    workloads = [resolve(text) for text in HONEST_WORKLOADS[target.kind]]
    pools = [_configs(family, w, facts) for w in workloads for family in families_for(w, facts)[0]]
    seen: set[tuple[str, str]] = set()
    while pools and count < limit:
        for pool in list(pools):  # in turn, so that a small limit has some of each
            try:
                one = next(pool)
            except StopIteration:
                pools.remove(pool)
                continue
            if count < limit and (one.workload.name, one.candidate.id) not in seen:
                seen.add((one.workload.name, one.candidate.id))
                yield one
                count += 1


def _configs(family: Family, w: Workload, facts: DeviceFacts) -> Iterator[Suspect]:
    seeds = family.seeds(w, facts)
    space = family.space(w, facts)
    around = ({**seed, name: value} for seed in seeds for name, values in space.items() for value in values)
    for config in (*seeds, *around):
        if family.illegal(config, w, facts) is None:
            yield Suspect(f"{family.name} {w.name}", HONEST, w, family.render(config, w, facts))
