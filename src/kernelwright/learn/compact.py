"""A kernel's source in as few tokens as it needs: without comments, indentation and the declarations that no kernel uses.

A Family's kernel stands in one file with all the functions that some config of the Family calls: of an element-wise chain's 2,900 tokens
(SmolLM2's), 1,000 are the kernel. A small model's context has room for those only. The result is C++ or CUDA; `learn.hf_corpus` takes
it as an answer only where it compiles to the same machine code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_QUOTED_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_TYPE = re.compile(r"(?:typedef\s+)?(?:struct|class|union|enum)\b(?:\s+class\b)?(?:\s*alignas\s*\([^()]*\))?\s+([A-Za-z_]\w*)")
_ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|alignas|__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_TEMPLATE = re.compile(r"^\s*(?:template\s*<(?:[^<>]|<[^<>]*>)*>\s*)+")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(")
_DECLARED = re.compile(r"([A-Za-z_]\w*)\s*(?:=|\[|,|;|\{)")
"""Also catches what an initialiser mentions: too many names keep too much, too few would break the source."""


@lru_cache(maxsize=4096)
def compact(source: str) -> str:
    """The same kernels in a shorter text: C++ or CUDA."""
    chunks = list(_chunks(without_comments(source)))
    kept = _reachable(chunks)
    return "\n".join(chunk.text for chunk, keep in zip(chunks, kept, strict=True) if keep) + "\n"


def without_comments(source: str) -> str:
    """Lines without comments, indentation and blank lines; what stands in quotes is left alone."""
    bare = _QUOTED_OR_COMMENT.sub(lambda found: found[1] or " ", source)
    return "\n".join(line.strip() for line in bare.splitlines() if line.strip())


@dataclass(frozen=True)
class Chunk:
    """One declaration at file scope, or one line of the preprocessor."""

    text: str
    names: frozenset[str] = frozenset()
    """What it declares; empty for what must stay."""
    words: frozenset[str] = field(default=frozenset())
    """All that it mentions."""
    head: frozenset[str] = field(default=frozenset())
    """What its signature mentions."""
    operator: bool = False
    """An overloaded operator: it is called without its name, so it stays where a type of its signature does."""


def _chunks(text: str) -> Iterator[Chunk]:
    start = 0
    while start < len(text):
        end = _directive(text, start) if text[start] == "#" else _declaration(text, start)
        piece = text[start:end].strip()
        if piece:
            yield _read(piece)
        start = end
        while start < len(text) and text[start].isspace():
            start += 1


def _directive(text: str, start: int) -> int:
    """End of a preprocessor line, with the lines that continue it."""
    end = start
    while True:
        stop = text.find("\n", end)
        if stop < 0:
            return len(text)
        if text[stop - 1] != "\\":
            return stop + 1
        end = stop + 1


def _declaration(text: str, start: int) -> int:
    """End of a declaration: its `;`, or the `}` that closes a function's body."""
    depth, place = 0, start
    while place < len(text):
        mark = text[place]
        if mark in "\"'":
            quoted = _QUOTED_OR_COMMENT.match(text, place)
            place = quoted.end() if quoted else place + 1
            continue
        if mark in "({[":
            depth += 1
        elif mark in ")}]":
            depth -= 1
        if depth == 0 and mark == ";":
            return place + 1
        if depth == 0 and mark == "}" and not _goes_on(text[start:place]):
            return place + 1
        place += 1
    return len(text)


def _goes_on(declaration: str) -> bool:
    """Whether a `}` leaves it open: a type's and an initialiser's do, until their `;`."""
    head = declaration[: declaration.find("{")]
    head = _TEMPLATE.sub("", _ATTRIBUTE.sub("", head))
    return "(" not in head or "=" in head.split("(")[0]


def _read(piece: str) -> Chunk:
    words = frozenset(_WORD.findall(piece))
    if piece.startswith("#"):
        defined = re.match(r"#\s*define\s+([A-Za-z_]\w*)", piece)
        # conditions and their branches stay whole: which branch is taken is known to the compiler alone
        return Chunk(piece, frozenset([defined[1]] if defined else ()), words)
    head = piece.split("{", 1)[0]
    if 'extern "C"' in head or re.match(r"(?:using\s+namespace|namespace|inline\s+namespace)\b", piece):
        return Chunk(piece, words=words)
    if "operator" in head:
        return Chunk(piece, words=words, head=frozenset(_WORD.findall(head)), operator=True)
    bare = _TEMPLATE.sub("", _ATTRIBUTE.sub("", head))
    names: set[str] = set()
    if alias := re.match(r"using\s+([A-Za-z_]\w*)\s*=", bare):
        names.add(alias[1])
    elif "(" in bare and "=" not in bare.split("(")[0] and not bare.startswith("typedef"):
        called = _CALLED.search(bare)
        names |= {called[1]} if called else set()
    elif kind := _TYPE.match(bare):
        names.add(kind[1])
    else:  # variables, or a typedef
        names |= set(_DECLARED.findall(_ATTRIBUTE.sub("", piece)))
    return Chunk(piece, frozenset(names), words, frozenset(_WORD.findall(head)))


def _reachable(chunks: list[Chunk]) -> list[bool]:
    """Which chunks a kernel can come to. A chunk between `#if` and `#endif` stays, with all that it mentions."""
    declared = frozenset().union(*(c.names for c in chunks))
    kept, conditions = [], 0
    for chunk in chunks:
        conditions += bool(re.match(r"#\s*if", chunk.text)) - bool(re.match(r"#\s*endif", chunk.text))
        kept.append(conditions > 0 or (not chunk.names and not chunk.operator))
    while True:
        mentioned = frozenset().union(*(c.words for c, keep in zip(chunks, kept, strict=True) if keep))
        found = [
            keep or (bool(c.head & declared) and c.head & declared <= mentioned if c.operator else bool(c.names & mentioned))
            for c, keep in zip(chunks, kept, strict=True)
        ]
        if found == kept:
            return kept
        kept = found
