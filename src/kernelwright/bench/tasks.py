"""What is asked: the problems of a KernelBench level, of one of our suites, or of CUDAHercules, in the order of their numbers."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelwright.bench.results import Task
from kernelwright.problems import ProblemError
from kernelwright.records import Workload

KERNELBENCH, HERCULES = "kernelbench", "cudahercules"
LEVELS = ("1", "2", "3", "4")
GROUPS = {"1": "operator", "2": "fusion", "3": "architecture", "4": "model"}
_NUMBERED = re.compile(r"^(\d+)_(.+)$")


def tasks_of(suite: str, path: Path | None, dtype: str | None = None, workloads: Sequence[Workload] = (), sm: int = 0) -> list[Task]:
    """The tasks of `kernelbench:LEVEL` or `cudahercules` in a checkout at `path`, or of a suite that is given as its Workloads. `sm`:
    of the GPU, 0 for none. Raises ProblemError, one sentence with the fix."""
    kind, _, level = suite.partition(":")
    if kind == KERNELBENCH:
        return kernelbench(level, path, dtype or "fp32")
    if kind == HERCULES:
        from kernelwright.bench.hercules import tasks

        return tasks(path, sm)
    return [_own(suite, i, w) for i, w in enumerate(workloads, 1)]


def kernelbench(level: str, path: Path | None, dtype: str) -> list[Task]:
    """Nothing of a file is executed here."""
    from kernelwright.problems.kernelbench import read

    if level not in LEVELS:
        raise ProblemError(f"KernelBench has the levels {', '.join(LEVELS)}; write kernelbench:1, not kernelbench:{level}")
    if path is None:
        raise ProblemError(f"kernelbench:{level} needs a checkout of KernelBench; name its folder with --path")
    folder = _level_folder(path, level)
    missing = level == "4" and importlib.util.find_spec("transformers") is None
    found = []
    for file in sorted(folder.glob("*.py")):
        if (match := _NUMBERED.match(file.stem)) is None:
            continue
        task = Task(
            suite=f"{KERNELBENCH}:{level}",
            key=f"{level}/{match[1]}",
            number=int(match[1]),
            name=match[2].strip("_").replace("_", " "),
            level=level,
            group=GROUPS[level],
            skipped="dependency" if missing else "",
            why="level 4 needs the package transformers, which is not installed; pip install transformers" if missing else "",
        )
        try:
            found.append(task.replace(workload=read(file, dtype)))
        except ProblemError as error:
            found.append(task.replace(skipped="problem", why=str(error)))
    if not found:
        raise ProblemError(f"{folder} holds no problems; a KernelBench level is a folder of files like 1_Name.py")
    numbers = [t.number for t in found]
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise ProblemError(f"{folder} has two problems with the number {twice}; take one away")
    return sorted(found, key=lambda t: t.number)


def _level_folder(path: Path, level: str) -> Path:
    """A checkout holds KernelBench/levelN; its data folder, and the level's own folder, do as well."""
    name = f"level{level}"
    for folder in (path / "KernelBench" / name, path / name, path):
        if folder.is_dir() and (folder.name == name or folder != path):
            return folder
    raise ProblemError(f"{path} is no checkout of KernelBench: it has neither KernelBench/{name} nor {name}; name another with --path")


def _own(suite: str, number: int, w: Workload) -> Task:
    """A task of one of our suites. Its Problem says what it is, where it knows."""
    from kernelwright.problems import problem_of

    problem = None if w.source else problem_of(w)
    return Task(
        suite=suite,
        key=w.name,
        number=number,
        name=w.name,
        group=str(getattr(problem, "kind", "") or w.problem.partition(":")[0]),
        domain=str(getattr(problem, "domain", "")),
        workload=w,
    )


def only(tasks: Iterable[Task], wanted: Sequence[str]) -> list[Task]:
    """Those that are named: `7`, `3-12`, a part of a name. Several may be joined by commas. Raises ProblemError for one that names none."""
    tasks = list(tasks)
    words = [w.strip() for text in wanted for w in text.split(",") if w.strip()]
    if not words:
        return tasks
    chosen: dict[str, Task] = {}
    for word in words:
        found = [t for t in tasks if _names(word, t)]
        if not found:
            raise ProblemError(f"--only {word} names no problem; give numbers like 7 or 3-12, or a part of a name")
        chosen |= {t.key: t for t in found}
    return [t for t in tasks if t.key in chosen]


def _names(word: str, task: Task) -> bool:
    if match := re.fullmatch(r"(\d+)(?:-(\d+))?", word):
        return int(match[1]) <= task.number <= int(match[2] or match[1])
    plain = word.lower().replace("_", " ")
    return plain in task.name.lower().replace("_", " ") or word == task.key


DOMAINS = (
    ("attention", ("scaled_dot_product", "_flash_attention", "_efficient_attention")),
    ("convolution", ("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose")),
    ("recurrence", ("lstm", "gru", "rnn_")),
    ("matrix product", ("mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "dot", "einsum", "linear")),
    ("loss", ("_loss", "nll_", "kl_div", "binary_cross_entropy", "smooth_l1", "huber")),
    ("pooling", ("pool",)),
    ("normalisation", ("norm",)),
    ("scan", ("cumsum", "cumprod", "cummax", "logcumsumexp")),
    ("softmax", ("softmax", "logsumexp")),
    ("reduction", ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "var", "std", "any", "all")),
)
"""Domain to what the names of its operators are or hold, the heaviest first."""
_WHOLE = {"mm", "mv", "dot", "max", "min", "sum", "mean", "any", "all", "var", "std"}


def domain_of(operators: Sequence[str]) -> str:
    """By the heaviest operator that the reference executes."""
    names = [o.strip("_") for o in operators]
    for domain, words in DOMAINS:
        if any(name == w.strip("_") or (w not in _WHOLE and w.strip("_") in name) for name in names for w in words):
            return domain
    return "element-wise" if names else ""
