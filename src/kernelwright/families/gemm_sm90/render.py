"""Config -> Candidate: pastes the Config struct and the family's own headers into the scheme's kernel file."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.kernel_text import kernel_text
from kernelwright.records import Candidate, Origin, Workload

_FOLDER = Path(__file__).parent
_CONFIG = re.compile(r"// config: begin.*?// config: end\n", re.DOTALL)


def render(scheme: ModuleType, c: Config, w: Workload, device: DeviceFacts, origin: Origin) -> Candidate:
    """`scheme` is the Python module beside the kernel file of the same name."""
    lines = "".join(f"    {line}\n" for line in scheme.struct(c, w, device))
    name = f"{scheme.__name__.rpartition('.')[2]}.cuh"
    source = _CONFIG.sub(lambda _: f"struct Config {{\n{lines}}};\n", kernel_text(_FOLDER / name), count=1)
    return Candidate(kind="cuda", source=source, plan=scheme.plan(c, w), origin=origin)
