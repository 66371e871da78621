"""`benchmarks/trust.py`: what it publishes of two targets, and that without protection nothing is found in timed rounds."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from kernelwright.evaluate import timing
from kernelwright.evaluate.buffers import Buffers
from kernelwright.evaluate.corpus import Finding
from kernelwright.evaluate.jobs import Job
from kernelwright.evaluate.judge import Judge
from kernelwright.problems import problem_of, resolve
from kernelwright.targets import target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trust(monkeypatch):
    spec = importlib.util.spec_from_file_location("kernelwright_trust", ROOT / "benchmarks" / "trust.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["benchmarks/trust.py"])
    return module


def test_each_target_keeps_its_part_and_both_are_summed(trust, tmp_path: Path) -> None:
    one = {"cheats_caught": 70, "cheats_total": 71, "false_alarms": 0, "honest": 100}
    trust.publish(tmp_path, "cpu", "audit", one)
    trust.publish(tmp_path, "cpu", "cost", {"cost_share": {"screen": {"of_all": 0.1}}})
    first = json.loads((tmp_path / "summary.json").read_text())
    assert set(first["targets"]["cpu"]["ran"]) == {"audit", "cost"}, "of each part the command that it came from"
    assert first["targets"]["cuda"] is None and first["cheats_caught"] == 70, "a place is kept for the other target"
    trust.publish(tmp_path, "cuda", "audit", one | {"cheats_caught": 30, "cheats_total": 30, "false_alarms": 1})
    both = json.loads((tmp_path / "summary.json").read_text())
    assert [both[k] for k in ("cheats_caught", "cheats_total", "false_alarms", "honest")] == [100, 101, 1, 200]
    assert both["audit_cost_share"] == {"cpu": {"screen": {"of_all": 0.1}}}
    assert 0.9 < both["ci_coverage"]["lowest"] <= both["ci_coverage"]["mean"] < 1 and both["fuzz_inputs"] >= 100_000


def test_an_audit_that_was_cut_short_goes_on_behind_whole_findings(trust, tmp_path: Path) -> None:
    one = Finding("a.cu", "replay", ("WRONG_RESULT",), "WRONG_RESULT", "3 wrong", 0.5, us={"device-cold": 2.0})
    file = tmp_path / "audit-cuda.jsonl"
    assert trust.earlier(file) == []
    file.write_text(trust._line(one) + trust._line(one)[:20])
    assert trust.earlier(file) == [one] and file.read_text() == trust._line(one)
    assert trust._said(["trust.py", "--out", "/somewhere", "--target", "cuda"]) == "python benchmarks/trust.py --target cuda"


def test_without_protection_the_same_judge_alters_and_checks_nothing(trust) -> None:
    w, device = resolve("gemm:24x16x32:fp32"), target("fake").open()
    buffers = Buffers(device, problem_of(w), w, sets=2)
    spot = timing._Spot(problem_of(w), w, buffers, 2, lambda: None, random.SystemRandom(), met=False)
    timing.refill(problem_of(w), w, buffers, torch.Generator(), "cpu", 2)

    def altered() -> bool:
        before = buffers.flat.clone()
        spot.choose(2, True)
        spot.renew()
        return not torch.equal(before, buffers.flat)

    with trust.unprotected("fake"):
        assert not altered()
        spot.check(None, "device-cold")  # a fault would be raised: the outputs are unwritten
        assert Judge(device, 1, lambda _: None).run(Job(workload=w, rivals=("eager",), modes=("device-cold",))).rivals[0].verdict.ok
    assert altered()
    with pytest.raises(Exception, match="hold the poison"):
        spot.check(None, "device-cold")
