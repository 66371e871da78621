"""What a CPU kernel's machine code shows, read from a library that the CPU target compiled."""

from __future__ import annotations

import platform
import shutil

import pytest

from kernelwright.evaluate.build import build
from kernelwright.propose.exemplars_report import instructions
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin
from kernelwright.targets import target
from kernelwright.targets.target import TargetUnavailable
from kernelwright.targets.x86 import vector_mix

SOURCE = """#include <cmath>
#include <immintrin.h>
extern "C" __attribute__((target("avx2,fma"))) void kernel(const float* x, float* y, long rows, long cols, long, long) {
    for (long i = 0; i + 8 <= rows * cols; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), _mm256_set1_ps(rows)));
    y[0] = std::erf(y[0]) / x[0];
}
"""


def test_widths_multiply_adds_divisions_and_calls():
    if platform.machine() != "x86_64" or shutil.which("objdump") is None:
        pytest.skip("reads x86 code with objdump")
    plan = LaunchPlan(launches=(Launch(kernel="kernel", args=()),))
    made = build(target("cpu"), Candidate(kind="cpu", source=SOURCE, plan=plan, origin=Origin(kind="file")))
    mix = vector_mix(made.artifact)
    assert mix["256-bit floating-point or vector"] >= 2 and mix["fused multiply-add"] >= 1 and mix["divide"] >= 1
    assert any(name.startswith("call") and "erff" in name for name in mix)
    assert list(mix.values()) == sorted(mix.values(), reverse=True) and instructions(made, "cpu") == mix


def test_what_is_no_library_is_said(tmp_path, monkeypatch):
    (tmp_path / "x.so").write_text("no library")
    if shutil.which("objdump"):
        with pytest.raises(ValueError, match="cannot be disassembled"):
            vector_mix(tmp_path / "x.so")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TargetUnavailable, match="install binutils"):
        vector_mix(tmp_path / "x.so")
