"""Applications and open challenges: own rivals are right on every case, wrong kernels are refused, garbage raises nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.problems.applications import APPLICATIONS, CHALLENGES, Application, application
from kernelwright.problems.lint import RULES, _Validated, lint
from kernelwright.problems.problem import Tensors
from kernelwright.problems.suites import suite
from kernelwright.problems.validators import Finding, right
from kernelwright.records import Workload

ALL = (*APPLICATIONS, *CHALLENGES)
each = pytest.mark.parametrize("problem", ALL, ids=lambda p: p.title)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Own rivals of the challenges search for 60 ms of their 300; small tensors on one thread."""
    monkeypatch.setattr(application, "SHARE_OF_TIME", 0.2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_what_there_is() -> None:
    titles = [p.title for p in APPLICATIONS]
    assert titles == ["gpt-training", "lennard-jones", "sat", "bfs", "sssp", "pagerank", "compression", "ntt", "msm"]
    assert len(CHALLENGES) == 4 and all(p.score for p in CHALLENGES)
    assert {w.problem for w in suite("experts-applications")} == {p.name for p in APPLICATIONS} <= {w.problem for w in suite("experts")}
    assert {w.problem for w in suite("experts-challenges")} == {p.name for p in CHALLENGES}
    assert [w.problem for w in suite("experts-applications-tiny")] == [p.name for p in ALL]
    assert not {w.problem for w in suite("experts")} & {p.name for p in CHALLENGES}, "shown apart"
    assert all(len(p.mistakes) >= 3 for p in ALL)


@each
def test_names_and_sizes(problem: Application) -> None:
    for sizes, dtype in itertools.product((*problem.full, *problem.tiny), problem.dtypes):
        w = problem.workload(sizes, dtype)
        assert resolve(w.name) == w and problem_of(w) is problem
        assert problem.cost(w).bytes > 0
    with pytest.raises(ProblemError, match=problem.title):
        resolve(f"{problem.name}:{'x'.join('0' for _ in problem.axes)}")


@each
def test_the_own_rival_is_right_on_every_case(problem: Application) -> None:
    for sizes, dtype in itertools.product(problem.tiny, problem.dtypes):
        w = problem.workload(sizes, dtype)
        for case in problem.cases(w):
            inputs = problem.generate(w, case, rng(), "cpu")
            outputs = problem.eager(w, inputs)
            for spec in problem.tensors(w):
                assert (inputs | outputs)[spec.name].shape == spec.shape
            found = problem.validate(w, inputs, outputs)
            assert found.passed, (w.name, case.name, found)
            assert (found.score is not None) or not problem.score


@each
def test_no_mistake_passes(problem: Application) -> None:
    w = problem.workload(problem.tiny[0])
    draws = [problem.generate(w, case, rng(seed), "cpu") for seed in range(2) for case in problem.cases(w)]
    for name, mistake in problem.mistakes.items():
        outputs = [problem.in_type(w, problem.named(mistake(problem, problem.sizes(w), **inputs))) for inputs in draws]
        assert not all(problem.validate(w, *pair).passed for pair in zip(draws, outputs, strict=True)), name


@each
def test_outputs_may_hold_anything(problem: Application) -> None:
    """No exception, and no answer by chance; one output at a time is garbage, the others are right."""
    w = problem.workload(problem.tiny[0])
    inputs = problem.generate(w, problem.cases(w)[0], rng(), "cpu")
    outputs = problem.eager(w, inputs)
    for name, out in outputs.items():
        for garbage in _garbage(out):
            assert isinstance(problem.validate(w, inputs, outputs | {name: garbage}), Finding)
    for kind in zip(*(_garbage(out) for out in outputs.values()), strict=True):
        found = problem.validate(w, inputs, dict(zip(outputs, kind, strict=True)))
        assert not found.passed, found


def _garbage(out: torch.Tensor) -> list[torch.Tensor]:
    if out.is_floating_point():
        values = [float("nan"), float("inf"), -1e38, 1e-40]
        mixed = torch.tensor(values)[torch.randint(4, out.shape, generator=rng())]
    else:
        values = [-1, 2**31 - 1, -(2**31), 63]
        mixed = torch.randint(-(2**31), 2**31, out.shape, generator=rng())
    return [*(torch.full_like(out, v) for v in values), mixed.to(out.dtype)]


@each
def test_the_lint_finds_nothing(problem: Application) -> None:
    assert lint(problem.workload(problem.full[0])) == []


def test_the_lint_finds_a_validator_that_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(p for p in ALL if p.title == "sssp")
    w = problem.workload(problem.tiny[0])
    monkeypatch.setattr(type(problem), "judge", lambda self, n, inputs, outputs: right())
    found = {(f.rule, f.tensor) for f in _Validated(problem, w, "cpu", 0).findings()}
    assert found >= {("zeros-pass", "distance"), ("replay-passes", ""), ("input-ignored", "weights")}
    assert {rule for rule, _ in found} <= RULES.keys()


def test_a_score_is_what_the_judge_measures() -> None:
    def score(title: str, outputs: Tensors, inputs: Tensors, sizes: tuple[int, ...]) -> float | None:
        problem = next(p for p in CHALLENGES if p.title == title)
        return problem.validate(problem.workload(sizes), inputs, outputs).score

    place = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    order = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    assert score("challenge-tour", {"order": order}, {"place": place}, (4, 1)) == pytest.approx(0.7124 * 2 / 4)
    pair = {"offsets": torch.tensor([0, 1, 2], dtype=torch.int32), "targets": torch.tensor([1, 0], dtype=torch.int32)}
    member = torch.tensor([1, 0], dtype=torch.int32)
    assert score("challenge-independent-set", {"member": member}, pair, (2, 2, 1)) == 0.5


def test_a_challenge_has_a_time() -> None:
    w = CHALLENGES[0].workload(CHALLENGES[0].tiny[0])
    assert CHALLENGES[0].limit_us(w) == 300_000
    assert APPLICATIONS[0].limit_us(Workload(problem="", axes={})) == float("inf")
