"""benchmarks/spmm.py without a GPU: a device that multiplies densely and invents times; its lines and its summary."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest
import spmm
import torch

from kernelwright.families import DeviceFacts
from kernelwright.targets.target import Contender

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=100_000)
US = {"spmm_quad": 10.0, "spmm_quad_sm90": 11.0, "spmm_three_layer": 16.0}


class Played(Contender):
    dependent = True

    def __init__(self, sets, us: float, off: float = 0.0):
        self.sets, self.us, self.off = sets, us, off

    def run(self, index: int = 0) -> None:
        t = self.sets[index].tensors
        t["y"].copy_((t["x"].double() @ t["w"].double().t() + self.off).to(t["y"].dtype))

    def sample(self, mode, launches, fresh=None):
        return self.us * (0.9 if mode == "device-chain" else 1), 0


class Gpu:
    torch_device = "cpu"

    def load(self, candidate, build, w, sets):
        # the configuration that is the fastest is wrong
        wrong = candidate.origin.config.get("cluster") == 1 and candidate.origin.name == "spmm_quad"
        return Played(sets, US[candidate.origin.name] / (2 if wrong else 1), float(wrong))

    def load_trusted(self, runs, setup=None, sets=()):
        return Played(sets, runs)


class Compiler:
    def __init__(self, target, jobs): ...
    def __enter__(self):
        return self

    def __exit__(self, *_): ...
    def want(self, candidates): ...
    def builds(self, candidates):
        return [(c, None) for c in candidates]


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(spmm, "usable", lambda name: SimpleNamespace(facts=lambda: H200, open=Gpu))
    monkeypatch.setattr(spmm, "Builder", Compiler)

    def load(name, w, sets):
        if name == "cublas" or (name == "cusparselt" and w.axes["N"] == 40):
            raise spmm.CandidateFault("REFUSED", "it is not here")
        return {"eager": 30.0, "cublaslt-auto": 20.0}.get(name, 25.0), None

    monkeypatch.setattr(spmm.rivals, "load", load)


def test_every_step_has_its_line_and_the_summary_its_figures(played, tmp_path):
    args = argparse.Namespace(seconds=60.0, hang=60.0, shapes=["48x256"], rows=[1, 40], out=tmp_path)
    spmm.measure(args, tmp_path / "samples.jsonl")
    lines = [line for line in spmm.read(tmp_path / "samples.jsonl") if "zeros" in line]
    assert [line["end"] for line in lines] == ["1x48x256 50 %", "40x48x256 50 %"]
    assert all("wrong" in f for name, f in lines[0]["faults"].items() if name.startswith("spmm_quad"))
    assert lines[0]["faults"]["cublas"] == "it is not here"
    spmm.measure(args, tmp_path / "samples.jsonl")
    assert len([line for line in spmm.read(tmp_path / "samples.jsonl") if "end" in line]) == 4, "nothing is measured twice"
    table = tmp_path / "others.csv"
    table.write_text("m,k,n,name,us\n48,256,1,spinfer,20\n48,256,7,spinfer,20\n")
    spmm.summarise(tmp_path / "samples.jsonl", tmp_path, table)
    summary = json.loads((tmp_path / "summary.json").read_text())
    figures = summary["figures"]
    assert figures["over_dense_n1"] == 2.0 and figures["chain_n1"] == pytest.approx(20 / 9, abs=1e-3) and figures["three_n1"] == 1.25
    assert figures["over_spinfer_n1"] == 2.0 and "over_spinfer_n7" not in figures and figures["best_n40"] >= 1
    assert figures["cusparselt_n1"] == 0.8 and "cusparselt_n40" not in figures
    assert summary["faults"]["40x48x256 50 %"]["cusparselt"] == "it is not here"
    assert figures["bytes_per_weight_ours"] < figures["bytes_per_weight_three"]
    assert summary["results"][0]["dense"] == "cublaslt-auto" and summary["results"][0]["configs"]["ours"]["cluster"] != 1


def test_a_library_that_took_the_process_down_twice_is_not_asked_again(played, tmp_path):
    raw = tmp_path / "samples.jsonl"
    raw.write_text("".join(json.dumps({"start": f"{n}x48x256 50 % cusparselt"}) + "\n" for n in (8, 16)))
    spmm.measure(argparse.Namespace(seconds=60.0, hang=60.0, shapes=["48x256"], rows=[1], out=tmp_path), raw)
    assert [line["end"] for line in spmm.read(raw) if "end" in line] == ["1x48x256 50 %"]


def test_a_weight_has_its_zeros_and_copies():
    weight = spmm.Weight("cpu", 32, 256, 60, 20_000)
    assert len(weight.copies) == spmm.COPIES and 1 < weight.enough <= spmm.COPIES
    bounds, workloads = weight.bounds(3, 132)
    for one in bounds["ours"]:
        w = one.tensors["w"]
        assert all(154 <= zeros <= 160 for zeros in (w == 0).sum(1).tolist()), "and what is as small as the last"
    assert bounds["ours"][0].tensors["x"] is bounds["three"][0].tensors["x"] and workloads["three"].layout == "three-60"
    assert not torch.equal(bounds["ours"][0].tensors["x"], bounds["ours"][1].tensors["x"])
