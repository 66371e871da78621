"""`kernelwright pack merge | export | build` as a user types them, on packs of real cubins."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from test_cli import kernelwright

from kernelwright.cli.progress import proving, steps
from kernelwright.evaluate.audit import Progress
from kernelwright.records import Candidate, Environment, Launch, LaunchPlan, Origin, TensorArg
from kernelwright.runtime import pack
from made_up import made_up_pack

pytest.importorskip("cuda.bindings.nvrtc")

KERNEL = 'extern "C" __global__ void k(const float* a, float* c) { c[threadIdx.x] = a[threadIdx.x] * FACTOR; }'


def made(folder, problem: str, factor: int, device: str = "NVIDIA H200") -> str:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"), TensorArg(name="c"))),))
    source = KERNEL.replace("FACTOR", str(factor))
    kernel = Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="family", name="made_up"))
    place = folder / f"pack{factor}"
    made_up_pack(place, "cuda:sm_90", Environment(target="cuda:sm_90", device=device), [(problem, kernel)])
    return str(place)


def test_merge_export_build_and_refusals(tmp_path):
    nn, nt = made(tmp_path, "gemm:8x8x8:fp16:nn", 1), made(tmp_path, "gemm:8x8x8:fp16:nt", 2)
    both, bare, hub = (str(tmp_path / name) for name in ("both", "bare", "hgemm"))

    merged = kernelwright("pack", "merge", nn, nt, "--out", both, "--json", home=tmp_path)
    assert merged.returncode == 0 and json.loads(merged.stdout) == {"path": both, "workloads": 2, "kernels": 2}, merged.stderr
    assert kernelwright("pack", "info", both, home=tmp_path).returncode == 0

    exported = kernelwright("pack", "export", both, bare, "--format", "sources", "--json", home=tmp_path)
    size = json.loads(exported.stdout)["bytes"]
    assert size == sum(f.stat().st_size for f in (tmp_path / "bare").rglob("*") if f.is_file()) and not (tmp_path / "bare/builds").exists()
    refused = kernelwright("pack", "info", bare, home=tmp_path)
    assert refused.returncode == 2 and f"compile them with `kernelwright pack build {bare}`" in refused.stderr
    built = kernelwright("pack", "build", bare, "--json", home=tmp_path)
    assert built.returncode == 0 and json.loads(built.stdout)["same"] == 2, built.stderr
    again = kernelwright("pack", "build", bare, home=tmp_path)
    assert "nothing to build" in again.stdout and pack.load(bare).manifest == pack.load(both).manifest

    exported = kernelwright("pack", "export", both, hub, "--format", "hf-kernels", home=tmp_path)
    assert exported.returncode == 0 and exported.stdout.startswith(f"{hub}: 0.0 MB"), exported.stderr
    assert (tmp_path / "hgemm/CARD.md").read_text().startswith("# hgemm\n")
    assert pack.load(tmp_path / "hgemm/build/torch-cuda/pack").manifest == pack.load(both).manifest

    other = made(tmp_path, "gemm:8x8x8:fp16:tn", 3, device="NVIDIA H100")
    for words, said in (
        (("merge", nn, other, "--out", str(tmp_path / "x")), "are for different devices, NVIDIA H200"),
        (("merge", nn, "--out", nt + "/builds"), "exists and is not a pack"),
        (("export", both, hub, "--format", "hf-kernels"), "exists; choose another place"),
        (("export", both, str(tmp_path / "Bad_Name"), "--format", "hf-kernels"), "choose one with --name"),
        (("export", both, str(tmp_path / "x"), "--format", "zip"), "hf-kernels"),
        (("export", both, str(tmp_path / "x")), "--format"),
        (("build", str(tmp_path / "nowhere")), "is not a pack"),
    ):
        done = kernelwright("pack", *words, home=tmp_path)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    assert not (tmp_path / "x").exists()


def test_progress_is_lines_where_there_is_no_terminal_and_a_bar_on_one(monkeypatch):
    monkeypatch.setattr("kernelwright.cli.progress.PLAIN_SECONDS", -1.0)
    written = io.StringIO()
    with steps(Console(file=written), "compiling") as told:
        told(1, 3)
        told(2, 3)
    assert written.getvalue() == "compiling: 1/3\ncompiling: 2/3\n"
    written = io.StringIO()
    with steps(Console(file=written, force_terminal=True, width=100), "compiling") as told:
        told(0, 3)
        told(3, 3)
    assert "3/3" in written.getvalue()


def test_progress_of_a_verification_says_what_fails(monkeypatch):
    monkeypatch.setattr("kernelwright.cli.progress.PLAIN_SECONDS", -1.0)
    written = io.StringIO()
    with proving(Console(file=written, width=200)) as told:
        told(Progress(total=30, kernels=3, before=2, done=10, cases=50, through=1, failing=("ring/0123", "tiny/4567")))
    assert "verify: 10/30  1 of 3 kernels through" in written.getvalue()
    assert "checks/s, 2 proved before, 2 FAIL: ring/0123, tiny/4567" in written.getvalue()
    written = io.StringIO()
    with proving(Console(file=written, force_terminal=True, width=200)) as told:
        told(Progress(total=30, kernels=3, before=0, done=30, through=3))
    assert "30/30" in written.getvalue() and "3 of 3 kernels through" in written.getvalue()
