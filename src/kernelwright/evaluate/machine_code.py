"""What the compiler made of a Pack's CUDA kernels: no spills, no local memory, and the instructions that the kernel was written for.

Needs no GPU: the source is compiled again, and the cubin that ships is disassembled.
"""

from __future__ import annotations

from pathlib import Path

from kernelwright.evaluate.build import build
from kernelwright.records import Candidate, Record
from kernelwright.runtime.pack import Pack
from kernelwright.targets import target as target_of
from kernelwright.targets.sass import sass_mix
from kernelwright.targets.target import CandidateFault

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


def inspect(candidate: Candidate, artifact: Path, target: str) -> MachineCode:
    """One CUDA kernel. Raises TargetUnavailable where there is no compiler or disassembler."""
    faults, registers = [], 0
    try:
        resources = build(target_of(target), candidate).resources
    except CandidateFault as fault:
        return MachineCode(candidate=candidate.id, faults=(f"it does not compile: {fault.evidence[:300]}",))
    for name, r in resources.items():
        registers = max(registers, r.registers)
        if r.spill_stores or r.spill_loads:
            faults.append(f"{name} spills registers: {r.spill_stores} bytes stored, {r.spill_loads} loaded")
        if r.stack:
            faults.append(f"{name} has a stack of {r.stack} bytes")
    opcodes = sass_mix(artifact)
    faults += [f"{opcodes[op]} {op} in its machine code: local memory" for op in LOCAL if opcodes.get(op)]
    if (wanted := expected_opcode(candidate)) and not opcodes.get(wanted):
        faults.append(f"no {wanted} in its machine code")
    return MachineCode(candidate=candidate.id, registers=registers, opcodes=opcodes, faults=tuple(faults))


def inspect_pack(pack: Pack) -> list[MachineCode]:
    """Each CUDA kernel of a Pack once."""
    target = pack.manifest.environment.target
    return [
        inspect(pack.candidate(entries[0]), artifact, target)
        for entries in pack.kernels().values()
        if entries[0].kind == "cuda" and (artifact := pack.artifact(entries[0]))
    ]
