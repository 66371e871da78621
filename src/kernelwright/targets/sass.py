"""Machine code of a cubin, for inspection: the listing, and how often each opcode occurs."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

from kernelwright.targets.nvrtc import toolkit_folders
from kernelwright.targets.target import TargetUnavailable

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", re.MULTILINE)

_BYTES = 16
"""Of an instruction, from Volta on."""


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
    return _disassembled("--print-code", str(path))


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
    return _mix(opcode for _, opcode in _INSTRUCTION.findall(sass(path)))


def sass_mixes(paths: Sequence[str | Path], arch: str) -> list[dict[str, int]]:
    """`sass_mix` of each of many cubins, all for one architecture (`sm_90a`): nvdisasm, which takes 0.3 s to start, runs once, on the code
    of all, one behind the other."""
    codes = [_code(Path(path)) for path in paths]
    if not codes:
        return []
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        found = _INSTRUCTION.findall(_disassembled("--binary", arch.replace("sm_", "SM"), file.name))
    opcodes = {int(address, 16): opcode for address, opcode in found}
    bounds = accumulate(map(len, codes), initial=0)
    return [_mix(opcodes[at] for at in range(begin, end, _BYTES) if at in opcodes) for begin, end in pairwise(bounds)]


def _mix(opcodes: Iterable[str]) -> dict[str, int]:
    return dict(Counter(opcodes).most_common())


def _disassembled(*words: str) -> str:
    command = [_nvdisasm(), "--no-dataflow", *words]  # without the analysis of branches, a quarter faster
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ValueError(f"{words[-1]} cannot be disassembled: {done.stderr.strip() or 'nvdisasm failed'}")
    return done.stdout


def _code(path: Path) -> bytes:
    """The sections of a cubin, a 64-bit ELF file, that hold instructions: `.text.KERNEL`."""
    data = path.read_bytes()
    try:
        if data[:5] != b"\x7fELF\2":
            raise ValueError
        (table,), (size, count, names) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HHH", data, 0x3A)
        # where its name begins in the section of names, where it begins in the file, bytes
        sections = [struct.unpack_from("<I20xQQ", data, table + size * i) for i in range(count)]
        starts = sections[names][1]
        code = [data[at : at + n] for name, at, n in sections if data.startswith(b".text.", starts + name)]
    except (ValueError, IndexError, struct.error):
        raise ValueError(f"{path} cannot be disassembled: it is no cubin") from None
    return b"".join(code)
