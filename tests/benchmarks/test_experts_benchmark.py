"""`benchmarks/experts.py`: what it checks, keeps and publishes."""

from __future__ import annotations

import datetime
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from kernelwright.evaluate.evaluator import rival_candidate
from kernelwright.problems import resolve
from kernelwright.problems.experts import EXPERTS
from kernelwright.problems.suites import suite
from kernelwright.records import Environment, Outcome, Timing, Trial, Verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def experts(monkeypatch):
    spec = importlib.util.spec_from_file_location("kernelwright_experts", ROOT / "benchmarks" / "experts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["benchmarks/experts.py"])
    return module


def test_the_table_of_the_documentation_is_that_of_the_code(experts):
    text = (ROOT / "docs" / "experts.md").read_text()
    assert text.rstrip().endswith(experts.table()), "python benchmarks/experts.py --table writes its end"


def test_a_check_has_all_four_parts(experts):
    check = experts.check_of(next(p for p in EXPERTS if p.title == "softmax"), "cpu")
    assert check["reference_differs"] == check["lint"] == check["passed"] == [] and check["wrong"] == {}
    assert check["contenders"] == ["eager", "aten"] and check["mutants"] >= 6
    assert "all as it should be" in experts.told(check)
    assert "the future seen" in experts.told(check | {"passed": ["the future seen"]})


def test_one_that_hangs_loses_its_turn_alone(experts):
    found = list(experts.checks(["softmax", "sort"], "cpu", 0.01, float("inf")))
    assert [c["problem"] for c in found] == ["softmax", "sort"]
    assert all(c["fault"] == "no answer within 0 s" for c in found)


def test_every_problem_comes_before_second_shapes(experts):
    order = experts.first_ones_first(suite("experts"))
    assert len(order) == len(suite("experts"))
    assert len({w.problem for w in order[: len(EXPERTS)]}) == len(EXPERTS)


def trial(workload: str, rival: str, us: float | None) -> Trial:
    timing = Timing(mode="device-warm", samples=(us,) * 3, median=us, low=us, high=us, launches=1) if us else None
    return Trial(
        workload=resolve(workload),
        candidate=rival_candidate(rival),
        verdict=Verdict(outcome=Outcome.OK if us else Outcome.WRONG_RESULT, evidence="as scripted"),
        environment=Environment(target="cpu", device="a"),
        timings=(timing,) if timing else (),
        stage="confirm",
        session="s",
        created=datetime.datetime.now(datetime.UTC).isoformat(),
    )


def test_what_is_published(experts, tmp_path):
    for rival, us in (("eager", 3.0), ("flash", 2.0)):
        experts.add(tmp_path / "trials.jsonl", trial("expert:attention:2x2x12x20x16", rival, us).to_json())
    experts.add(tmp_path / "trials.jsonl", trial("expert:softmax:9x70", "aten", None).to_json())
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"half a li')
    experts.add(tmp_path / "checks.jsonl", json.dumps({"problem": "softmax", "fault": "hangs"}))
    check = {"problem": "attention", "reference_differs": [], "lint": [], "contenders": ["eager", "flash"], "wrong": {}}
    experts.add(tmp_path / "checks.jsonl", json.dumps(check | {"mutants": 9, "passed": ["no mask"]}))
    (tmp_path / "summary.json").write_text(json.dumps({"figures": {"kernelbench_level1": 1.5, "experts_old": 1}, "answers": ["kept"]}))
    experts.write(tmp_path, Environment(target="cpu", device="a"), "cpu", "device-warm")
    found = json.loads((tmp_path / "summary.json").read_text())
    figures = found["figures"]
    assert figures["kernelbench_level1"] == 1.5 and "experts_old" not in figures and found["answers"] == ["kept"]
    assert (figures["experts_checked"], figures["experts_mutants"], figures["experts_mutants_rejected"]) == (1, 9, 8)
    assert (figures["experts_workloads"], figures["experts_workloads_with_a_right_expert"]) == (2, 1)
    attention, softmax = found["results"]
    assert attention["expert"] == "flash" and attention["us"]["eager"] == {"device-warm": 3.0}
    assert softmax["expert"] == "" and softmax["wrong"] == {"aten": "WRONG_RESULT: as scripted"}
