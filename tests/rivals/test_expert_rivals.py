"""Expert rivals as the judge runs them, in a process of their own on the CPU target."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import Job
from kernelwright.problems import resolve
from kernelwright.targets import usable


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(usable("cpu")) as one:
        yield one


@pytest.mark.parametrize(("problem", "expert"), [("expert:adamw:777", "fused"), ("expert:gemm-fp8:32x48x64", "cublaslt")])
def test_one_is_verified_and_timed(evaluator, problem, expert):
    """`fused` works in place on what is copied before each launch; fp8 has few operations in torch."""
    job = Job(workload=resolve(problem), rivals=("eager", expert), modes=("device-warm",), min_rounds=3, max_rounds=3, seconds=0.1)
    found = {t.candidate.source: t for t in evaluator.evaluate_built([], job, stage="confirm", session="s")}
    for name in ("eager", expert):
        assert found[name].verdict.ok, found[name].verdict.evidence
        assert found[name].timing("device-warm").median > 0
        assert {c.case for c in found[name].verdict.checks if c.rung == "normal"} >= {"normal"}


def test_one_for_gpus_is_refused_and_the_others_run(evaluator):
    job = Job(workload=resolve("expert:linear-sparse:9x16x32"), rivals=("cublas", "cusparselt"))
    reply = evaluator._run(job)[1]
    assert reply["cublas"].verdict.ok
    assert reply["cusparselt"].verdict.outcome == "REFUSED" and "cuSPARSELt is for GPUs" in reply["cusparselt"].verdict.evidence
