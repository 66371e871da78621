"""A model's answer, read strictly: three sections and one fenced block of code. Nothing in it is executed or formatted here.

What a text cannot be turned into a Candidate for is said in one sentence, which goes back to the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from kernelwright.candidate_file import CandidateFileError, parse
from kernelwright.families.family import DeviceFacts
from kernelwright.problems import KERNELBENCH
from kernelwright.records import Candidate, Origin, Workload

SECTIONS = ("Performance analysis", "Design", "Code")
"""CUDA-L1 asks for these: the comparison of the exemplars first, so that the code follows from it."""
ANSWER, SOURCE = 200_000, 64_000
"""Most characters; our own kernels have up to 34,000."""
LONGEST_HEADING = 80


@dataclass(frozen=True)
class Language:
    """What a candidate may be written in."""

    name: str
    tags: tuple[str, ...]
    """Of the fenced block; the first is the one asked for."""
    suffix: str
    """Of the file that it would be (`candidate_file`)."""


CPP = Language("C++20", ("cpp", "c++", "cc", "c"), ".cpp")
CUDA = Language("CUDA C++", ("cuda", "cu", "cpp", "c++"), ".cu")
PYTHON = Language("Python (PyTorch, or Triton where it is installed)", ("python", "py"), ".py")


def languages(w: Workload, device: DeviceFacts) -> tuple[Language, ...]:
    """Those in which a candidate for the Workload can be evaluated on the device; empty where models cannot help."""
    if device.target == "cpu":
        return (CPP, PYTHON) if w.problem.startswith(KERNELBENCH) else (CPP,)
    if not device.target.startswith("cuda"):
        return ()
    return (CUDA, PYTHON) if w.problem.startswith(KERNELBENCH) else (CUDA,)


class AnswerError(ValueError):
    """An answer that holds no candidate; the message is one sentence with the fix, for the model."""


_THOUGHTS = re.compile(r"\A(?:\s*<think(?:ing)?>)?.*?</think(?:ing)?>", re.DOTALL)
"""Many chat templates write the opening tag into the prompt, so that an answer has the closing one alone."""
_HEADING = re.compile(r"#{1,4}\s+(?:\d[.)]\s*)?(.*)")
_FENCE = re.compile(r"(`{3,})[ \t]*([\w+#-]*)([^`]*)")
_INCLUDE = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(include\w*|embed|import)\b[ \t]*(.*)$", re.MULTILINE)
_NAMED = re.compile(r'<[\w.+-]+(?:/[\w.+-]+)*>|"kernelwright/\w+\.cuh"')


def read(text: str, choices: tuple[Language, ...], w: Workload, origin: Origin) -> Candidate:
    """The Candidate that an answer holds. Raises AnswerError."""
    if len(text) > ANSWER:
        raise AnswerError(f"the answer has {len(text)} characters; at most {ANSWER} are read")
    text = _THOUGHTS.sub("", text.replace("\r\n", "\n"))
    language, source = _code(_section(text), choices)
    if "\0" in source or not source.strip():
        raise AnswerError("the block of code is empty or holds a zero byte; put the whole kernel there")
    if len(source) > SOURCE:
        raise AnswerError(f"the code has {len(source)} characters; at most {SOURCE} are taken")
    source = source.strip("\n") + "\n"  # the same kernel is the same candidate
    if language is not PYTHON:
        _only_headers(source)
    try:
        return parse(source, language.suffix, w, origin)
    except CandidateFileError as error:
        raise AnswerError(f"the code is no candidate: {error}") from None


def _section(text: str) -> list[str | Block]:
    """What follows the heading `Code`: lines and blocks. Headings inside blocks are none."""
    pieces = _pieces(text)
    found: list[tuple[int, str]] = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, str) and len(piece) < LONGEST_HEADING and (heading := _HEADING.fullmatch(piece)):
            name = heading[1].strip(" \t:*").lower()
            found += [(i, name)] if name in {s.lower() for s in SECTIONS} else []
    names = tuple(name for _, name in found)
    if names != tuple(s.lower() for s in SECTIONS):
        wanted = ", ".join(f"`## {s}`" for s in SECTIONS)
        has = ", ".join(names[:10]) or "none"
        raise AnswerError(f"the answer must have the headings {wanted}, each once and in this order; it has {has}")
    return pieces[found[-1][0] + 1 :]


class Block(NamedTuple):
    """A fenced one; `closed` or the rest of the text."""

    tag: str
    source: str
    closed: bool


def _pieces(text: str) -> list[str | Block]:
    """Line by line, in a time that grows with the text and no faster: an answer may be written to keep a pattern busy for hours."""
    pieces: list[str | Block] = []
    fence, tag, inside = "", "", list[str]()
    for line in text.split("\n"):
        if fence:
            if line.rstrip(" \t") == fence:
                pieces.append(Block(tag, "".join(inside), True))
                fence = ""
            else:
                inside.append(f"{line}\n")
        elif line.startswith("```") and (opening := _FENCE.fullmatch(line)):
            fence, tag, inside = opening[1], opening[2], []
        else:
            pieces.append(line)
    # headings after a fence that nobody closed are read all the same, so that the message is about the fence
    return [*pieces, Block(tag, "", False), *"".join(inside).split("\n")] if fence else pieces


def _code(section: list[str | Block], choices: tuple[Language, ...]) -> tuple[Language, str]:
    blocks = [piece for piece in section if isinstance(piece, Block)]
    closed = [block for block in blocks if block.closed]
    wanted = " or ".join(f"```{choice.tags[0]}" for choice in choices)
    if len(blocks) != 1 or not closed:
        cut = "; the last one was never closed, so the answer may have been cut off" if len(closed) < len(blocks) else ""
        raise AnswerError(f"under `## Code` there must be one block of code, {wanted}; there are {len(closed)}{cut}")
    tag, source, _ = closed[0]
    for choice in choices:
        if tag.lower() in choice.tags:
            return choice, source
    raise AnswerError(f"the block of code is marked {tag[:40]!r}; it must be {wanted}")


def _only_headers(source: str) -> None:
    """A file that is included by a path, or by a macro, could bring anything into the compiler's messages, which we keep and show."""
    spliced = source.replace("\\\n", "")
    for directive, named in _INCLUDE.findall(spliced):
        file = named.split("//")[0].split("/*")[0].strip()
        if directive != "include" or not _NAMED.fullmatch(file) or ".." in file:
            shown = " ".join(f"#{directive} {named}".split())[:80]
            raise AnswerError(f'`{shown}` is not allowed; include standard headers as <NAME> and device headers as "kernelwright/NAME.cuh"')
