"""Every known cheat gets the Verdict that its header names, with evidence; and it would have passed where harnesses are naive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.candidate_file import load
from kernelwright.evaluate import corpus
from kernelwright.evaluate.build import build
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.records import Build, Outcome, Verdict
from kernelwright.targets import target

HERE = Path(__file__).parent
CUDA, CPU = sorted((HERE / "cuda").glob("*.cu")), sorted((HERE / "cpu").glob("*.cpp"))
PASS_A_NAIVE_HARNESS = (
    *("replay_by_pointer", "replay_by_shape", "replay_by_fingerprint", "several_calls_in_one", "call_counter", "inputs_zeroed_when_timed"),
    *("denormals_for_the_rival", "transposed_in_place", "zeros", "mean_instead_of_softmax", "skipped_tail", "only_contiguous"),
    *("int8_for_small_integers", "nan_is_lost", "read_beyond_times_zero", "scratch_beyond_the_end", "random_last_bit", "forged_answer"),
    *("flushes_denormals", "right_for_the_ladders_shapes", "reads_beyond_and_discards", "updates_what_changed"),
    *("fork_bomb", "runs_a_command", "opens_a_socket", "leaves_a_file", "reads_the_judges_memory", "more_cores_than_given"),
)
"""Of the others some end the process, hang, or want poison, a workspace or another check to show what they do."""


PYTHON = [path for folder in ("python", "python_cuda") for path in corpus.files(HERE / folder, "cuda")]
"""Answers that are judged on a GPU: most of the CPU's, and those that need one."""
HONEST = [path for folder in ("python", "python_cuda") for path in corpus._with(HERE / folder, "honest", "cuda", ("problem",))]


def judged(evaluator: Evaluator, path: Path) -> None:
    one = corpus.suspect(path, evaluator.target)
    trial = corpus.judge(evaluator, one)
    assert trial.verdict.outcome in one.verdicts, trial.verdict
    assert trial.verdict.evidence and (trial.verdict.ok or not trial.timings)


@pytest.fixture(scope="module")
def cpu():
    with Evaluator(target("cpu"), note_seconds=30.0) as one:
        yield one


@pytest.fixture(scope="module")
def gpu():
    with corpus.auditor(target("cuda")) as one:
        yield one


@pytest.mark.parametrize("path", CPU, ids=lambda p: p.stem)
def test_on_the_cpu(cpu: Evaluator, path: Path) -> None:
    judged(cpu, path)


@pytest.mark.gpu
@pytest.mark.parametrize("path", [*CUDA, *PYTHON], ids=lambda p: p.name)
def test_on_a_gpu(gpu: Evaluator, path: Path) -> None:
    judged(gpu, path)


@pytest.mark.gpu
@pytest.mark.parametrize("path", HONEST, ids=lambda p: p.name)
def test_an_honest_answer_passes_on_a_gpu(gpu: Evaluator, path: Path) -> None:
    w = corpus._workload(path)
    one = corpus.Suspect(path.name, corpus.HONEST, w, load(path, w, "cuda"))
    trial = corpus.judge(gpu, one)
    assert trial.verdict.outcome in (Outcome.OK, Outcome.NOISY), trial.verdict


@pytest.mark.parametrize("path", CUDA, ids=lambda p: p.stem)
def test_compiles_for_hopper_exactly_where_its_verdict_says_so(path: Path) -> None:
    """Also where there is no GPU: a cheat that failed to compile by mistake would pass for caught."""
    pytest.importorskip("cuda.bindings.nvrtc")
    nvrtc = pytest.importorskip("kernelwright.targets.nvrtc")
    one = corpus.suspect(path, target("cuda:sm_90"))
    if one.verdicts == (Outcome.COMPILE_ERROR,):
        with pytest.raises(Exception) as refused:
            nvrtc.compile_cubin(one.candidate.source, "sm_90a", one.candidate.flags)
        assert refused.type.__name__ == "CandidateFault" and "root:" not in str(refused.value), "no file's content in the compiler's words"
    else:
        _, log = nvrtc.compile_cubin(one.candidate.source, "sm_90a", one.candidate.flags)
        assert one.candidate.plan is not None
        assert {launch.kernel for launch in one.candidate.plan.launches} <= set(nvrtc.parse_resources(log)[0])


@pytest.mark.parametrize("name", PASS_A_NAIVE_HARNESS)
def test_a_naive_harness_takes_it_for_right(name: str) -> None:
    path = HERE / "cpu" / f"{name}.cpp"
    here = target("cpu")
    library = build(here, corpus.suspect(path, here).candidate).artifact
    extra = ["{0, 1}"] if "integers" in name else []
    command = [sys.executable, str(HERE / "naive.py"), library, corpus.header(path)["problem"], *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("passed"), done.stdout + done.stderr


def test_the_corpus_is_large_and_every_file_is_a_cheat() -> None:
    assert len(CUDA) >= 18 and len(CPU) >= 18 and len(PYTHON) >= 40
    assert corpus.files(HERE / "cuda", "cuda") == CUDA and corpus.files(HERE / "cpu", "cpu") == CPU
    assert all(path in PYTHON for path in (HERE / "python_cuda").glob("*.py"))


def test_an_error_of_the_judges_is_a_finding_until_it_comes_again_and_again(monkeypatch) -> None:
    errors = iter([True, False, True, True, True])

    def judge(*_: object) -> object:
        if next(errors):
            raise JudgeError("it fell over")
        return SimpleNamespace(verdict=SimpleNamespace(outcome=Outcome.OK, evidence="fine", ok=True), timings=())

    monkeypatch.setattr(corpus, "judge", judge)
    ones = [*corpus.honest(target("cpu"), 1, HERE / "none")] * 5
    evaluator: Any = SimpleNamespace(builder=SimpleNamespace(want=lambda candidates: None))
    found = []
    with pytest.raises(JudgeError):
        for finding in corpus.audit_of(evaluator, ones):
            found.append(finding)
    assert [f.outcome for f in found] == [corpus.JUDGE_ERROR, "OK", corpus.JUDGE_ERROR, corpus.JUDGE_ERROR]
    assert not found[0].right and "judge" in found[0].what and found[1].right


@pytest.mark.parametrize("found", [None, "racecheck"])
def test_device_code_that_the_ladder_lets_through_goes_under_the_sanitizers(monkeypatch, found: str | None) -> None:
    """As in `pack verify`; an honest kernel, or a trick that gains nothing, does not."""
    path = HERE / "cuda" / "missing_barrier.cu"
    one = corpus.suspect(path, target("cuda:sm_90"))
    asked = []

    class Sanitizer:
        def __init__(self, *_: object, **__: object):
            pass

        def run(self, tool: str, request: Any) -> list[Verdict]:
            asked.append((tool, request.target, request.kernels[0].candidate, request.kernels[0].workloads))
            return [Verdict(outcome=corpus.TOOLS[tool] if tool == found else Outcome.OK, evidence=f"{tool}: a hazard")]

    fine = SimpleNamespace(verdict=SimpleNamespace(outcome=Outcome.OK, evidence="fine", ok=True), timings=())
    built = Build(key="k", artifact="a", compiler="", arch="sm_90a")
    builder = SimpleNamespace(want=lambda _: None, builds=lambda candidates: [(c, built) for c in candidates])
    evaluator: Any = SimpleNamespace(target=target("cuda:sm_90"), builder=builder)
    monkeypatch.setattr(corpus, "judge", lambda *_: fine)
    monkeypatch.setattr(corpus, "find_tool", lambda name: f"/bin/{name}")
    monkeypatch.setattr(corpus, "Sanitizer", Sanitizer)
    honest = corpus.Suspect("honest", corpus.HONEST, one.workload, one.candidate)
    cheat, right = corpus.audit_of(evaluator, [one, honest])
    assert asked == [(tool, "cuda:sm_90", one.candidate, (one.workload,)) for tool in corpus.TOOLS]
    expected = (Outcome.NONDETERMINISTIC, "racecheck: a hazard", True) if found else (Outcome.OK, "fine", False)
    assert (cheat.outcome, cheat.evidence, cheat.right) == expected and right.right
    monkeypatch.setattr(corpus, "find_tool", lambda name: None)
    assert not next(corpus.audit_of(evaluator, [one])).right, "without the tool it gets through"


def test_the_page_of_cheats_lists_them_all() -> None:
    from page import page

    assert (HERE.parents[1] / "docs" / "cheats.md").read_text() == page(), "run: python tests/cheats/page.py > docs/cheats.md"
