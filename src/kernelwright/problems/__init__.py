"""What to compute: the registry of Problems, and the text by which a user names a Workload.

    gemm:512x512x512[:fp16|bf16|fp32][:nn|nt|tn|tt][:acc=fp16]     M x N x K; default fp16, nn, accumulate in fp32
    linear:512x512x512[:fp16|bf16][:nt|...][:bias+gelu]            the same with an epilogue (epilogue.py); default fp16, nt, bias
    spmm:8x4096x4096[:fp16|bf16][:quad-50][:bias+residual]         N x M x K, a pruned weight (spmm.py); default fp16, quad-50
    unpack:4096x4096[:fp16|bf16][:quad-50]                         M x K, that weight made dense
    chain:softmax[:1024x1024][:fp32|fp16|bf16]                     rows x cols; default 1024x1024, fp32
    expert:softmax[:4096x4096][:fp32|fp16|bf16]                    a problem of the suite `experts` (experts/); default its first shape
    path/to/file.py[:fp32|fp16|bf16]                               a KernelBench file: Model, get_inputs, get_init_inputs

Tokens after the shape may stand in any order. PyTorch is imported when a Problem is first asked for, not before.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.problems.epilogue import STEPS
from kernelwright.problems.epilogue import parse as parse_epilogue
from kernelwright.records import Workload

if TYPE_CHECKING:
    from kernelwright.problems.problem import Problem

__all__ = ["Known", "ProblemError", "known", "problem_of", "register", "resolve"]

FLOATS = ("fp16", "bf16", "fp32")
LAYOUTS = ("nn", "nt", "tn", "tt")
LARGEST_AXIS = 2**31
KERNELBENCH = "kernelbench:"


class ProblemError(ValueError):
    """A problem, shape, type, layout or file that cannot be used; the message is one sentence that says what to do."""


class Known(NamedTuple):
    """A line of the list of problems."""

    name: str
    description: str
    example: str


_registry: dict[str, Problem] = {}


def register(problem: Problem) -> None:
    """Adds a Problem under its name. Raises ProblemError when the name is taken."""
    if problem.name in _registry:
        raise ProblemError(f"a problem named {problem.name!r} is registered already; give the new one another name")
    _registry[problem.name] = problem


def _problems() -> dict[str, Problem]:
    """The registry, with our own Problems in it."""
    from kernelwright.problems.applications import APPLICATIONS, CHALLENGES
    from kernelwright.problems.chains import PROBLEMS
    from kernelwright.problems.experts import EXPERTS
    from kernelwright.problems.gemm import Gemm
    from kernelwright.problems.linear import Linear
    from kernelwright.problems.spmm import Spmm, Unpack

    if Gemm.name not in _registry:
        for problem in (Gemm(), Linear(), Spmm(), Unpack(), *PROBLEMS, *EXPERTS, *APPLICATIONS, *CHALLENGES):
            register(problem)
    return _registry


def problem_of(w: Workload) -> Problem:
    """The Problem of a Workload. Raises ProblemError when there is none of that name, or its file cannot be used."""
    if w.problem.startswith(KERNELBENCH):
        from kernelwright.problems.kernelbench import problem_from

        return problem_from(w)
    if w.problem not in _problems():
        raise _unknown(w.problem)
    problem = _registry[w.problem]
    if wrong := _unsound(w, problem.axes):
        raise ProblemError(f"the workload {w.name} cannot be: {wrong}; it was edited, or made by another version")
    return problem


@lru_cache(maxsize=4096)
def _unsound(w: Workload, axes: tuple[str, ...]) -> str | None:
    """Why no text names a Workload: one that was read from an archive or a pack may hold anything; None for a sound one."""
    if set(w.axes) != set(axes):
        return f"its axes are {', '.join(axes)}"
    if w.problem in ("gemm", "linear") and w.layout not in LAYOUTS:
        return f"its layout is one of {', '.join(LAYOUTS)}"
    if w.problem in ("gemm", "linear", "spmm", "unpack") or w.problem.startswith("chain:"):
        if w.dtype not in FLOATS or w.accumulate not in ("fp32", "fp16"):
            return f"its dtype is one of {', '.join(FLOATS)}, and it accumulates in fp32 or fp16"
        if max(w.axes.values()) > LARGEST_AXIS:
            return f"an axis ends at {LARGEST_AXIS}"
    if w.problem.startswith("expert:") and (reason := _registry[w.problem].refuses(w)):  # pyright: ignore[reportAttributeAccessIssue]
        return f"it {reason}"
    try:
        if w.problem == "linear":
            parse_epilogue(w.epilogue)
        if w.problem in ("spmm", "unpack"):
            from kernelwright.problems import spmm

            spmm.check(w)
    except ValueError as error:
        return str(error)
    return None


def known() -> list[Known]:
    """Every problem that `resolve` takes, with one line on each and an example."""
    from kernelwright.problems.chains import ChainProblem
    from kernelwright.problems.experts import Expert

    lines = [
        Known("gemm", "C = A B for any M x N x K, four layouts", "gemm:512x512x512:fp16:nn"),
        Known("linear", f"A B with an epilogue: {', '.join(STEPS)}, joined by +", "linear:512x512x512:fp16:nt:bias+gelu"),
    ]
    lines.append(Known("spmm", "X W^T with a pruned, compressed W, N x M x K", "spmm:8x4096x4096:fp16:quad-50"))
    lines.append(Known("unpack", "a compressed W made dense, M x K", "unpack:4096x4096:fp16:quad-50"))
    for problem in _problems().values():
        if isinstance(problem, ChainProblem):
            lines.append(Known(problem.name, problem.chain.formula, f"{problem.name}:1024x1024:fp32"))
        if isinstance(problem, Expert):
            lines.append(Known(problem.name, problem.formula, problem.workload(problem.full[0]).name))
    lines.append(Known("FILE.py", "any PyTorch module in KernelBench form", "path/to/my_op.py:fp32"))
    return lines


def resolve(text: str, *, dtype: str | None = None, layout: str | None = None, accumulate: str | None = None) -> Workload:
    """The Workload that a text names; `resolve(w.name) == w` for every Workload but those of files.

    The keyword arguments set what the text leaves open. Raises ProblemError for everything that is not a Workload.
    """
    tokens = [t.strip() for t in text.strip().split(":")]
    if tokens[0].endswith(".py") or "/" in tokens[0]:
        return _resolve_file(tokens, dtype, layout, accumulate)
    if tokens[0] == "gemm":
        return _resolve_gemm(text, tokens[1:], dtype, layout, accumulate)
    if tokens[0] == "linear":
        return _resolve_linear(text, tokens[1:], dtype, layout, accumulate)
    if tokens[0] in ("spmm", "unpack"):
        return _resolve_spmm(text, tokens, dtype, layout, accumulate)
    if tokens[0] == "chain" and len(tokens) > 1:
        return _resolve_chain(text, tokens[1], tokens[2:], dtype, layout, accumulate)
    if tokens[0] == "expert" and len(tokens) > 1:
        return _resolve_expert(text, tokens[1], tokens[2:], dtype, layout, accumulate)
    if tokens[0] == "kernelbench":
        raise ProblemError(f"{text!r} names a KernelBench problem without its file; give the path of the .py file instead")
    raise _unknown(tokens[0])


def _resolve_gemm(text: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    if not tokens or not tokens[0]:
        raise ProblemError("gemm needs a shape M x N x K, for example gemm:512x512x512")
    axes = _shape(text, tokens[0], ("M", "N", "K"), "gemm:512x512x512")
    dtype, layout, accumulate = _options(text, tokens[1:], dtype, layout, accumulate)
    dtype, accumulate = dtype or "fp16", accumulate or "fp32"
    if accumulate == "fp16" and dtype != "fp16":
        raise ProblemError(
            f"acc=fp16 needs fp16 inputs, not {dtype}; leave acc out, or write {text.split(':')[0]}:{tokens[0]}:fp16:acc=fp16"
        )
    return Workload(problem="gemm", axes=axes, dtype=dtype, accumulate=accumulate, layout=layout or "nn")


def _resolve_linear(text: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    if not tokens or not tokens[0]:
        raise ProblemError("linear needs a shape M x N x K, for example linear:512x512x512:bias+gelu")
    axes = _shape(text, tokens[0], ("M", "N", "K"), "linear:512x512x512")
    others = [t for t in tokens[1:] if t in (*FLOATS, *LAYOUTS) or t.startswith("acc=")]
    steps = [t for t in tokens[1:] if t not in others] or ["bias"]
    if len(steps) > 1:
        raise ProblemError(
            f"{text!r} has two epilogues, {steps[0]!r} and {steps[1]!r}; join their steps by +, or leave out what is neither"
        )
    try:
        epilogue = parse_epilogue(steps[0]).text
    except ValueError as error:
        choices = ", ".join(("fp16", "bf16", *LAYOUTS))
        raise ProblemError(f"{error} (in {text!r}, whose other parts may be {choices})") from None
    dtype, layout, accumulate = _options(text, others, dtype, layout, accumulate)
    if dtype == "fp32":
        raise ProblemError("linear is there in fp16 and bf16 only, not fp32; choose one of them, or the problem gemm")
    if accumulate not in (None, "fp32"):
        raise ProblemError(f"linear accumulates in fp32 only; leave acc={accumulate} out")
    return Workload(problem="linear", axes=axes, dtype=dtype or "fp16", layout=layout or "nt", epilogue=epilogue)


def _resolve_spmm(text: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    from kernelwright.problems import spmm

    name, *tokens = tokens
    axes, example = (("N", "M", "K"), "spmm:8x4096x4096:quad-50") if name == "spmm" else (("M", "K"), "unpack:4096x4096:quad-50")
    if not tokens or not tokens[0]:
        raise ProblemError(f"{name} needs a shape {' x '.join(axes)}, for example {example}")
    sizes = _shape(text, tokens[0], axes, example)
    floats = [t for t in tokens[1:] if t in FLOATS]
    layouts = [t for t in tokens[1:] if re.fullmatch(r"\w+-\d+", t, re.ASCII)]
    steps = [t for t in tokens[1:] if t not in floats and t not in layouts]
    for what, found in (("dtypes", floats), ("layouts", layouts), ("epilogues", steps)):
        if len(found) > 1:
            raise ProblemError(f"{text!r} has two {what}, {found[0]!r} and {found[1]!r}; leave one of them out")
    dtype, _, accumulate = _options(text, floats, dtype, None, accumulate)
    if dtype == "fp32":
        raise ProblemError(f"{name} is there in fp16 and bf16 only, not fp32; choose one of them")
    if accumulate not in (None, "fp32"):
        raise ProblemError(f"{name} accumulates in fp32 only; leave acc={accumulate} out")
    if name == "unpack" and steps:
        raise ProblemError(f"unpack has no epilogue; leave {steps[0]!r} out")
    try:
        kept = spmm.parse(layouts[0] if layouts else layout or "quad-50")
        epilogue = spmm.parse_epilogue(steps[0] if steps else "")
        w = Workload(problem=name, axes=sizes, dtype=dtype or "fp16", layout=f"{kept.layout}-{kept.zeros}", epilogue=epilogue)
        spmm.check(w)
    except ValueError as error:
        raise ProblemError(f"{error} (in {text!r}, whose other parts may be fp16 and bf16)") from None
    return w


def _resolve_chain(text: str, name: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    problem = _problems().get(f"chain:{name}")
    if problem is None:
        raise _unknown(f"chain:{name}")
    if tokens and re.match(r"[-\d]", tokens[0]):
        axes = _shape(text, tokens.pop(0), ("rows", "cols"), f"chain:{name}:1024x1024")
    else:
        axes = {"rows": 1024, "cols": 1024}
    dtype, layout, accumulate = _options(text, tokens, dtype, layout, accumulate)
    _only_gemm(f"chain:{name}", layout, accumulate)
    w = Workload(problem=f"chain:{name}", axes=axes, dtype=dtype or "fp32")
    if reason := problem.refuses(w):  # pyright: ignore[reportAttributeAccessIssue]: chains alone are named chain:
        raise ProblemError(f"chain:{name} {reason}")
    return w


def _resolve_expert(text: str, title: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    from kernelwright.problems.experts import Expert

    problem = _problems().get(name := f"expert:{title}")
    if not isinstance(problem, Expert):
        raise _unknown(name)
    sizes = problem.full[0]
    if tokens and re.match(r"[-\d]", tokens[0]):
        sizes = tuple(_shape(text, tokens.pop(0), problem.axes, problem.workload(sizes).name).values())
    own = [t for t in tokens if t in problem.dtypes]
    others = [t for t in tokens if t not in own]
    named, layout, accumulate = _options(text, others, None if dtype in problem.dtypes else dtype, layout, accumulate)
    _only_gemm(name, layout, accumulate)
    if len({*own, dtype, named} - {None}) > 1:
        raise ProblemError(f"{text!r} names a dtype, and {dtype or named} was given as well; choose one")
    dtype = own[0] if own else dtype or named
    if dtype is not None and dtype not in problem.dtypes:
        raise ProblemError(f"{name} is there in {', '.join(problem.dtypes)} only, not {dtype}; choose one of them, or leave it out")
    w = problem.workload(sizes, dtype or "")
    if reason := problem.refuses(w):
        raise ProblemError(f"{name} {reason}")
    return w


def _resolve_file(tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None) -> Workload:
    from kernelwright.problems.kernelbench import load

    dtype, layout, accumulate = _options(":".join(tokens), tokens[1:], dtype, layout, accumulate)
    _only_gemm(f"{Path(tokens[0]).name}", layout, accumulate)
    return load(tokens[0], dtype=dtype or "fp32")


def _only_gemm(name: str, layout: str | None, accumulate: str | None) -> None:
    if layout:
        raise ProblemError(f"{name} has no layout; leave {layout!r} out")
    if accumulate not in (None, "fp32"):
        raise ProblemError(f"{name} accumulates in fp32 only; leave acc={accumulate} out")


def _shape(text: str, token: str, axes: tuple[str, ...], example: str) -> dict[str, int]:
    wanted = " x ".join(axes)
    if not re.fullmatch(r"-?\d+(x-?\d+)*", token, re.ASCII):
        raise ProblemError(f"{token!r} in {text!r} is not a shape; write {wanted} as in {example}")
    sizes = [int(n) for n in token.split("x")]
    if len(sizes) != len(axes):
        raise ProblemError(f"the shape {token!r} has {len(sizes)} sizes and needs {len(axes)}, {wanted}; write it as in {example}")
    for axis, size in zip(axes, sizes, strict=True):
        if size < 0:
            raise ProblemError(f"{axis} = {size} in {text!r} is negative; sizes must be 0 or more")
        if size > LARGEST_AXIS:
            raise ProblemError(f"{axis} = {size} in {text!r} is too large; sizes may be at most {LARGEST_AXIS}")
    return dict(zip(axes, sizes, strict=True))


def _options(
    text: str, tokens: list[str], dtype: str | None, layout: str | None, accumulate: str | None
) -> tuple[str | None, str | None, str | None]:
    """Sorts the tokens after the shape into dtype, layout and accumulate type, beside those given as arguments."""
    found = {"dtype": dtype, "layout": layout, "acc": accumulate}
    choices = {"dtype": FLOATS, "layout": LAYOUTS, "acc": ("fp32", "fp16")}
    for token in tokens:
        if token.startswith("acc="):
            kind, value = "acc", token.removeprefix("acc=")
        elif token in LAYOUTS:
            kind, value = "layout", token
        elif token in FLOATS:
            kind, value = "dtype", token
        else:
            every = (*FLOATS, *LAYOUTS, "acc=fp32", "acc=fp16")
            raise ProblemError(f"{token!r} in {text!r} is neither a dtype nor a layout; use {', '.join(every)}")
        if found[kind] not in (None, value):
            raise ProblemError(f"{text!r} sets {kind} to {value}, but {found[kind]} was given as well; choose one")
        found[kind] = value
    for kind, value in found.items():
        if value is not None and value not in choices[kind]:
            raise ProblemError(f"unknown {kind} {value!r}; choose one of {', '.join(choices[kind])}")
    return found["dtype"], found["layout"], found["acc"]


def _unknown(name: str) -> ProblemError:
    from kernelwright.problems.suites import SUITES

    if name in SUITES:
        return ProblemError(f"{name!r} is a suite of many workloads, not one problem; name one problem, or use a command that takes suites")
    names = [k.name for k in known()]
    # a chain is often named without its prefix
    close = f"chain:{name}" if f"chain:{name}" in names else None
    hint = f" (did you mean {close}?)" if close else _nearest(name, [*names, *SUITES])
    few = [n for n in names if not n.startswith("expert:")]
    experts = f"expert:NAME ({len(names) - len(few)} of them, docs/experts.md and docs/applications.md)"
    return ProblemError(f"unknown problem {name!r}{hint}; known are {', '.join([*few[:-1], experts, few[-1]])}")


def _nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
