"""Python cheats, each of which must get its Verdict, and honest answers, each of which must pass, on the CPU target."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.problems.kernelbench import load
from kernelwright.records import Candidate, Origin, Outcome, Trial
from kernelwright.targets import sandbox, target

FOLDER = Path(__file__).parent / "python"
CHEATS = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith("problem_"))
HONEST = sorted((FOLDER / "honest").glob("*.py"))


def header(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^(cheat|honest|idea|problem|verdict): (.+)$", file.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("cpu")) as one:
        yield one


def judged(evaluator: Evaluator, file: Path) -> Trial:
    candidate = Candidate(kind="python", source=file.read_text(), origin=Origin(kind="file", name=file.name))
    w = load(FOLDER / header(file)["problem"])
    job = Job(workload=w, rivals=("eager",), rungs=ALL_RUNGS, modes=("device-warm",), min_rounds=5, max_rounds=5, noise=True)
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    return trial


@pytest.fixture(scope="module")
def confined():
    """Cheats that would do harm run only where the layers that stop them are proved to be there (tests/targets/test_sandbox.py)."""
    layers = sandbox.probe()
    if "seccomp" not in layers or not any(layer.startswith("landlock") for layer in layers):
        pytest.skip(f"this kernel offers only {layers}")
    pid = os.fork()
    if pid == 0:
        import tempfile

        with tempfile.TemporaryDirectory() as private:
            sandbox.enter(Path(private))
            try:
                os.fork()
            except PermissionError:
                os._exit(0)
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        pytest.skip("forking is not denied here")


@pytest.mark.parametrize("file", CHEATS, ids=lambda f: f.stem)
def test_a_cheat_gets_its_verdict(evaluator, confined, file):
    trial = judged(evaluator, file)
    wanted = [Outcome(name) for name in header(file)["verdict"].split("|")]
    assert trial.verdict.outcome in wanted, trial.verdict.evidence
    assert not trial.timings
    assert trial.verdict.evidence


@pytest.mark.parametrize("file", HONEST, ids=lambda f: f.stem)
def test_an_honest_answer_passes(evaluator, file):
    trial = judged(evaluator, file)
    if trial.verdict.outcome is Outcome.NOISY:
        pytest.skip("the machine is too busy for any undisturbed sample")
    assert trial.verdict.ok, trial.verdict.evidence
    assert trial.environment.facts["isolation"] == sandbox.isolation(sandbox.probe())


def test_there_are_many_and_each_says_whose_idea_it_is():
    assert len(CHEATS) >= 20 and len(HONEST) >= 10
    assert all({"cheat", "idea", "problem", "verdict"} <= header(f).keys() for f in CHEATS)
    assert all({"honest", "problem"} <= header(f).keys() for f in HONEST)
