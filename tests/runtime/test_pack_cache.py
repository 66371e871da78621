"""A pack without builds is compiled once, by the command that does it, into the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernelwright as kw
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Environment, Launch, LaunchPlan, Origin, TensorArg
from kernelwright.runtime import engine, export, ops, pack, pack_cache
from kernelwright.runtime.pack import PackError
from made_up import made_up_pack


def kernel(n: int) -> Candidate:
    source = f"""#include "kernelwright/vector.cuh"
    extern "C" __global__ void k(const float* a, float* c) {{ c[threadIdx.x] = a[threadIdx.x] * {n}; }}"""
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"), TensorArg(name="c"))),))
    return Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="family", name="made_up"))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pack.Pack:
    pytest.importorskip("cuda.bindings.nvrtc")
    from kernelwright.targets import nvrtc

    measured = Environment(target="cuda:sm_90", device="NVIDIA H200", versions={"compiler": "NVRTC {}.{}".format(*nvrtc.version())})
    kernels = [("gemm:8x8x8:fp32", kernel(1)), ("gemm:8x8x16:fp32", kernel(2))]
    return made_up_pack(tmp_path_factory.mktemp("whole") / "p", "cuda:sm_90", measured, kernels)


@pytest.fixture
def sources(built, tmp_path) -> Path:
    return export.sources(built, tmp_path / "sources")


@pytest.fixture(autouse=True)
def nothing_used(monkeypatch):
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engine, "_engines", {})
    for name in ("fast", "numbers"):
        monkeypatch.setattr(ops, name, getattr(ops, name))


def test_it_is_compiled_once_and_the_pack_left_alone(sources, built, home, monkeypatch, capfd):
    before = sorted(p.name for p in sources.rglob("*"))
    kw.use(sources)
    assert f"compiling 2 kernels of {sources}, once" in capfd.readouterr().err
    (place,) = engine.used()
    assert place.parent == home / "packs" and pack.load(place).manifest == built.manifest, "the same compiler made the same builds"
    assert sorted(p.name for p in sources.rglob("*")) == before
    monkeypatch.setattr(subprocess, "run", None)
    kw.use(sources)
    assert engine.used() == (place, place) and capfd.readouterr().err == ""


def test_lost_builds_and_damaged_caches_are_made_again(built, tmp_path, home, capfd):
    lost = tmp_path / "lost"
    shutil.copytree(built.path, lost)
    next((lost / "builds").iterdir()).unlink()
    kw.use(lost)
    assert "compiling 1 kernels" in capfd.readouterr().err
    (place,) = engine.used()
    next((place / "builds").iterdir()).write_bytes(b"damaged")
    assert pack_cache.built(pack.load(lost, built=False)).path == place and pack.load(place)
    assert "compiling 1 kernels" in capfd.readouterr().err
    assert sorted(p.name for p in (home / "packs").iterdir()) == sorted([place.name, f"{place.name}.lock"])


def test_a_build_that_nothing_uses_is_not_missed(built, tmp_path):
    """Earlier versions shipped some: a kernel that was built twice."""
    copy = tmp_path / "p"
    shutil.copytree(built.path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    pack.seal(copy, pack.load(copy).manifest.replace(files=built.manifest.files | {"builds/unused.cubin": "0" * 64}))
    assert manifest != json.loads((copy / "manifest.json").read_text())
    assert not pack.load(copy).unbuilt()


def test_where_it_cannot_be_compiled_torch_serves(sources, monkeypatch, tmp_path, capfd):
    answer = {"error": "NVRTC is not installed; install it", "exit_code": 2}
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=2, stdout=json.dumps(answer)))
    with pytest.warns(RuntimeWarning, match=r"does not use this pack: .*cannot be compiled here: NVRTC is not installed; install it"):
        kw.use(sources)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=-9, stdout=""))
    with pytest.warns(RuntimeWarning, match=r"`kernelwright pack build` ended with -9"):
        kw.use(sources)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="there is no place to compile them: .* set KERNELWRIGHT_HOME"):
        kw.use(sources)
    assert engine.used() == ()


def test_kernels_that_come_out_otherwise_are_told(sources, built, monkeypatch):
    """Another compiler than measured with: what ships is a pack of its own, to be verified."""
    m = built.manifest
    sums = {n: "0" * 64 if n.startswith("builds/") else digest for n, digest in m.files.items()}
    pack.seal(sources, m.replace(files=sums))
    with pytest.warns(RuntimeWarning, match=r"2 kernels of the pack .* came out otherwise .* `kernelwright pack verify`"):
        kw.use(sources)
    assert len(pack.load(engine.used()[0]).manifest.rebuilt) == 2


@pytest.mark.parametrize("fault", ["damaged", "newer", "unreadable"])
def test_a_pack_that_cannot_be_used_is_one_sentence_and_torchs_turn(built, tmp_path, fault):
    copy = tmp_path / "p"
    shutil.copytree(built.path, copy)
    manifest = copy / "manifest.json"
    if fault == "damaged":
        next((copy / "builds").iterdir()).write_bytes(b"damaged")
    elif fault == "newer":
        manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 99').replace('"format":2', '"format":99'))
    else:
        manifest.write_text("{")
    with pytest.warns(RuntimeWarning, match="kernelwright does not use this pack: ") as caught:
        kw.use(copy)
    assert len(caught) == 1 and "\n" not in str(caught[0].message) and engine.used() == ()
    assert caught[0].filename == __file__, "it points at the caller"
    with pytest.raises(PackError, match="is not a pack"):
        kw.use(tmp_path / "nothing")
    a = torch.ones(4, 4, dtype=torch.float16)
    assert torch.equal(kw.matmul(a, a), a @ a)


def test_a_pack_for_another_gpu_is_one_sentence_when_that_gpu_has_a_product(built, monkeypatch):
    gpu = SimpleNamespace(major=8, minor=0, name="NVIDIA A100-SXM4-80GB", multi_processor_count=108)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    kw.use(built.path)
    cuda = torch.device("cuda", 0)
    with pytest.warns(RuntimeWarning, match=r"leaves cuda:0 to PyTorch: the pack .* was made for cuda:sm_90 \(NVIDIA H200\)") as caught:
        assert engine.of(cuda) is None
    assert len(caught) == 1 and engine.of(cuda) is None, "once"


def test_a_pack_of_the_environment_is_compiled_when_it_is_needed(sources, home, monkeypatch, capfd):
    gpu = SimpleNamespace(major=9, minor=0, name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    launcher = SimpleNamespace(launch=None, product=None, operation=lambda name: 0)
    monkeypatch.setattr(engine, "open_launcher", lambda: launcher)
    monkeypatch.setattr(engine, "_paths", [sources])
    opened = engine.of(torch.device("cuda", 0))
    assert opened is not None and opened.pack.path.parent == home / "packs" and "compiling 2 kernels" in capfd.readouterr().err
    assert opened.dispatcher.choose(resolve("gemm:8x8x8:fp32")).entry is not None


HEAVY = ("numpy.f2py", "jinja2", "typer", "rich", "click", "sqlite3", "cuda", "pynvml", "optuna", "multiprocessing.forkserver")


def test_importing_costs_next_to_nothing():
    """Beyond torch itself: what is heavy waits until it is needed."""
    code = """if True:
        import sys, torch
        before = set(sys.modules)
        import kernelwright as kw
        alone = set(sys.modules) - before
        kw.matmul, kw.linear, kw.use, kw.explain, kw.warmup and None
        kw.accelerate
        a = torch.ones(4, 4, dtype=torch.float16)
        kw.matmul(a, a), kw.linear(a, a)
        print(sorted(alone)); print(sorted(set(sys.modules) - before))
    """
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=True)
    alone, all_ = (eval(line) for line in done.stdout.splitlines())
    assert alone == ["kernelwright"]
    assert not [name for name in all_ if any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY)]
    assert not [n for n in all_ if n.startswith(("kernelwright.evaluate", "kernelwright.loop", "kernelwright.cli", "kernelwright.archive"))]
