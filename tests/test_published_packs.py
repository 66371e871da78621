"""The machine code of every kernel that we publish in a pack, and of packs made here: no GPU is needed to look."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelwright.evaluate.audit_batch import Audit, Auditor
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.machine_code import inspect_pack
from kernelwright.evaluate.pack_build import build_pack
from kernelwright.families.family import DeviceFacts
from kernelwright.families.gemm_sm90.family import Ring, Tiny
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Environment, Launch, LaunchPlan, Origin, TensorArg
from kernelwright.runtime import pack
from kernelwright.targets import target
from made_up import made_up_pack

pytest.importorskip("cuda.bindings.nvrtc")

RESULTS = Path(__file__).parents[1] / "results"
H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
ENVIRONMENT = Environment(target="cuda:sm_90", device="NVIDIA H200", host="made up by a test")


def published() -> list[Path]:
    """Every pack under results/, wherever it lies."""
    return sorted(manifest.parent for manifest in RESULTS.rglob("manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", published(), ids=lambda p: str(p.relative_to(RESULTS)))
def test_published_kernels_compile_without_spills_to_what_they_were_written_for(folder: Path, tmp_path: Path):
    """From the sources that are published; with the compiler that was measured with, to the files that were measured."""
    shutil.copytree(folder, copy := tmp_path / "pack")
    built = build_pack(copy)
    assert built.other == () or built.compilers != (built.measured,)
    found = inspect_pack(pack.load(copy))
    assert found and {m.candidate: m.faults for m in found if m.faults} == {}


def test_kernels_of_hopper_multiply_with_wgmma_and_the_tiny_ones_with_mma(tmp_path):
    w = resolve("gemm:64x64x64:fp16:nt")
    kernels = [(name, f.render(f.seeds(resolve(name), H200)[0], resolve(name), H200)) for f, name in
               ((Ring(), "gemm:512x512x512:fp16:nn"), (Tiny(), w.name))]  # fmt: skip
    ring, tiny = inspect_pack(made_up_pack(tmp_path / "p", "cuda:sm_90", ENVIRONMENT, kernels))
    assert not ring.faults and ring.opcodes["HGMMA"] > 0 and ring.registers > 32
    assert not tiny.faults and tiny.opcodes["HMMA"] > 0 and "HGMMA" not in tiny.opcodes


def cuda(source: str, name: str = "") -> Candidate:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"), TensorArg(name="c"))),))
    return Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="family", name=name))


def test_what_must_not_be_published_is_told_apart(tmp_path):
    local = """extern "C" __global__ void k(const int* a, int* c) {
        int t[64];
        for (int i = 0; i < 64; i++) t[i] = i;
        for (int i = 0; i < 64; i++) t[a[i] & 63] += a[i];
        c[0] = t[a[70] & 63];
    }"""
    spill = """extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* a, float* c) {
        float v[80];
        #pragma unroll
        for (int i = 0; i < 80; i++) v[i] = a[i * blockDim.x + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 80; i++) c[(79 - i) * blockDim.x + threadIdx.x] = v[i] * v[(i * 7) % 80];
    }"""
    plain = 'extern "C" __global__ void k(const int* a, int* c) { c[0] = a[0]; }'
    kernels = [("gemm:8x8x8:fp32", cuda(local)), ("gemm:8x8x16:fp32", cuda(spill)), ("gemm:8x8x8:fp16", cuda(plain, "gemm_sm90_ring"))]
    saved = made_up_pack(
        tmp_path / "p", "cuda:sm_90", ENVIRONMENT, [*kernels, ("gemm:16x8x8:fp16", cuda(plain.replace("c[0]", "c[1]"), "file"))]
    )
    of_local, of_spill, of_scalar, right = inspect_pack(saved)
    assert any("stack" in f for f in of_local.faults) and any("local memory" in f for f in of_local.faults)
    assert any("spills registers" in f for f in of_spill.faults)
    assert of_scalar.faults == ("no HGMMA in its machine code",)
    assert right.faults == () and right.opcodes["STG"] == 1


def test_pack_verify_looks_at_it_too(tmp_path):
    kernel = cuda('extern "C" __global__ void k(const int* a, int* c) { c[0] = a[0]; }', "gemm_sm90_ring")
    saved = made_up_pack(tmp_path / "p", "cuda:sm_90", ENVIRONMENT, [("gemm:8x8x8:fp16", kernel)])
    device = target("cuda:sm_90")
    with Evaluator(device) as evaluator, ThreadPoolExecutor(1) as pool:
        audit = Audit(saved, saved.entries)
        Auditor(device, evaluator, None, {"memcheck": "not run: no tool"}, pool).start_tools([audit])
        assert [(t.name, t.outcome, t.evidence) for t in audit.result().tools] == [
            ("machine code", "COMPILE_ERROR", "no HGMMA in its machine code"),
            ("memcheck", "", "not run: no tool"),
        ]
