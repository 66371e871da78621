"""Kernels' sources as files: what all kernels of a scheme share is stored once.

A family writes its whole template into every source, all but the lines of the config: 33 KB for each of 133 kernels of a suite, of which
500 bytes are their own. A source is the texts of its files one after the other, and those are cut between lines, so that people can read
them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import PurePosixPath

from kernelwright.targets import nvrtc

HEADERS = "sources/kernelwright/"
"""Where the header library lies, as it was when the Pack was made: that of another version may lack what the sources call."""
WORTH = 1000
"""Bytes; less than this is not worth a file of its own."""


def split(sources: Mapping[str, bytes]) -> tuple[dict[str, tuple[str, ...]], dict[str, bytes]]:
    """For each file its parts in order, of which one has its name, and the text of every part."""
    groups: dict[tuple[bytes, str], list[str]] = {}
    for name, text in sources.items():
        groups.setdefault((text.partition(b"\n")[0], PurePosixPath(name).suffix), []).append(name)
    parts: dict[str, tuple[str, ...]] = {}
    texts: dict[str, bytes] = {}

    def shared(text: bytes, suffix: str) -> tuple[str, ...]:
        if not text:
            return ()
        name = f"sources/shared-{hashlib.sha256(text).hexdigest()[:16]}{suffix}"
        texts[name] = text
        return (name,)

    for (_, suffix), names in groups.items():
        head, tail = _ends([sources[n] for n in names]) if len(names) > 1 else (b"", b"")
        before, after = shared(head, suffix), shared(tail, suffix)
        for n in names:
            parts[n] = (*before, n, *after)
            texts[n] = sources[n][len(head) : len(sources[n]) - len(tail)]
    return parts, texts


def headers(sources: Iterable[bytes]) -> dict[str, bytes]:
    """The header library as files of a Pack with these sources; nothing where none includes it."""
    if not any(b'#include "kernelwright/' in text for text in sources):
        return {}
    return {HEADERS + name.removeprefix("kernelwright/"): text.encode() for name, text in nvrtc.device_headers().items()}


def _ends(texts: list[bytes]) -> tuple[bytes, bytes]:
    """The lines that all begin with, and that all end with; nothing for what is short."""
    lines = [re.findall(rb"[^\n]*\n|[^\n]+", text) for text in texts]
    same = takewhile(lambda line: line.endswith(b"\n"), _common(lines))
    if len(head := b"".join(same)) < WORTH:
        head = b""
    after = head.count(b"\n")
    tail = b"".join(_common([of[after:][::-1] for of in lines])[::-1])
    return head, tail if len(tail) >= WORTH else b""


def _common(texts: list[list[bytes]]) -> list[bytes]:
    """The lines with which all begin."""
    return [same[0] for same in takewhile(lambda at: len(set(at)) == 1, zip(*texts, strict=False))]
