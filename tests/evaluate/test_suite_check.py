"""The suite `experts` against itself: references, experts and mutants, on sizes of a few hundred elements."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernelwright.evaluate.suite_check import INPUT_RUNGS, called, climb, disagreement, mutants, rival, survivors
from kernelwright.problems.experts import EXPERTS
from kernelwright.rivals import experts_for, names_for
from kernelwright.rivals.experts import RIVALS
from kernelwright.targets.target import Bound, CandidateFault

each = pytest.mark.parametrize("problem", EXPERTS, ids=[p.title for p in EXPERTS])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors of a few hundred elements: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@each
def test_the_reference_agrees_with_a_second_implementation(problem):
    for sizes in problem.tiny:
        assert disagreement(problem, problem.workload(sizes)) == "", sizes


@each
def test_eager_climbs_the_ladder(problem):
    w = problem.workload(problem.tiny[0])
    assert climb(problem, w, partial(rival, "eager"), rungs=(*INPUT_RUNGS, "shapes")) == ""


@each
def test_experts_are_right_or_say_why_they_are_skipped(problem):
    w = problem.workload(problem.tiny[0])
    assert experts_for(w, "cpu", every=True) == tuple(r.name for r in RIVALS[problem.title])
    for one in RIVALS[problem.title]:
        why = climb(problem, w, partial(rival, one.name))
        if one.cuda_only:
            assert why == f"REFUSED: {one.name} has no CPU counterpart here: {one.cuda_only}"
            assert one.name not in names_for(w, "cpu") and one.name in names_for(w, "cuda:sm_90a")
        else:
            assert why == ""


@each
def test_wrong_kernels_are_rejected(problem):
    w = problem.workload(problem.tiny[0])
    found = survivors(problem, w)
    assert found["mutants"] >= 3 + len(problem.mistakes) and problem.mistakes and not found["passed"]


def test_every_problem_has_experts():
    assert set(RIVALS) == {p.title for p in EXPERTS}


def test_a_right_function_passes_as_a_mutant_would():
    """What rejects mutants is not the way they are called."""
    problem = EXPERTS[0]
    w = problem.workload(problem.tiny[0])
    assert climb(problem, w, partial(called, problem, lambda w, x: problem.eager(w, x))) == ""
    assert "without a" in mutants(problem, w)


def test_an_unknown_expert_lists_those_there_are():
    w = EXPERTS[0].workload(EXPERTS[0].tiny[0])
    with pytest.raises(ValueError, match="there are: cublas"):
        rival("cudnn", w, [])


def test_one_for_gpus_is_refused_here_with_a_sentence():
    problem = next(p for p in EXPERTS if p.title == "attention")
    with pytest.raises(CandidateFault, match="cuDNN is for GPUs"):
        rival("cudnn", w := problem.workload(problem.tiny[0]), _bound(problem, w))


def _bound(problem, w):
    return [Bound(tensors={s.name: torch.zeros(s.shape) for s in problem.tensors(w)}, names={})]
