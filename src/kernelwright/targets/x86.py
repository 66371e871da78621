"""Machine code of a CPU kernel, for inspection: how wide its vectors are, and what it does that is slow."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from kernelwright.targets.target import TargetUnavailable

_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+([a-z]\w*)\s*(.*)$", re.MULTILINE)
_WIDTHS = {"%zmm": "512-bit", "%ymm": "256-bit", "%xmm": "128-bit or scalar"}
_KINDS = {"fmadd": "fused multiply-add", "fnmadd": "fused multiply-add", "div": "divide", "sqrt": "square root"}


def vector_mix(path: str | Path) -> dict[str, int]:
    """Of a shared object's x86 code, most frequent first: instructions by the width of their registers, fused multiply-adds, divisions and
    square roots, calls. Raises TargetUnavailable without objdump, ValueError when the file cannot be disassembled."""
    tool = shutil.which("objdump")
    if tool is None:
        raise TargetUnavailable("the disassembler objdump is not installed; install binutils")
    command = [tool, "-d", "--no-show-raw-insn", "--section=.text", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{path} cannot be disassembled in 20 s") from None
    if done.returncode != 0:
        raise ValueError(f"{path} cannot be disassembled: {done.stderr.strip() or 'objdump failed'}")
    found: Counter[str] = Counter()
    for op, operands in _INSTRUCTION.findall(done.stdout):
        if width := next((what for register, what in _WIDTHS.items() if register in operands), ""):
            found[f"{width} floating-point or vector"] += 1
        if kind := next((what for part, what in _KINDS.items() if part in op), ""):
            found[kind] += 1
        if op.startswith("call") and "<__cxa_" not in operands and "<deregister" not in operands:  # the loader's own
            found[f"call {operands.split()[-1]}"[:60]] += 1
    return dict(found.most_common())
