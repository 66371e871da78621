"""What the compiler made of a Pack's CUDA kernels: no spills, no local memory, and the instructions that the kernel was written for.

Needs no GPU: the source is compiled again, and the cubin that ships is disassembled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from kernelwright.evaluate.build import Builder
from kernelwright.records import Build, Candidate, Record, Verdict
from kernelwright.runtime.pack import Pack
from kernelwright.targets import target as target_of
from kernelwright.targets.cuda import CudaTarget
from kernelwright.targets.sass import sass_mixes

LOCAL = ("LDL", "STL")
"""Loads and stores of local memory: spilled registers, or arrays indexed at run time."""


class MachineCode(Record, frozen=True, kw_only=True):
    candidate: str
    registers: int = 0
    """Of the kernel that takes the most."""
    opcodes: dict[str, int] = {}
    """How often each opcode stands in the cubin that ships."""
    faults: tuple[str, ...] = ()


def expected_opcode(candidate: Candidate) -> str | None:
    """Hopper's families multiply with wgmma (HGMMA); `tiny`, for products too small for a warpgroup, with mma.sync (HMMA)."""
    if not candidate.origin.name.startswith("gemm_sm90"):
        return None
    return "HMMA" if candidate.origin.name.endswith("tiny") else "HGMMA"


def inspect(candidate: Candidate, built: Build | Verdict | None, opcodes: Mapping[str, int]) -> MachineCode:
    """One CUDA kernel: its source compiled anew, and `sass_mix` of the cubin that ships."""
    if not isinstance(built, Build):
        evidence = built.evidence[:300] if built else "its target compiles nothing"
        return MachineCode(candidate=candidate.id, faults=(f"it does not compile: {evidence}",))
    faults, registers = [], 0
    for name, r in built.resources.items():
        registers = max(registers, r.registers)
        if r.spill_stores or r.spill_loads:
            faults.append(f"{name} spills registers: {r.spill_stores} bytes stored, {r.spill_loads} loaded")
        if r.stack:
            faults.append(f"{name} has a stack of {r.stack} bytes")
    faults += [f"{opcodes[op]} {op} in its machine code: local memory" for op in LOCAL if opcodes.get(op)]
    if (wanted := expected_opcode(candidate)) and not opcodes.get(wanted):
        faults.append(f"no {wanted} in its machine code")
    return MachineCode(candidate=candidate.id, registers=registers, opcodes=dict(opcodes), faults=tuple(faults))


def inspect_pack(pack: Pack) -> list[MachineCode]:
    """Each CUDA kernel of a Pack once. Raises TargetUnavailable where there is no compiler or disassembler."""
    target = target_of(pack.manifest.environment.target)
    if not isinstance(target, CudaTarget):
        return []
    kernels = [(e, artifact) for e, *_ in pack.kernels().values() if e.kind == "cuda" and (artifact := pack.artifact(e))]
    with Builder(target) as builder:
        builds = [built for _, built in builder.builds(pack.buildable(e) for e, _ in kernels)]
    mixes = sass_mixes([artifact for _, artifact in kernels], target.arch)
    return [inspect(pack.candidate(e), built, mix) for (e, _), built, mix in zip(kernels, builds, mixes, strict=True)]


CODE = (".text", ".rodata", ".data", ".nv.constant")


def code_of(artifact: str | Path) -> dict[str, bytes]:
    """The sections of a cubin or shared object that are executed or read by what is: equal ones are the same kernels. Without names, debug
    facts and hashes of the source. Raises ValueError for what is no 64-bit ELF file, OSError."""
    data = Path(artifact).read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise ValueError(f"{artifact} is no 64-bit ELF file")
    try:
        (table,), (size, count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        texts = headers[names][4]
        found = {}
        for name, kind, _, _, offset, length in headers:
            title = data[texts + name : data.index(b"\0", texts + name)].decode()
            if title.startswith(CODE):
                found[title] = b"" if kind == 8 else data[offset : offset + length]  # 8: it takes no space in the file
    except (struct.error, IndexError, OverflowError, ValueError):
        raise ValueError(f"{artifact} is a damaged ELF file") from None
    return found
