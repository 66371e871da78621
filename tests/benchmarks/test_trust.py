"""`benchmarks/trust.py`: what it publishes of two targets, and that without protection nothing is found in timed rounds."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from kernelwright import targets
from kernelwright.evaluate import corpus, timing
from kernelwright.evaluate.buffers import Buffers
from kernelwright.evaluate.corpus import Finding
from kernelwright.evaluate.jobs import Job
from kernelwright.evaluate.judge import Judge
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Outcome
from kernelwright.targets import target
from kernelwright.targets.target import TargetUnavailable
from made_up import scripted

ROOT = Path(__file__).parents[2]
W = resolve("gemm:16x16x16:fp32")


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


def test_whole_findings_of_an_audit_that_was_cut_short_are_read(trust, tmp_path: Path) -> None:
    one = Finding("a.cu", "replay", ("WRONG_RESULT",), "WRONG_RESULT", "3 wrong", 0.5, us={"device-cold": 2.0}, candidate="c1")
    file = tmp_path / "audit-cuda.jsonl"
    assert trust.earlier(file) == []
    file.write_text(trust._line(one) + trust._line(one)[:20])
    assert trust.earlier(file) == [one]
    assert trust._said(["trust.py", "--out", "/somewhere", "--target", "cuda"]) == "python benchmarks/trust.py --target cuda"


def test_a_resumed_audit_judges_what_has_no_finding_or_has_changed(trust, tmp_path: Path, monkeypatch) -> None:
    right, wrong = {"result": "right"}, {"result": "zeros"}
    ones = [
        corpus.Suspect("a.cu", "replay", W, scripted(**wrong), (Outcome.WRONG_RESULT,)),
        corpus.Suspect("b.cu", "replay", W, scripted(us=2.0, **wrong), (Outcome.WRONG_RESULT,)),
        corpus.Suspect("fine", corpus.HONEST, W, scripted(**right)),
    ]
    monkeypatch.setattr(corpus, "suspects", lambda *_: (ones[:2], ones[2:]))
    kept = Finding("a.cu", "replay", ("WRONG_RESULT",), "WRONG_RESULT", "as before", 0.5, candidate=ones[0].candidate.id)
    changed = Finding("b.cu", "replay", ("WRONG_RESULT",), "OK", "of its old source", 0.5, candidate="another")
    file = tmp_path / "audit-fake.jsonl"
    file.write_text(trust._line(kept) + trust._line(changed))
    said = trust.audit("fake", tmp_path, 60.0, 1, True)
    found = trust.earlier(file)
    assert [f.name for f in found] == ["a.cu", "b.cu", "fine"] and found[0] == kept and found[1].outcome == "WRONG_RESULT"
    assert (said["cheats_caught"], said["cheats_total"], said["honest"], said["left_out"], said["false_alarms"]) == (2, 2, 1, 0, 0)
    assert trust.audit("fake", tmp_path, 0.0, 1, False)["left_out"] == 2, "the time is up after one"
    monkeypatch.setattr(sys, "argv", ["benchmarks/trust.py", "--resume"])
    for _ in range(2):
        trust.publish(tmp_path, "cpu", "audit", {"cheats_total": 1, "cheats_caught": 1, "false_alarms": 0, "honest": 1})
    ran = json.loads((tmp_path / "summary.json").read_text())["targets"]["cpu"]["ran"]["audit"]["command"]
    assert ran.count("trust.py") == 2, "every call that the findings came from"


def test_a_target_that_is_not_here_is_one_sentence(trust, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/trust.py", "--target", "cuda", "--out", str(tmp_path / "out")])
    monkeypatch.setattr(targets, "usable", lambda name: (_ for _ in ()).throw(TargetUnavailable("no GPU: install one")))
    with pytest.raises(SystemExit, match="no GPU: install one"):
        trust.main()
    assert not (tmp_path / "out").exists()


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
