"""The evaluator on the fake target: every outcome, and judges that die."""

from __future__ import annotations

import json
from multiprocessing import Pipe
from types import SimpleNamespace

import msgspec
import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job, Note
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Origin, Outcome, Trial, Verdict
from kernelwright.targets import target

W = resolve("gemm:16x16x16:fp32")
SCREEN = Job(workload=W, rivals=("eager",), modes=("device-warm",))


def scripted(**script) -> Candidate:
    return Candidate(kind="fake", source=json.dumps(script), origin=Origin(kind="script"))


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("fake"), note_seconds=12.0) as one:
        yield one


def screen(evaluator: Evaluator, *candidates: Candidate, job: Job = SCREEN, stage: str = "screen") -> list[Trial]:
    return list(evaluator.evaluate(candidates, job, stage=stage, session="test"))


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        ({}, Outcome.OK, "checks passed"),
        ({"result": "zeros"}, Outcome.WRONG_RESULT, "exact rung"),
        ({"result": "partial"}, Outcome.WRONG_RESULT, "1 elements hold the poison"),
        ({"writes": "input"}, Outcome.INPUT_MUTATED, "input a"),
        ({"writes": "beyond"}, Outcome.OUT_OF_BOUNDS, "c"),
        ({"us": 1e-9}, Outcome.CHEAT, "physical limit"),
        ({"fault": {"compile": "COMPILE_ERROR"}}, Outcome.COMPILE_ERROR, "compile"),
        ({"fault": {"load": "LAUNCH_ERROR"}}, Outcome.LAUNCH_ERROR, "load"),
        ({"fault": {"run": "OUT_OF_MEMORY"}}, Outcome.OUT_OF_MEMORY, "run"),
        ({"fault": {"time": "CRASH"}}, Outcome.CRASH, "time"),
    ],
)
def test_each_fault_is_its_verdict(evaluator, script, outcome, words):
    (trial,) = screen(evaluator, scripted(**script))
    assert trial.verdict.outcome == outcome, trial.verdict.evidence
    assert words in trial.verdict.evidence
    assert bool(trial.timings) == (outcome == Outcome.OK)


def test_a_nondeterministic_kernel_is_found_by_the_repeat_rung(evaluator):
    job = SCREEN.replace(rungs=("normal", "repeat"))
    (trial,) = screen(evaluator, scripted(result="noise"), job=job)
    assert trial.verdict.outcome == Outcome.NONDETERMINISTIC


def test_a_judge_that_dies_costs_only_the_guilty(evaluator):
    before = evaluator.restarts
    trials = screen(evaluator, scripted(us=9), scripted(dies=True), scripted(us=8))
    assert [t.verdict.outcome for t in trials] == [Outcome.OK, Outcome.CRASH, Outcome.OK]
    assert evaluator.restarts == before + 1


def test_a_hang_is_a_timeout_and_the_next_candidate_is_unharmed(evaluator):
    trials = screen(evaluator, scripted(hangs=True), scripted(us=7))
    assert [t.verdict.outcome for t in trials] == [Outcome.TIMEOUT, Outcome.OK]


def test_together_the_guilty_is_left_out_and_the_rest_is_measured(evaluator):
    built = list(evaluator.builder.builds([scripted(us=5), scripted(dies=True, us=1), scripted(us=10)]))
    job = SCREEN.replace(rungs=ALL_RUNGS, noise=True)
    trials = list(evaluator.evaluate_built(built, job, stage="confirm", session="test"))
    assert [t.verdict.outcome for t in trials[:3]] == [Outcome.OK, Outcome.CRASH, Outcome.OK]
    assert [t.candidate.source for t in trials[3:]] == ["eager"]
    fast, _, slow = trials[:3]
    assert fast.comparisons[0].ratio == pytest.approx(4.0, rel=0.1)
    assert slow.comparisons[0].ratio == pytest.approx(2.0, rel=0.1)
    assert fast.comparisons[0].outcome == "win"
    assert 0.95 < fast.comparisons[0].noise_low <= fast.comparisons[0].noise_high < 1.05


def test_the_ladder_reports_every_rung(evaluator):
    (trial,) = screen(evaluator, scripted(), job=SCREEN.replace(rungs=ALL_RUNGS))
    assert {c.rung for c in trial.verdict.checks} == {"exact", "normal", "adversarial", "memory", "repeat", "shapes", "after-timing"}
    assert all(c.passed for c in trial.verdict.checks)


def test_a_trial_survives_its_json(evaluator):
    (trial,) = screen(evaluator, scripted())
    again = Trial.from_json(trial.to_json())
    assert again == trial and again.id == trial.id


def test_words_that_are_no_message_of_the_judge_are_the_candidates_fault():
    with Evaluator(target("fake")) as evaluator:
        ours, theirs = Pipe()
        evaluator._pipe = ours
        evaluator._process = SimpleNamespace(wait=lambda timeout=None: 0)  # pyright: ignore[reportAttributeAccessIssue]
        theirs.send_bytes(msgspec.json.encode(Note(label="guilty", doing="verify binary")))
        theirs.send_bytes(b'{"results": "all right"')
        answer, label = evaluator._ask(Job(workload=W))
    assert isinstance(answer, Verdict) and (answer.outcome, label) == (Outcome.CHEAT, "guilty")
