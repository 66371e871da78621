"""Kernels that are right as long as launches wait for each other, and wrong in a chain of dependent launches."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, Outcome, ScalarArg, TensorArg, Trial
from kernelwright.targets import target

W = resolve("gemm:256x256x256:fp32:nn")

SOURCE = """
#include "kernelwright/pdl.cuh"
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int ld_a, int ld_b, int ld_c) {
    kw::launch_dependents();
    const int n = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    BEFORE
    float sum = 0.f;
    for (int k = 0; n < N && k < K; k++) sum += a[size_t(m) * ld_a + k] * b[size_t(k) * ld_b + n];
    AFTER
    if (n < N) c[size_t(m) * ld_c + n] = sum;
}"""
WAIT = "kw::grid_dependency_wait();"


def gemm(before: str, after: str = "", *, pdl: bool = True) -> Candidate:
    args = (
        *(TensorArg(name=name) for name in "abc"),
        *(ScalarArg(ctype="i32", value=name) for name in ("M", "N", "K", "ld_a", "ld_b", "ld_c")),
    )
    launch = Launch(kernel="gemm", args=args, grid=("cdiv(N, 64)", "M", 1), block=(64, 1, 1), pdl=pdl)
    source = SOURCE.replace("BEFORE", before).replace("AFTER", after)
    return Candidate(kind="cuda", source=source, plan=LaunchPlan(launches=(launch,)), origin=Origin(kind="file"))


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("cuda")) as one:
        if one.environment.target in ("cuda:sm_80", "cuda:sm_86", "cuda:sm_89"):
            pytest.skip("programmatic dependent launch needs sm_90")
        yield one


def judged(evaluator: Evaluator, candidate: Candidate) -> Trial:
    job = Job(workload=W, rivals=("eager",), rungs=ALL_RUNGS, modes=("device-cold", "device-chain"), min_rounds=3, max_rounds=5)
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    return trial


@pytest.mark.gpu
@pytest.mark.parametrize(("before", "after"), [("", ""), ("", WAIT), (f"if (blockIdx.y % 2) {WAIT}", "")])
def test_a_wait_that_is_missing_late_or_not_for_all_is_found(evaluator: Evaluator, before: str, after: str) -> None:
    trial = judged(evaluator, gemm(before, after))
    assert trial.verdict.outcome is Outcome.WRONG_RESULT and not trial.timings
    assert "griddepcontrol.wait" in trial.verdict.evidence, trial.verdict.evidence
    passed = {c.rung for c in trial.verdict.checks if c.passed}
    assert {"exact", "normal", "adversarial", "repeat"} <= passed, "right as long as nothing overlaps"


@pytest.mark.gpu
def test_an_early_wait_is_right_in_a_chain_and_without_the_edge_none_is_needed(evaluator: Evaluator) -> None:
    right = judged(evaluator, gemm(WAIT))
    assert right.verdict.ok, right.verdict.evidence
    assert [t.mode for t in right.timings] == ["device-cold", "device-chain"]
    assert "chain" in {c.rung for c in right.verdict.checks}
    plain = judged(evaluator, gemm("", pdl=False))
    assert plain.verdict.ok and [t.mode for t in plain.timings] == ["device-cold"]


def test_the_fixtures_compile() -> None:
    """Also where there is no GPU: a fixture that failed to compile would pass for found."""
    nvrtc = pytest.importorskip("kernelwright.targets.nvrtc")
    pytest.importorskip("cuda.bindings.nvrtc")
    for candidate in (gemm(""), gemm("", WAIT), gemm(WAIT), gemm(f"if (blockIdx.y % 2) {WAIT}")):
        _, log = nvrtc.compile_cubin(candidate.source, "sm_90a")
        assert "gemm" in nvrtc.parse_resources(log)[0]
