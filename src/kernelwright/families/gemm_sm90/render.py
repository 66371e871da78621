"""Config -> Candidate: pastes the Config struct and the family's own headers into the scheme's kernel file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import ModuleType

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.records import Candidate, Origin, Workload

_FOLDER = Path(__file__).parent
_CONFIG = re.compile(r"// config: begin.*?// config: end\n", re.DOTALL)
_INCLUDE = re.compile(r'#include "(\w+\.cuh)"\n')


@cache
def _text(name: str) -> str:
    """A kernel file with the family's headers in place of their includes, each once."""
    seen: set[str] = set()

    def paste(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return _INCLUDE.sub(paste, (_FOLDER / match[1]).read_text("utf-8").replace("#pragma once\n", ""))

    return _INCLUDE.sub(paste, (_FOLDER / name).read_text("utf-8"))


def render(scheme: ModuleType, c: Config, w: Workload, device: DeviceFacts, origin: Origin) -> Candidate:
    """`scheme` is the Python module beside the kernel file of the same name."""
    lines = "".join(f"    {line}\n" for line in scheme.struct(c, w, device))
    name = f"{scheme.__name__.rpartition('.')[2]}.cuh"
    source = _CONFIG.sub(lambda _: f"struct Config {{\n{lines}}};\n", _text(name), count=1)
    return Candidate(kind="cuda", source=source, plan=scheme.plan(c, w), origin=origin)
