"""What all verbs share: exit codes, one-sentence errors, JSON output, options that mean the same everywhere.

Exit codes: 0 done; 1 done, but no verified kernel (or the kernel that was asked about failed); 2 the request is wrong or cannot be met here
(the sentence on stderr says why and what to do); 3 a fault of kernelwright itself; 130 interrupted, continue with the same command.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

NO_KERNEL, BAD_REQUEST, OUR_FAULT, INTERRUPTED = 1, 2, 3, 130
LIST_SUFFIX = ".txt"
"""Of a file that names problems, one a line."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
TargetName = Annotated[str, typer.Option("--target", help="auto, cpu, cuda, cuda:sm_80, cuda:sm_90 or fake.")]
Dtype = Annotated[str | None, typer.Option(help="fp16, bf16 or fp32; the default is the problem's own.")]
Layout = Annotated[str | None, typer.Option(help="gemm and linear only: nn, nt, tn or tt.")]
Layouts = Annotated[
    list[str] | None,
    typer.Option("--layout", help="gemm and linear only: nn, nt, tn or tt; given several times, the suite in each of them."),
]
ProposerName = Annotated[
    str,
    typer.Option(
        "--proposer",
        help="evolve, random, policy (our kernel model), tpe (needs the extra 'search'), llm (needs KERNELWRIGHT_LLM_URL) or mix (llm, "
        "policy and evolve).",
    ),
]


def run(app: typer.Typer) -> None:
    """Runs the application; turns what we know how to explain into one sentence and an exit code."""
    interrupted = "interrupted; what was measured or proved so far is kept, and the same command goes on from there"
    try:
        code = app(standalone_mode=False)  # a verb that raised typer.Exit ends here with its code, as does an interrupt in some versions
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, typer.Abort):
        _fail(interrupted, INTERRUPTED)
    except BrokenPipeError:
        os._exit(0)  # the reader of our output went away: `kernelwright ... | head`
    except Exception as error:
        sentence, code = _explain(error)
        if sentence is None:
            raise
        _fail(sentence, code)


def _explain(error: Exception) -> tuple[str | None, int]:
    if callable(message := getattr(error, "format_message", None)):  # wrong usage, as the option parser words it
        return str(message()), BAD_REQUEST
    if isinstance(error, ValueError | OSError) or type(error).__name__ in _EXPLAINED:
        return str(error), OUR_FAULT if type(error).__name__ == "JudgeError" else BAD_REQUEST
    return None, OUR_FAULT


_EXPLAINED = ("ArchiveError", "PackError", "TargetUnavailable", "MissingExtra", "JudgeError")


def _fail(sentence: str, code: int) -> None:
    """On stderr; with --json also as an object on stdout, so that a program that reads it is not left with nothing."""
    text = " ".join(sentence.split())
    print(f"kernelwright: {text}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": text, "exit_code": code}))
    sys.exit(code)


def emit(value: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, indent=2, default=str))


def console(json_output: bool) -> Any:
    """Where people read: stdout, or stderr when stdout carries JSON."""
    from rich.console import Console

    return Console(stderr=json_output, highlight=False, soft_wrap=not sys.stdout.isatty())


def open_archive() -> Any:
    from kernelwright.archive import Archive
    from kernelwright.settings import settings

    return Archive(settings().archive)


def open_target(name: str) -> Any:
    """The target, usable here. Raises TargetUnavailable, ValueError."""
    from kernelwright.targets import usable

    return usable(name)


def command_line() -> str:
    """What the user typed, for the report."""
    return " ".join(["kernelwright", *sys.argv[1:]])


def workloads_of(
    text: str, dtype: str | None = None, layouts: Sequence[str] = (), accumulate: str | None = None, *, limit: int | None = None
) -> tuple[Any, ...]:
    """The Workloads that a suite's name, a problem, a KernelBench file or a list (LIST_SUFFIX) stands for, in each of the layouts. With
    `limit` only so many of each layout, drawn at random, but the same ones every time, and a larger limit adds to those of a smaller: the
    first of a suite are all of a kind. Raises ProblemError, BadParameter."""
    from kernelwright.problems import LAYOUTS, resolve, suites

    if text.endswith(LIST_SUFFIX):
        names = listed(Path(text))
        drawn = [names[i] for i in sampled(len(names), limit)]
        every = (resolve(name, dtype=dtype, layout=x, accumulate=accumulate) for x in layouts or (None,) for name in drawn)
        return tuple(dict.fromkeys(every))
    if text not in suites.SUITES:
        return tuple(resolve(text, dtype=dtype, layout=layout, accumulate=accumulate) for layout in layouts or (None,))
    if wrong := [layout for layout in layouts if layout not in LAYOUTS]:
        raise typer.BadParameter(f"no layout {wrong[0]!r}; choose one of {', '.join(LAYOUTS)}")
    suite = suites.suite(text)
    if layouts and not all(w.layout for w in suite):
        raise typer.BadParameter(f"{text} has workloads that are no products, which have no layout; leave --layout out")
    drawn = sampled(len(suite), limit)
    return tuple(suite[i].replace(dtype=dtype or suite[i].dtype, layout=x or suite[i].layout) for x in layouts or (None,) for i in drawn)


def listed(path: Path) -> list[str]:
    """The problems that a file names, one a line; after # is a comment. Raises BadParameter."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read as a list of problems: {error}") from None
    found = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not found:
        raise typer.BadParameter(f"{path} names no problem; write one a line, like gemm:8x4096x4096:bf16:nt")
    return found


def sampled(count: int, limit: int | None) -> list[int]:
    """Which of so many, at most `limit` of them, in their order: a random sample that is the same every time, and in that of a larger
    limit."""
    return sorted(random.Random(0).sample(range(count), count)[:limit])


def require_rivals(names: Sequence[str], w: Any, target: str) -> None:
    """Raises BadParameter with the names that there are."""
    from kernelwright import rivals

    known = rivals.names_for(w, target, every=True)
    if unknown := sorted(set(names) - set(known)):
        raise typer.BadParameter(f"no rival {unknown[0]!r} for {w.name} on {target}; choose from {', '.join(known)}")


def warn_of_faults(w: Any, screen: Any) -> None:
    """Says what is wrong with a KernelBench problem itself: a wrong kernel could pass it."""
    if w.source:
        from kernelwright.problems.lint import lint

        for finding in lint(w):
            if finding.severity == "error":
                screen.print(f"the problem: {finding.text} ({finding.rule})", markup=False)


def out_dir(path: Path) -> Path:
    """The folder for reports and packs, made if need be. Raises OSError with a clear sentence."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be made ({error.strerror}); name another with --out") from None
    return path


def by_stage(texts: Sequence[str] | None, stages: Sequence[str], kind: Any, option: str, least: float = 1e-12) -> dict[str, Any]:
    """What a stage of training is told: `300` or `sft=300`, by stage; the empty name is for all others. Raises BadParameter."""
    found = {}
    for text in texts or ():
        stage, equals, number = text.rpartition("=")
        if equals:
            one_of(stage, stages, option)
        try:
            value = kind(number)
        except ValueError:
            value = -1
        if not value >= least:
            raise typer.BadParameter(f"{option} {text!r} is not a number in range; write one like 300, or sft=300 for one stage")
        found[stage] = value
    return found


def one_of(value: str, known: Sequence[str], what: str) -> None:
    if value not in known:
        raise typer.BadParameter(f"{what} {value!r} is not known; choose from {', '.join(known)}")


def stages_of(asked: Sequence[str], stages: Sequence[str]) -> list[str]:
    """Those that are asked for, in their order; `all` of them. Raises BadParameter."""
    for name in asked:
        one_of(name, (*stages, "all"), "STAGE")
    return [name for name in stages if name in asked or "all" in asked]
