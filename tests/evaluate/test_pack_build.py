"""Builds that a Pack lacks, made again from what it ships: no GPU."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.pack_build import build_pack, save_pack
from kernelwright.problems import resolve
from kernelwright.records import Build, Candidate, Environment, Launch, LaunchPlan, Origin, Outcome, TensorArg, Timing, Trial, Verdict
from kernelwright.runtime import export, pack
from kernelwright.runtime.pack import PackError, seal
from kernelwright.runtime.pack_format import decode
from kernelwright.targets import nvrtc, target
from made_up import made_up_pack

pytest.importorskip("cuda.bindings.nvrtc")

HEADER = "sources/kernelwright/vector.cuh"


def cuda(n: int) -> Candidate:
    source = f"""#include "kernelwright/vector.cuh"
    extern "C" __global__ void k(const float* a, float* c) {{ c[threadIdx.x] = a[threadIdx.x] * {n}; }}"""
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"), TensorArg(name="c"))),))
    return Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="family", name="made_up"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pack.Pack:
    measured = Environment(target="cuda:sm_90", device="NVIDIA H200", versions={"compiler": "NVRTC {}.{}".format(*nvrtc.version())})
    kernels = [("gemm:8x8x8:fp32", cuda(1)), ("gemm:8x8x16:fp32", cuda(2)), ("gemm:8x16x8:fp32", cuda(2))]
    return made_up_pack(tmp_path_factory.mktemp("whole") / "p", "cuda:sm_90", measured, kernels)


@pytest.fixture
def stripped(whole: pack.Pack, tmp_path: Path) -> Path:
    return export.sources(whole, tmp_path / "stripped")


def test_the_same_compiler_makes_the_same_pack(whole, stripped):
    steps: list[tuple[int, int]] = []
    found = build_pack(stripped, lambda done, total: steps.append((done, total)))
    assert (found.same, found.other) == (2, ()) and "each the same file as was measured" in found.sentence
    assert steps == [(0, 2), (1, 2), (2, 2)]
    built = pack.load(stripped)
    assert built.manifest == whole.manifest and (stripped / "manifest.json").read_bytes() == (whole.path / "manifest.json").read_bytes()
    assert "nothing to build" in build_pack(stripped).sentence
    one = stripped / built.entries[0].artifact
    one.unlink()
    assert build_pack(stripped).same == 1 and pack.load(stripped).manifest == whole.manifest


def test_a_pack_is_saved_with_builds_that_are_gone_made_again(tmp_path):
    w, candidate, cuda_target = resolve("gemm:8x8x8:fp32"), cuda(1), target("cuda:sm_90")
    gone = str(tmp_path / "gone" / "kernel.cubin")
    timing = Timing(mode="device-cold", samples=(9.0,), median=9.0, low=9.0, high=9.0)
    trial = Trial(
        workload=w,
        candidate=candidate,
        verdict=Verdict(outcome=Outcome.OK),
        environment=Environment(target="cuda:sm_90", device="NVIDIA H200", versions={"compiler": "NVRTC {}.{}".format(*nvrtc.version())}),
        build=Build(key=cuda_target.build_key(candidate), artifact=gone, compiler="NVRTC", arch="sm_90a"),
        timings=(timing,),
        stage="confirm",
    )
    steps: list[tuple[int, int]] = []
    saved = save_pack(tmp_path / "p", [trial], told=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 1), (1, 1)] and saved.manifest.rebuilt == {}
    artifact = pack.load(saved.path).artifact(saved.entries[0])
    assert artifact is not None and artifact.read_bytes() == nvrtc.compile_cubin(candidate.source, "sm_90a")[0]
    older = trial.replace(build=Build(key="of another compiler", artifact=gone, compiler="NVRTC", arch="sm_90a"))
    assert len(save_pack(tmp_path / "p", [older]).manifest.rebuilt) == 1 and pack.load(tmp_path / "p")
    broken = trial.replace(candidate=candidate.replace(source="#error a later version"))
    with pytest.raises(PackError, match=r"does not compile with this version: .*a later version.*; tune it again"):
        save_pack(tmp_path / "q", [broken])
    assert not (tmp_path / "q").exists()


def test_what_comes_out_otherwise_is_told_and_recorded(whole, stripped):
    m = pack.load(stripped, built=False).manifest
    name = m.entries[0].artifact
    seal(stripped, m.replace(files=m.files | {name: hashlib.sha256(b"as another compiler made it").hexdigest()}))
    found = build_pack(stripped)
    compiler = "NVRTC {}.{}".format(*nvrtc.version())
    assert (found.same, found.other) == (1, (name,)) and "the machine differ" in found.sentence
    built = pack.load(stripped)
    assert built.manifest.rebuilt == {name: compiler} and built.info()["builds not measured"] == 1
    assert built.manifest.files == whole.manifest.files
    older = m.environment.replace(versions={"compiler": "NVRTC 12.9"})
    other = hashlib.sha256(b"").hexdigest()
    seal(stripped, m.replace(environment=older, files=m.files | {name: other}))
    (stripped / name).unlink()
    assert "they were measured as NVRTC 12.9 built them; prove them with" in build_pack(stripped).sentence


def test_kernels_are_built_with_the_header_library_that_ships(whole, stripped, monkeypatch):
    changed = {**nvrtc.device_headers(), "kernelwright/vector.cuh": "#error a later version"}
    monkeypatch.setattr("kernelwright.targets.nvrtc.device_headers", lambda: changed)
    loaded = pack.load(stripped, built=False)
    source = loaded.buildable(loaded.entries[0]).source
    assert "kernelwright/" not in source.replace("// kernelwright/", "") and HEADER in loaded.manifest.files
    cubin, _ = nvrtc.compile_cubin(source, "sm_90a")
    assert hashlib.sha256(cubin).hexdigest() == whole.manifest.files[loaded.entries[0].artifact]


def test_a_pack_without_a_header_library_says_so_where_todays_does_not_fit(whole, stripped, monkeypatch):
    m = pack.load(stripped, built=False).manifest
    seal(stripped, m.replace(files={n: x for n, x in m.files.items() if not n.startswith("sources/kernelwright/")}))
    assert build_pack(stripped).same == 2, "the installed one is the same"
    for f in (stripped / "builds").iterdir():
        f.unlink()
    monkeypatch.setattr(
        Builder, "builds", lambda self, cs: ((c, Verdict(outcome=Outcome.COMPILE_ERROR, evidence="no\nmember")) for c in cs)
    )
    with pytest.raises(PackError, match=r"cannot be made here \(an earlier version made it, which shipped no header library\): no member"):
        build_pack(stripped)


def test_a_kernel_that_does_not_compile_leaves_the_pack_as_it_was(stripped):
    broken = stripped / HEADER
    broken.write_text("#error on purpose")
    with pytest.raises(PackError, match="is damaged"):
        build_pack(stripped)
    manifest = decode((stripped / "manifest.json").read_bytes(), stripped)
    seal(stripped, manifest.replace(files=manifest.files | {HEADER: hashlib.sha256(broken.read_bytes()).hexdigest()}))
    with pytest.raises(PackError, match=r"cannot be made here: .*on purpose") as error:
        build_pack(stripped)
    assert "\n" not in str(error.value) and not (stripped / "builds").exists()
