"""What is answered: a file, a folder of files, a KernelBench run folder, or CUDA-L1's released JSON lines. Nothing is executed here.

A folder holds files named after the tasks: `7.py`, `7_anything.cu`, in `level1/` where several levels are answered, with
`_sample_2` at the end for further samples. In a file that is not Python there is device code with its launch plan (`candidate_file`).

A KernelBench run folder holds `level_1_problem_7_sample_0_kernel.py` and, once it was judged there, `eval_results.json`. CUDA-L1's lines
have `level_id`, `task_id`, `custom_code` and scores that are mean ratios to several baselines.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.bench.results import Answer, Claim, Task

SUFFIXES = (".py", ".cu", ".cpp", ".cc", ".cxx", ".json")
LARGEST = 4 << 20
"""Bytes of one answer that are read."""
_KERNELBENCH = re.compile(r"^level_(\d+)_problem_(\d+)_sample_(\d+)_kernel$")
_NAMED = re.compile(r"^(\d+)(?:_.*?)??(?:_sample_(\d+))?$")
_LEVEL = re.compile(r"^level_?(\d+)$")

CUDA_L1 = {
    "score_default": "eager",
    "score_torch_compile_default": "compile",
    "score_torch_compile_reduce_overhead": "compile-reduce",
    "score_cuda_graph": "graph",
    "score_cudnn": "cudnn-benchmark",
}
"""CUDA-L1's scores by our name of the rival. Its baselines for CUDA graphs and cuDNN flags are programs that a model wrote."""


class AnswersError(ValueError):
    """Answers that cannot be read; one sentence with the fix."""


@dataclass(frozen=True)
class Entrant:
    """One set of answers."""

    name: str
    answers: Mapping[str, tuple[Answer, ...]]
    """By the task's key, in the order of samples."""
    form: str = "files"
    """`files`, `KernelBench run`, `CUDA-L1`, `baseline`, `model`."""
    notes: tuple[str, ...] = ()
    """What was passed over, as sentences."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """By task, where there is no answer as well."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Of a model: calls, tokens, dollars."""


def named(text: str) -> tuple[str, Path]:
    """`NAME=PATH` or `PATH`; without a name the path's own."""
    name, equals, path = text.partition("=")
    if equals and name and "/" not in name:
        return name.strip(), Path(path).expanduser()
    found = Path(text).expanduser()
    return found.resolve().stem or text, found


def read(text: str, tasks: Sequence[Task], baseline: Path | None = None) -> Entrant:
    """The answers for these tasks. `baseline`: KernelBench's file of baseline times that a run folder's claims are about.
    Raises AnswersError."""
    name, path = named(text)
    if path.is_dir():
        if (path / "eval_results.json").is_file() or any(_KERNELBENCH.match(f.stem) for f in path.glob("*.py")):
            return _run_folder(name, path, tasks, baseline)
        return _folder(name, path, tasks)
    if not path.is_file():
        raise AnswersError(f"{path} does not exist; --answers takes a file or folder of answers, with NAME= before it if you like")
    if path.suffix in (".json", ".jsonl") and (lines := _lines(path)) is not None:
        return _cuda_l1(name, lines, tasks)
    if path.suffix not in SUFFIXES:
        raise AnswersError(f"{path} is no answer; answers are {', '.join(SUFFIXES)} files, folders of them, or CUDA-L1's JSON lines")
    number = _number(path.stem)
    found = [t for t in tasks if number is not None and t.number == number[0]] or (list(tasks) if len(tasks) == 1 else [])
    if not found:
        raise AnswersError(f"{path.name} does not say which problem it answers; begin its name with the number, or add --only NUMBER")
    return Entrant(name, {found[0].key: (_answer(name, found[0], path, 0),)})


def _number(stem: str) -> tuple[int, int] | None:
    """(problem, sample) of a file's name."""
    match = _NAMED.match(stem)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise AnswersError(f"{path} has more than {LARGEST >> 20} MiB; an answer is one source file")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AnswersError(f"{path} cannot be read: {error}") from None


def _answer(entrant: str, task: Task, path: Path, sample: int, claim: Claim | None = None) -> Answer:
    return Answer(entrant=entrant, task=task.key, sample=sample, text=_text(path), suffix=path.suffix, origin=path.name, claim=claim)


def _folder(name: str, path: Path, tasks: Sequence[Task]) -> Entrant:
    by_number = {(t.level, t.number): t for t in tasks}
    by_key = {_plain(t.key): t for t in tasks}
    found: dict[str, dict[int, Answer]] = {}
    others = 0
    for file in sorted(path.rglob("*")):
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        level = next((m[1] for part in file.relative_to(path).parts[:-1] if (m := _LEVEL.match(part))), None)
        number = _number(file.stem)
        task = by_key.get(_plain(file.stem))
        sample = 0
        if task is None and (match := _named_by_folder(file, path, tasks)) is not None:
            task, sample = match
        if task is None and number is not None:
            sample = number[1]
            task = next((t for (of, n), t in by_number.items() if n == number[0] and (level is None or of == level)), None)
        if task is None:
            others += 1
            continue
        samples = found.setdefault(task.key, {})
        if sample in samples:
            raise AnswersError(f"{path} answers {task.key} twice, with {samples[sample].origin} and {file.name}; end one in _sample_1")
        samples[sample] = _answer(name, task, file, sample)
    if not found:
        raise AnswersError(f"{path} holds no answers to these problems; name files after their numbers, as in 7.py or level1/7_name.cu")
    notes = (f"{others} files of {path.name} answer none of these problems",) if others else ()
    return Entrant(name, {key: _in_order(samples) for key, samples in found.items()}, notes=notes)


def _named_by_folder(file: Path, path: Path, tasks: Sequence[Task]) -> tuple[Task, int] | None:
    """CUDAHercules keeps an answer as TASK/sample_0/solution.cu."""
    parts = file.relative_to(path).parts[:-1]
    found = next((t for t in tasks if t.suite == "cudahercules" and t.key.rpartition("/")[2] in parts), None)
    sample = next((int(m[1]) for part in parts if (m := re.fullmatch(r"(?:sample_|r)(\d+)", part))), 0)
    return (found, sample) if found is not None and file.suffix in (".cu", ".py") else None


def _plain(text: str) -> str:
    """A Workload's name as it may stand in a file's."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _in_order(samples: Mapping[int, Answer]) -> tuple[Answer, ...]:
    return tuple(samples[i] for i in sorted(samples))


# ------------------------------------------------------------------------------------------------------- KernelBench runs


def _run_folder(name: str, path: Path, tasks: Sequence[Task], baseline: Path | None) -> Entrant:
    judged = _judged(path / "eval_results.json")
    times = _baseline(baseline) if baseline else {}
    found: dict[str, dict[int, Answer]] = {}
    by_number = {(t.level, t.number): t for t in tasks}
    others = 0
    for file in sorted(path.rglob("*.py")):
        if (match := _KERNELBENCH.match(file.stem)) is None:
            continue
        task = by_number.get((match[1], int(match[2])))
        if task is None:
            others += 1
            continue
        sample = int(match[3])
        entry = judged.get((int(match[2]), sample))
        claim = _claim(entry, _baseline_of(times, task)) if entry is not None else None
        found.setdefault(task.key, {})[sample] = _answer(name, task, file, sample, claim)
    if not found:
        raise AnswersError(
            f"{path} is a KernelBench run without kernels for these problems; its files are level_1_problem_7_sample_0_kernel.py"
        )
    notes = (f"{others} kernels of {path.name} are for other problems",) if others else ()
    if not judged:
        notes += (f"{path.name} has no readable eval_results.json: there are no claims to compare with",)
    return Entrant(name, {key: _in_order(samples) for key, samples in found.items()}, "KernelBench run", notes)


def _judged(path: Path) -> dict[tuple[int, int], Mapping[str, Any]]:
    """What KernelBench found, by (problem, sample). Its files of several versions: a list of samples for each problem, one sample, or
    samples by their number."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    found: dict[tuple[int, int], Mapping[str, Any]] = {}
    for problem, value in raw.items() if isinstance(raw, dict) else ():
        if not str(problem).isdigit():
            continue
        entries: list[Any]
        if isinstance(value, list):
            entries = value
        elif isinstance(value, dict) and "compiled" in value:
            entries = [value]
        elif isinstance(value, dict):
            entries = [v | {"sample_id": v.get("sample_id", k)} for k, v in value.items() if isinstance(v, dict)]
        else:
            continue
        for i, entry in enumerate(e for e in entries if isinstance(e, dict)):
            sample = entry.get("sample_id", i)
            found[int(problem), int(sample) if str(sample).isdigit() else i] = entry
    return found


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf else None


def _claim(entry: Mapping[str, Any], baseline_ms: float | None) -> Claim:
    runtime, reference = _positive(entry.get("runtime")), _positive(entry.get("ref_runtime"))
    correct = bool(entry.get("compiled")) and bool(entry.get("correctness"))
    base = reference or baseline_ms
    speedups = {"eager": base / runtime} if correct and runtime and base else {}
    metadata = entry.get("metadata")
    note = ""
    if isinstance(metadata, dict) and not correct:
        words = next((str(metadata[k]) for k in metadata if "error" in k or "issue" in k or "mismatch" in k), "")
        note = " ".join(words.split())[:200]
    return Claim(source="KernelBench run", speedups=speedups, correct=correct, runtime_ms=runtime, note=note)


def _baseline(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AnswersError(f"{path} is no file of baseline times: {error}") from None
    if not isinstance(found, dict):
        raise AnswersError(f"{path} is no file of baseline times; KernelBench's are in results/timing")
    return found


def _baseline_of(times: Mapping[str, Any], task: Task) -> float | None:
    """KernelBench's mean, in milliseconds, by the name of the problem's file."""
    level = times.get(f"level{task.level}")
    for file, entry in level.items() if isinstance(level, dict) else ():
        if str(file).partition("_")[0] == str(task.number) and isinstance(entry, dict):
            return _positive(entry.get("mean"))
    return None


# --------------------------------------------------------------------------------------------------------------- CUDA-L1


def _lines(path: Path) -> list[dict[str, Any]] | None:
    """The objects of a file of JSON lines; None where it is something else (one object over several lines, a whole Candidate)."""
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    found.append(json.loads(line))
    except (OSError, UnicodeDecodeError) as error:
        raise AnswersError(f"{path} cannot be read: {error}") from None
    except ValueError:
        return None
    good = all(isinstance(x, dict) and "level_id" in x and "task_id" in x for x in found)
    return found if found and good else None


def _cuda_l1(name: str, lines: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> Entrant:
    by_key = {t.key: t for t in tasks}
    found: dict[str, dict[int, Answer]] = {}
    claims: dict[str, Claim] = {}
    empty = others = changed = 0
    for line in lines:
        key = f"{line['level_id']}/{line['task_id']}"
        task = by_key.get(key)
        if task is None:
            others += 1
            continue
        speedups = {ours: value for theirs, ours in CUDA_L1.items() if (value := _positive(line.get(theirs))) is not None}
        code = line.get("custom_code")
        reference = line.get("ref_code")
        other = isinstance(reference, str) and task.workload is not None and _code(reference) != _code(task.workload.source)
        changed += other
        note = "it was made for another version of the problem" if other else ""
        claim = claims[key] = Claim(source="CUDA-L1", speedups=speedups, correct=True if speedups else None, note=note)
        if not isinstance(code, str) or not code.strip():
            empty += 1
            continue
        samples = found.setdefault(key, {})
        samples[len(samples)] = Answer(entrant=name, task=key, sample=len(samples), text=code, origin=f"task {key} of {name}", claim=claim)
    notes = []
    if empty:
        notes.append(f"{empty} tasks have no code: no improvement was found there")
    if others:
        notes.append(f"{others} lines are for other problems")
    if changed:
        notes.append(
            f"{changed} tasks were published for another version of their problem: KernelBench has changed sizes and inputs since; "
            "CUDA-L1's are those of its commit c6c4ab6"
        )
    return Entrant(name, {key: _in_order(s) for key, s in found.items()}, "CUDA-L1", tuple(notes), claims)


def _code(text: str) -> str:
    """Without comments, blank lines and space at the ends of lines, which versions differ in."""
    lines = (line.partition("#")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip())
