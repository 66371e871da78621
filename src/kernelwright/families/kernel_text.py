"""A kernel file as one text: the headers of its own folder stand in place of their includes, those of `device/` stay includes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r'#include "(\w+\.cuh)"\n')


@cache
def kernel_text(path: Path) -> str:
    """Each header once, at its first include. Raises OSError for one that is not in the folder."""
    seen: set[str] = set()

    def paste(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return _INCLUDE.sub(paste, (path.parent / match[1]).read_text("utf-8").replace("#pragma once\n", ""))

    return _INCLUDE.sub(paste, path.read_text("utf-8"))
