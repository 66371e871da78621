"""Compiling for a GPU on a machine that has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelwright.records import Candidate, KernelResources, Launch, LaunchPlan, Origin, Outcome, TensorArg
from kernelwright.targets import nvrtc
from kernelwright.targets.cuda import CudaTarget
from kernelwright.targets.target import CandidateFault, TargetUnavailable

pytest.importorskip("cuda.bindings.nvrtc")

DOUBLE = 'extern "C" __global__ void twice(const float* x, float* y) { int i = threadIdx.x; y[i] = 2.0f * x[i]; }'


def candidate(source: str, flags: tuple[str, ...] = ()) -> Candidate:
    plan = LaunchPlan(launches=(Launch(kernel="twice", args=(TensorArg(name="x"), TensorArg(name="y"))),))
    return Candidate(kind="cuda", source=source, plan=plan, flags=flags, origin=Origin(kind="file"))


@pytest.mark.parametrize(("arch", "nvrtc_arch"), [("sm_80", "sm_80"), ("sm_90", "sm_90a"), ("sm_90a", "sm_90a")])
def test_a_kernel_becomes_a_cubin_with_its_resources(arch: str, nvrtc_arch: str, tmp_path: Path):
    target = CudaTarget(arch)
    build = target.compile(candidate(DOUBLE), tmp_path)
    assert Path(build.artifact).parent == tmp_path
    assert Path(build.artifact).read_bytes()[:4] == b"\x7fELF"
    assert build.arch == nvrtc_arch
    assert build.compiler.startswith("NVRTC 1")
    assert build.key == target.build_key(candidate(DOUBLE))
    assert list(build.resources) == ["twice"]
    assert 4 <= build.resources["twice"].registers <= 40
    assert build.resources["twice"].spill_stores == 0
    assert build.log == ""


def test_facts_without_a_gpu_are_those_of_the_usual_card():
    assert (CudaTarget("sm_80").facts().sms, CudaTarget("sm_80").facts().smem_per_block) == (108, 163 * 1024)
    facts = CudaTarget("sm_90").facts()
    assert (facts.target, facts.sm, facts.smem_per_block) == ("cuda:sm_90", 90, 227 * 1024)


def test_shared_memory_spills_and_stack_are_reported(tmp_path: Path):
    source = r"""
        __noinline__ float table(float x, int n) { float a[40]; for (int i = 0; i < n; i++) a[i % 40] = x * i; return a[n % 40]; }
        extern "C" __global__ void shared(const float* x, float* y, int n) {
            __shared__ float s[32];
            s[threadIdx.x % 32] = x[0]; __syncthreads(); y[0] = s[3] + table(x[1], n);
        }
        extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* y) {
            float v[80];
            #pragma unroll
            for (int i = 0; i < 80; i++) v[i] = y[i * blockDim.x + threadIdx.x];
            __syncthreads();
            #pragma unroll
            for (int i = 0; i < 80; i++) y[(79 - i) * blockDim.x + threadIdx.x + 1] = v[i] * v[(i * 7) % 80];
        }"""
    resources = CudaTarget("sm_90").compile(candidate(source), tmp_path).resources
    assert resources["shared"].smem == 128
    assert resources["shared"].stack >= 160
    assert resources["spilling"].registers <= 32
    assert resources["spilling"].spill_stores > 0 and resources["spilling"].spill_loads > 0


def test_the_report_of_ptxas_is_read_in_full():
    log = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 64 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 5.285 ms
ptxas info    : Function properties for helper
ptxas         .     999 bytes stack frame, 999 bytes spill stores, 999 bytes spill loads
candidate.cu(3): warning #177-D: variable "x" was declared but never referenced"""
    resources, remarks = nvrtc.parse_resources(log)
    assert resources == {"k": KernelResources(registers=168, spill_stores=8, spill_loads=12, stack=64, smem=1024)}
    assert "C7508" in remarks and "#177-D" in remarks and "Used" not in remarks


def test_remarks_of_the_compiler_reach_the_build(tmp_path: Path):
    source = 'extern "C" __global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }'
    assert "setmaxnreg" in CudaTarget("sm_90").compile(candidate(source), tmp_path).log


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('extern "C" __global__ void k(float* x) {\n  x[0] = undefined_name;\n}', ["candidate.cu(2): error", "undefined_name"]),
        ("#include <vector>\n", ["candidate.cu(1)", "cannot open source file"]),
        ('extern "C" __global__ void k() { asm volatile("foo.bar;"); }', ["ptxas", "line"]),
        ("int x; \0", ["zero byte"]),
    ],
)
def test_errors_are_the_candidates_with_the_compilers_words(source: str, words: list[str], tmp_path: Path):
    with pytest.raises(CandidateFault) as caught:
        CudaTarget("sm_90").compile(candidate(source), tmp_path)
    assert caught.value.outcome is Outcome.COMPILE_ERROR
    assert all(word in caught.value.evidence for word in words), caught.value.evidence


def test_a_long_log_is_cut_at_its_end(tmp_path: Path):
    source = "\n".join(f"int f{i}() {{ return missing_{i}; }}" for i in range(300))
    with pytest.raises(CandidateFault) as caught:
        CudaTarget("sm_90").compile(candidate(source), tmp_path)
    assert len(caught.value.evidence) <= 4000
    assert "candidate.cu(1): error" in caught.value.evidence


@pytest.mark.parametrize("flag", ["--time=/tmp/x", "-I/root", "--include-path=/", "--pch", "out.cu"])
def test_flags_are_checked(flag: str, tmp_path: Path):
    with pytest.raises(CandidateFault, match="not allowed"):
        CudaTarget("sm_90").compile(candidate(DOUBLE, (flag,)), tmp_path)


def test_flags_reach_the_compiler(tmp_path: Path):
    source = 'extern "C" __global__ void twice(float* y) { y[0] = FACTOR; }'
    build = CudaTarget("sm_90").compile(candidate(source, ("-DFACTOR=3.0f", "--use_fast_math", "-maxrregcount=32")), tmp_path)
    assert "twice" in build.resources


def test_the_header_library_and_the_cuda_headers_can_be_included(tmp_path: Path):
    source = """
        #include <cuda_fp16.h>
        #include <cuda_bf16.h>
        #include <kernelwright/tensormap.cuh>
        extern "C" __global__ void k(const __grid_constant__ CUtensorMap map, __half* y) { y[0] = __float2half(1.0f); }
        static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64);"""
    assert "k" in CudaTarget("sm_90").compile(candidate(source), tmp_path).resources


def test_the_key_is_stable_and_covers_source_flags_architecture_headers_and_compiler(monkeypatch: pytest.MonkeyPatch):
    key = CudaTarget("sm_90").build_key(candidate(DOUBLE))
    others = {
        CudaTarget("sm_90").build_key(candidate(DOUBLE + " ")),
        CudaTarget("sm_90").build_key(candidate(DOUBLE, ("-DA",))),
        CudaTarget("sm_80").build_key(candidate(DOUBLE)),
    }
    assert key == CudaTarget("sm_90a").build_key(candidate(DOUBLE))
    headers = dict(nvrtc.device_headers())
    monkeypatch.setattr(nvrtc, "device_headers", lambda: headers | {"kernelwright/new.cuh": ""})
    others.add(CudaTarget("sm_90").build_key(candidate(DOUBLE)))
    monkeypatch.setattr(nvrtc, "device_headers", lambda: headers)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 9))
    others.add(CudaTarget("sm_90").build_key(candidate(DOUBLE)))
    assert len(others) == 5 and key not in others


def test_flags_and_source_cannot_be_confused_in_the_key():
    assert CudaTarget("sm_90").build_key(candidate("a", ("-DB",))) != CudaTarget("sm_90").build_key(candidate("a-DB"))


def test_bad_architectures_are_told():
    with pytest.raises(ValueError, match="write it like sm_80"):
        CudaTarget("hopper")


def test_a_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc.load.cache_clear()
    try:
        with pytest.raises(TargetUnavailable, match=r'pip install "kernelwright\[cuda\]"'):
            nvrtc.load()
    finally:
        nvrtc.load.cache_clear()


def test_sass_lists_the_instructions(tmp_path: Path):
    from kernelwright.targets import sass

    source = """extern "C" __global__ void k(const float4* x, float4* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i];
    }"""
    build = CudaTarget("sm_90").compile(candidate(source), tmp_path)
    try:
        listing, mix = sass.sass(build.artifact), sass.sass_mix(build.artifact)
    except TargetUnavailable:
        pytest.skip("no nvdisasm here")
    assert "LDG.E.128" in listing
    assert mix["LDG"] == 1 and mix["STG"] == 1 and mix["EXIT"] >= 1
    (tmp_path / "no.cubin").write_text("text")
    with pytest.raises(ValueError, match="cannot be disassembled"):
        sass.sass(tmp_path / "no.cubin")
    with pytest.raises(ValueError, match=r"no\.cubin cannot be disassembled"):
        sass.sass_mixes([build.artifact, tmp_path / "no.cubin"], build.arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_many_cubins_are_disassembled_at_once_to_what_each_is_alone(tmp_path: Path, arch: str):
    from kernelwright.targets import sass

    made = []
    for i, line in enumerate(("y[0] = x[1];", "__shared__ int s[64]; s[y[0] & 63] = x[0]; y[2] = s[x[9] & 63] / x[1];")):
        source = f"""extern "C" __global__ void k(const int* x, int* y) {{ {line} }}
            extern "C" __global__ void l(const double* x, int* y) {{ for (int i = 0; i < y[1]; i++) y[i] = sqrt(x[i]); }}"""
        (folder := tmp_path / str(i)).mkdir()
        made.append(CudaTarget(arch).compile(candidate(source), folder))
    paths = [m.artifact for m in (*made, made[0])]
    try:
        alone = [sass.sass_mix(path) for path in paths]
    except TargetUnavailable:
        pytest.skip("no nvdisasm here")
    together = sass.sass_mixes(paths, made[0].arch)
    assert together == alone and together[0] == together[2] != together[1] and "LDS" in together[1]
    assert sass.sass_mixes([], made[0].arch) == []
