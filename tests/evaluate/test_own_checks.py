"""Problems with a check of their own, up the whole ladder: answers of every kind, forged reports, and what a challenge is scored by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.candidate_file import load, parse
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, SCREEN_RUNGS, Job
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Origin, Outcome, Trial
from kernelwright.targets import target

EXAMPLES = Path(__file__).parents[2] / "examples" / "applications"
ANSWERS = {
    "bfs.cpp": "expert:bfs:60x200",
    "sssp.cpp": "expert:sssp:60x200",
    "pagerank.py": "expert:pagerank:60x200",
    "ntt.cpp": "expert:ntt:3x64",
    "msm.cpp": "expert:msm:5x2",
    "sat.cpp": "expert:sat:3x12x55x2048",
    "compression.cpp": "expert:compression:13x70",
    "lennard_jones.cpp": "expert:lennard-jones:3x2x2",
    "gpt_training.py": "expert:gpt-training:1x32x11x8x2x2:fp32",
    "challenge_compression.cpp": "expert:challenge-compression:13x70x300",
    "challenge_tour.cpp": "expert:challenge-tour:40x300",
    "challenge_independent_set.py": "expert:challenge-independent-set:60x200x300",
}


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("cpu")) as one:
        yield one


def judged(evaluator: Evaluator, candidate: Candidate, problem: str, rungs: tuple[str, ...] = ALL_RUNGS, **limits: float) -> Trial:
    limits = {"min_rounds": 3, "max_rounds": 3, "seconds": 1.0} | limits
    job = Job(workload=resolve(problem), rungs=rungs, modes=("device-warm",), **limits)  # pyright: ignore[reportArgumentType]
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    return trial


def written(text: str, problem: str, suffix: str = ".cpp") -> Candidate:
    return parse(text, suffix, resolve(problem), Origin(kind="file", name="test"))


def changed(name: str, **replaced: str) -> Candidate:
    """An example with some of its text replaced."""
    text = (EXAMPLES / name).read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return written(text, ANSWERS[name], Path(name).suffix)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_example_passes_the_whole_ladder(evaluator: Evaluator, name: str) -> None:
    trial = judged(evaluator, load(EXAMPLES / name, resolve(ANSWERS[name]), "cpu"), ANSWERS[name])
    assert trial.verdict.ok or trial.verdict.outcome is Outcome.NOISY, trial.verdict
    rungs = {c.rung for c in trial.verdict.checks if c.passed}
    assert rungs >= {"normal", "memory", "repeat", "shapes", "after-timing"}
    assert set(trial.scores) == ({problem.score} if (problem := _problem(name)).score and trial.verdict.ok else set())


def _problem(name: str):
    from kernelwright.problems import problem_of

    return problem_of(resolve(ANSWERS[name]))


FORGED = {
    "a length that says more than is there": ("compression.cpp", {"*length = int(at)": "*length = int(at) / 2"}, "bytes"),
    "values beyond the bound": ("compression.cpp", {"(2 * double(*bound))": "(4 * double(*bound))"}, "is off by"),
    "a proof that was made up": ("sat.cpp", {"proof.push_back(-literal)": "proof.push_back(literal)"}, "proof"),
    "everything is satisfiable": ("sat.cpp", {"verdict[b] = f.search(decisions)": "f.search(decisions), verdict[b] = 1"}, "assignment"),
    "distances without parents": ("bfs.cpp", {", parent[v] = u": ""}, "parent"),
    "one iteration": ("lennard_jones.cpp", {"step < every * snapshots": "step < 1"}, "poison"),
    "the losses of a good run": (
        "gpt_training.py",
        {"losses.append(loss.detach())": "losses.append(loss.detach() * 0 + 2)"},
        "the loss of step 0",
    ),
    "no weight decay": ("gpt_training.py", {"+ 0.1 * weights": ""}, "AdamW"),
    "a tour that leaves places out": ("challenge_tour.cpp", {"order[i] = int(i)": "order[i] = int(i / 2)"}, "twice"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_report_is_not_believed(evaluator: Evaluator, name: str) -> None:
    example, replaced, words = FORGED[name]
    trial = judged(evaluator, changed(example, **replaced), ANSWERS[example], SCREEN_RUNGS)
    assert trial.verdict.outcome is Outcome.WRONG_RESULT and words in trial.verdict.evidence, trial.verdict
    assert not trial.scores and not trial.timings


def test_right_when_verified_and_wrong_when_timed(evaluator: Evaluator) -> None:
    """The first runs are right, later ones leave out what nobody may look at any more."""
    counting = changed(
        "bfs.cpp", **{"    delete[] queue;": "    static int runs = 0;\n    if (++runs > 9) parent[vertices - 1] = 0;\n    delete[] queue;"}
    )
    trial = judged(evaluator, counting, ANSWERS["bfs.cpp"], SCREEN_RUNGS, min_rounds=25, max_rounds=25)
    assert trial.verdict.outcome is Outcome.WRONG_RESULT and "in a timed round" in trial.verdict.evidence


def test_another_right_answer_each_time_is_right(evaluator: Evaluator) -> None:
    """Parents of a race: every run turns the order of edges over."""
    loop = "for (int e = offsets[u]; e < offsets[u + 1]; e++) {"
    order = "int e = turn & 1 ? i : offsets[u] + offsets[u + 1] - 1 - i;"
    turning = f"static int turn = 0; turn++; for (int i = offsets[u]; i < offsets[u + 1]; i++) {{ {order}"
    trial = judged(evaluator, changed("bfs.cpp", **{loop: turning}), ANSWERS["bfs.cpp"])
    assert trial.verdict.ok or trial.verdict.outcome is Outcome.NOISY, trial.verdict


def test_the_poison_tells_nobody_what_to_do(evaluator: Evaluator) -> None:
    """Works where it finds poison, and leaves what looks like a result."""
    lazy = changed("bfs.cpp", **{"    for (long v = 0;": "    if (distance[0] != -1) return;\n    for (long v = 0;"})
    trial = judged(evaluator, lazy, ANSWERS["bfs.cpp"])
    assert trial.verdict.outcome is Outcome.CHEAT and "results of other inputs" in trial.verdict.evidence, trial.verdict


def test_who_takes_too_long_has_no_score(evaluator: Evaluator) -> None:
    slow = changed(
        "challenge_tour.cpp", **{"#include <cmath>": "#include <cmath>\n#include <unistd.h>", "auto way": "usleep(400000); auto way"}
    )
    trial = judged(evaluator, slow, ANSWERS["challenge_tour.cpp"], SCREEN_RUNGS)
    assert trial.verdict.outcome is Outcome.TIMEOUT and "300000 us" in trial.verdict.evidence.replace("3e+05", "300000"), trial.verdict
    assert not trial.scores


def test_verify_shows_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright.cli import app

    arguments = ["verify", str(EXAMPLES / "challenge_compression.cpp"), "--problem", "expert:challenge-compression:13x70x300"]
    done = CliRunner().invoke(app, [*arguments, "--target", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert shown["verdict"] == "OK" and 2 < shown["scores"]["compression ratio"] < 10


def test_our_own_cpp_is_a_rival_like_any_other(evaluator: Evaluator) -> None:
    job = Job(workload=resolve(ANSWERS["sat.cpp"]), rivals=("native", "eager"), rungs=SCREEN_RUNGS, modes=("device-warm",), max_rounds=9)
    (trial,) = evaluator.evaluate([load(EXAMPLES / "sat.cpp", job.workload, "cpu")], job, stage="verify", session="test")
    assert trial.verdict.ok or trial.verdict.outcome is Outcome.NOISY, trial.verdict
    assert trial.rivals["native"].outcome in (Outcome.OK, Outcome.NOISY), trial.rivals
