"""The 2:4 rival with PyTorch's operators played by plain products: what it keeps, refuses and checks; and what the judge makes of it."""

from __future__ import annotations

import pytest
import torch

from kernelwright import rivals
from kernelwright.evaluate.timing import Entrant
from kernelwright.problems import problem_of, resolve
from kernelwright.records import INEXACT, Outcome, cannot_serve
from kernelwright.rivals import cusparselt
from kernelwright.targets.target import Bound, CandidateFault

W = resolve("spmm:3x32x64")


def bound(seed: int = 0) -> Bound:
    problem = problem_of(W)
    case = next(c for c in problem.cases(W) if c.name == "normal")
    tensors = problem.generate(W, case, torch.Generator().manual_seed(seed), "cpu") | {"y": torch.full((3, 32), float("nan")).half()}
    return Bound(tensors=tensors, names=dict(problem.names(W, 1)))


@pytest.fixture
def operators(monkeypatch):
    """A compressed weight is the weight; algorithm 7 is the fastest."""
    used = []

    def multiply(packed, x, *, transpose_result, alg_id):
        used.append(alg_id)
        assert transpose_result and x.shape[1] % 8 == 0
        return (packed.float() @ x.float()).t().to(x.dtype)

    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: True)
    monkeypatch.setattr(torch, "_cslt_compress", torch.clone)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", multiply)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", lambda packed, x, *, transpose_result: 7)
    return used


def test_two_of_four_neighbours_stay():
    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.0, -1.0, 0.0, 2.0, 2.0, 2.0, 2.0]])
    assert cusparselt.two_of_four(weight).tolist() == [[0.0, -3.0, 2.0, 0.0, 0.0, 0.0, -1.0, 0.0, 2.0, 2.0, 0.0, 0.0]]


def test_it_multiplies_by_its_own_weight_as_it_is_before_each_sample(operators):
    one = bound()
    (run,), setup = rivals.load("cusparselt", W, [one])
    assert setup is not None and run.prepare is not None
    setup()
    one.tensors["w"].copy_(one.tensors["w"].roll(1, 0))  # as between rounds
    run.prepare()
    run.store(run.call())
    want = one.tensors["x"].float() @ cusparselt.two_of_four(one.tensors["w"]).float().t()
    assert torch.allclose(one.tensors["y"].float(), want, atol=2e-3) and operators[-1] == 7


def test_a_library_that_multiplies_wrongly_is_told(operators, monkeypatch):
    monkeypatch.setattr(torch, "_cslt_sparse_mm", lambda packed, x, **_: x.t().new_ones(x.shape[1], packed.shape[0]))
    _, setup = rivals.load("cusparselt", W, [bound()])
    with pytest.raises(CandidateFault, match="its own 2:4 weight"):
        setup()


@pytest.mark.parametrize(("text", "words"), [("spmm:3x32x64:bias", "without bias"), ("spmm:3x33x64", "whole sixteens")])
def test_what_it_refuses(operators, text: str, words: str):
    with pytest.raises(CandidateFault, match=words):
        rivals.load("cusparselt", resolve(text), [])


def test_without_the_library_there_is_one_sentence():
    if torch.backends.cusparselt.is_available():
        pytest.skip("this PyTorch has it")
    with pytest.raises(CandidateFault, match="built without cuSPARSELt") as caught:
        rivals.load("cusparselt", W, [bound()])
    assert caught.value.outcome == Outcome.REFUSED


def test_it_is_asked_for_and_never_serves():
    assert "cusparselt" not in rivals.names_for(W, "cuda:sm_90") and "cusparselt" in rivals.names_for(W, "cuda:sm_90", every=True)
    assert cannot_serve("cusparselt") and cannot_serve("cublas-nt") and not cannot_serve("cublaslt-auto")
    assert set(INEXACT) <= set(rivals.names_for(W, "cuda:sm_90", every=True))
    assert Entrant("eager", None, True).exact  # pyright: ignore[reportArgumentType]
