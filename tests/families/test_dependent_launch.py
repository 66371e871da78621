"""Every kernel for sm_90 may be launched dependently: it waits for its predecessor before its first access to global memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kernelwright.families.chain_cuda import ChainCuda
from kernelwright.families.family import DeviceFacts, Family
from kernelwright.families.gemm_sm80 import GemmSm80
from kernelwright.families.gemm_sm90.family import Persistent, Ring, Tiny, WholeK
from kernelwright.problems import resolve
from kernelwright.targets import nvrtc

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))
import nvrtc_helper

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=50 * 2**20)
CASES = [
    *((family, text) for family in (Persistent(), Ring(), WholeK()) for text in ("gemm:256x512x1024:fp16:nt", "gemm:64x2048x2048:bf16:tn")),
    (Tiny(), "gemm:64x64x64:fp16:nt"),
    *((family, "linear:512x512x512:fp16:nt:bias+gelu+residual") for family in (Persistent(), Ring(), WholeK(), Tiny(), GemmSm80())),
    *((GemmSm80(), text) for text in ("gemm:512x512x8192:fp16:nn", "gemm:100x92x1000:fp32:nt")),
    *((ChainCuda(), f"chain:{name}:4096x1024:fp16") for name in ("softmax", "new-gelu", "bias-gelu-residual")),
]

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9.]*)", re.MULTILINE)
GLOBAL = re.compile(r"(LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMALDG|UTMASTG|UTMAREDG|UBLKCP|LD|ST)(\.|$)")


def kernels(sass: str) -> list[list[str]]:
    """The opcodes of each kernel, in the order of the listing."""
    return [INSTRUCTION.findall(part) for part in re.split(r"\.section\s+\.text\.", sass)[1:]]


@pytest.mark.parametrize(("family", "text"), CASES, ids=lambda x: x.name if isinstance(x, Family) else x)
def test_nothing_touches_global_memory_before_the_wait(family: Family, text: str) -> None:
    w = resolve(text)
    candidate = family.render(family.seeds(w, H200)[0], w, H200)
    assert candidate.plan is not None and all(launch.pdl for launch in candidate.plan.launches)
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, _ = nvrtc.compile_cubin(candidate.source, "sm_90a")
    found = kernels(nvrtc_helper.disassemble(cubin))
    assert found
    for opcodes in found:
        wait = opcodes.index("ACQBULK")  # griddepcontrol.wait
        early = [op for op in opcodes[:wait] if GLOBAL.match(op)]
        assert not early, f"{early} before the wait"
        assert any(GLOBAL.match(op) for op in opcodes[wait:]) and "PREEXIT" in opcodes


def test_the_ring_waits_before_its_loads_and_before_its_stores() -> None:
    """Different warps do them, so each has a wait of its own."""
    w = resolve("gemm:256x512x1024:fp16:nt")
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, _ = nvrtc.compile_cubin(Ring().render(Ring().seeds(w, H200)[0], w, H200).source, "sm_90a")
    (opcodes,) = kernels(nvrtc_helper.disassemble(cubin))
    assert opcodes.count("ACQBULK") == 2
