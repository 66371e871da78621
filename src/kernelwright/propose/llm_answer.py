"""A model's answer, read strictly: three sections and one fenced block of code. Nothing in it is executed or formatted here.

What a text cannot be turned into a Candidate for is said in one sentence, which goes back to the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelwright.candidate_file import CandidateFileError, parse
from kernelwright.families.family import DeviceFacts
from kernelwright.problems import KERNELBENCH
from kernelwright.records import Candidate, Origin, Workload

SECTIONS = ("Performance analysis", "Design", "Code")
"""CUDA-L1 asks for these: the comparison of the exemplars first, so that the code follows from it."""
ANSWER, SOURCE = 200_000, 64_000
"""Most characters; our own kernels have up to 34,000."""


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


_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_HEADING = re.compile(r"^#{1,4}[ \t]+(?:\d[.)][ \t]*)?(.+?)[ \t:]*$", re.MULTILINE)
_BLOCK = re.compile(r"^(`{3,})[ \t]*([\w+#-]*)[ \t]*\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
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


def _section(text: str) -> str:
    """What follows the heading `Code`. Headings inside blocks of code are none."""
    blocks = [m.span() for m in _BLOCK.finditer(text)]
    headings = [m for m in _HEADING.finditer(text) if not any(start <= m.start() < end for start, end in blocks)]
    found = [m for m in headings if m[1].strip().lower() in {s.lower() for s in SECTIONS}]
    names = tuple(m[1].strip().lower() for m in found)
    if names != tuple(s.lower() for s in SECTIONS):
        wanted = ", ".join(f"`## {s}`" for s in SECTIONS)
        raise AnswerError(f"the answer must have the headings {wanted}, each once and in this order; it has {', '.join(names) or 'none'}")
    return text[found[-1].end() :]


def _code(section: str, choices: tuple[Language, ...]) -> tuple[Language, str]:
    blocks = _BLOCK.findall(section)
    wanted = " or ".join(f"```{choice.tags[0]}" for choice in choices)
    if len(blocks) != 1:
        cut = "; the last one was never closed, so the answer may have been cut off" if section.count("```") % 2 else ""
        raise AnswerError(f"under `## Code` there must be one block of code, {wanted}; there are {len(blocks)}{cut}")
    _, tag, source = blocks[0]
    for choice in choices:
        if tag.lower() in choice.tags:
            return choice, source
    raise AnswerError(f"the block of code is marked {tag!r}; it must be {wanted}")


def _only_headers(source: str) -> None:
    """A file that is included by a path, or by a macro, could bring anything into the compiler's messages, which we keep and show."""
    spliced = source.replace("\\\n", "")
    for directive, named in _INCLUDE.findall(spliced):
        file = named.split("//")[0].split("/*")[0].strip()
        if directive != "include" or not _NAMED.fullmatch(file) or ".." in file:
            shown = " ".join(f"#{directive} {named}".split())[:80]
            raise AnswerError(f'`{shown}` is not allowed; include standard headers as <NAME> and device headers as "kernelwright/NAME.cuh"')
