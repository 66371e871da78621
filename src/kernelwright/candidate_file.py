"""Reads a kernel from a file of the user's: `.cu`, `.cpp`, `.py` (a KernelBench answer with `ModelNew`) or `.json` (a whole Candidate).

A `.cu` file carries its launch plan as JSON in a comment, a `.cpp` file may:

    /* kernelwright-plan
    {"launches": [{"kernel": "k", "grid": ["cdiv(N, 128)", "M", 1], "block": [128, 1, 1],
                   "args": [{"type": "tensor", "name": "a"}, {"type": "scalar", "ctype": "i64", "value": "M"}]}]}
    */

Without one, a `.cpp` file must define `extern "C" void kernel(...)` that takes every tensor of the problem in order, then every axis
as a 64-bit integer, then the row stride of every tensor as a 64-bit integer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, ScalarArg, TensorArg, Workload

_PLAN = re.compile(r"/\*\s*kernelwright-plan\s*(\{.*?\})\s*\*/", re.DOTALL)


class CandidateFileError(ValueError):
    """A file that is no candidate; the message is one sentence with the fix."""


def load(path: Path, w: Workload, target: str) -> Candidate:
    """The Candidate in a file, for a Workload on a target. Raises CandidateFileError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise CandidateFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CandidateFileError(f"{path} is not a text file") from None
    kind = _KINDS.get(path.suffix)
    if kind in ("cuda", "cpu") and not target.startswith(kind):
        raise CandidateFileError(f"{path} is for target {kind}, not {target}; add --target {kind}")
    try:
        return parse(text, path.suffix, w, Origin(kind="file", name=path.name))
    except CandidateFileError as error:
        raise CandidateFileError(f"{path}: {error}") from None


_KINDS: dict[str, Literal["cuda", "cpu", "python"]] = {".cu": "cuda", ".cpp": "cpu", ".cc": "cpu", ".cxx": "cpu", ".py": "python"}


def parse(text: str, suffix: str, w: Workload, origin: Origin) -> Candidate:
    """The Candidate that a text in a file of that suffix is. Nothing in it is executed. Raises CandidateFileError."""
    if suffix == ".json":
        try:
            return Candidate.from_json(text).replace(origin=origin)
        except ValueError as error:
            raise CandidateFileError(f"it is not a candidate: {error}") from None
    if suffix not in _KINDS:
        raise CandidateFileError("a candidate is a .cu, .cpp, .py or .json file")
    kind = _KINDS[suffix]
    if kind == "python":
        return Candidate(kind=kind, source=text, origin=origin)
    plan = _plan(text)
    if plan is None and kind == "cuda":
        raise CandidateFileError("it has no launch plan; put one in a comment that begins with /* kernelwright-plan {...} */")
    return Candidate(kind=kind, source=text, plan=plan or default_plan(w), origin=origin)


def _plan(text: str) -> LaunchPlan | None:
    found = _PLAN.search(text)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.group(1), type=LaunchPlan)
    except ValueError as error:
        raise CandidateFileError(f"its launch plan is wrong: {error}") from None


def default_plan(w: Workload) -> LaunchPlan:
    """Of a C++ function `kernel`: tensors, axes, row strides."""
    from kernelwright.problems import problem_of

    specs = problem_of(w).tensors(w)
    args = [
        *(TensorArg(name=s.name) for s in specs),
        *(ScalarArg(ctype="i64", value=axis) for axis in w.axes),
        *(ScalarArg(ctype="i64", value=f"ld_{s.name}") for s in specs),
    ]
    return LaunchPlan(launches=(Launch(kernel="kernel", args=tuple(args)),))
