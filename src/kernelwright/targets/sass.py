"""Machine code of a cubin, for inspection: the listing, and how often each opcode occurs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

from kernelwright.targets.nvrtc import toolkit_folders
from kernelwright.targets.target import TargetUnavailable

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", re.MULTILINE)


@cache
def _nvdisasm() -> str:
    for folder in toolkit_folders():
        if (tool := folder / "bin" / "nvdisasm").is_file():
            return str(tool)
    if tool := shutil.which("nvdisasm"):
        return tool
    raise TargetUnavailable('the disassembler nvdisasm is not installed; install it with: pip install "kernelwright[cuda]"')


def sass(path: str | Path) -> str:
    """The SASS listing of a cubin. Raises TargetUnavailable without nvdisasm, ValueError when the file is no cubin."""
    command = [_nvdisasm(), "--print-code", "--no-dataflow", str(path)]  # without the analysis of branches, a quarter faster
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ValueError(f"{path} cannot be disassembled: {done.stderr.strip() or 'nvdisasm failed'}")
    return done.stdout


def instructions(path: str | Path) -> dict[str, dict[int, str]]:
    """By kernel, then by offset in its code: `{"gemm": {0x740: "@!UP0 SYNCS.EXCH.64 URZ, [UR5], UR6"}}`. Raises as sass."""
    found: dict[str, dict[int, str]] = {}
    for section, code in re.findall(r"^\.text\.(\S+):\n(.*?)(?=^\.text\.|\Z)", sass(path), re.MULTILINE | re.DOTALL):
        lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", code, re.MULTILINE)
        found[section] = {int(offset, 16): re.sub(r"\s+", " ", text) for offset, text in lines}
    return found


def sass_mix(path: str | Path) -> dict[str, int]:
    """Static count of each opcode, most frequent first: `{"HGMMA": 12, "UTMALDG": 2, "LDL": 0 ...}` (only those that occur).

    HGMMA is wgmma, HMMA is mma.sync, UTMALDG a TMA load, LDL and STL local memory (spills or run-time indexed arrays).
    """
    return dict(Counter(_INSTRUCTION.findall(sass(path))).most_common())
