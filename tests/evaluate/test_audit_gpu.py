"""The sanitizers on a real GPU: what they must find, and that a right kernel passes."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.audit import Extent, verify_pack
from kernelwright.evaluate.build import build
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.sanitized import Sanitizer
from kernelwright.evaluate.watched import Request, Watched, find_tool
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, Outcome, ScalarArg, TensorArg
from kernelwright.targets import target
from made_up import made_up_pack

pytestmark = pytest.mark.gpu

SOURCE = """
#include <kernelwright/barrier.cuh>
extern "C" __global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float row[256];
    int i = blockIdx.x, j = threadIdx.x;
    float sum = 0;
    for (int first = 0; first < k; first += 256) {
        if (first + j < k) row[j] = a[i * k + first + j];
        BARRIER;
        for (int x = first; x < k && x < first + 256; x++) if (j < n) sum += row[x - first] * b[x * n + j];
        __syncthreads();
    }
    if (j < n) c[i * n + j] = sum;
    EXTRA
}
"""
ONE_THREADS_MBARRIER = """
    __shared__ unsigned long long bar;
    const unsigned at = unsigned(__cvta_generic_to_shared(&bar));
    if (threadIdx.x == 0) {
        kw::barrier_init(at, 1);
        kw::fence_barrier_init();
        kw::barrier_expect(at, 0);
    }
    __syncthreads();
    kw::barrier_wait(at, 0);
"""
TOOL = find_tool("compute-sanitizer")
NEEDS_TOOL = pytest.mark.skipif(TOOL is None, reason="compute-sanitizer is not installed")


def product(barrier: str = "__syncthreads()", extra: str = "") -> Candidate:
    scalars = (ScalarArg(ctype="i32", value=axis) for axis in "MNK")
    launch = Launch(kernel="product", args=(*(TensorArg(name=t) for t in "abc"), *scalars), grid=("M", 1, 1), block=(256, 1, 1))
    contiguous = ("N <= 256", "ld_a == K", "ld_b == N", "ld_c == N")
    plan = LaunchPlan(launches=(launch,), requires=contiguous)
    source = SOURCE.replace("BARRIER", barrier).replace("EXTRA", extra)
    return Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="file", name="product.cu"))


def watched(candidate: Candidate) -> Watched:
    return Watched(candidate=candidate, build=build(target("cuda"), candidate), workloads=(resolve("gemm:8x128x300:fp32"),))


@NEEDS_TOOL
@pytest.mark.parametrize(
    ("candidate", "tool", "outcome"),
    [
        (product(), "memcheck", Outcome.OK),
        (product(), "racecheck", Outcome.OK),
        (product(extra="if (i == m - 1 && j == 0) c[m * n] = 0;"), "memcheck", Outcome.OUT_OF_BOUNDS),
        (product(barrier=""), "racecheck", Outcome.NONDETERMINISTIC),
        (product(extra=ONE_THREADS_MBARRIER), "racecheck", Outcome.OK),
    ],
    ids=("right-memcheck", "right-racecheck", "beyond-the-end", "no-barrier", "mbarrier"),
)
def test_what_the_tools_find(candidate: Candidate, tool: str, outcome: Outcome):
    here = target("cuda")
    assert TOOL is not None
    found, right = Sanitizer(TOOL).run(tool, Request(target=here.name, kernels=tuple(watched(c) for c in (candidate, product(extra=";")))))
    assert found.outcome is outcome, found.evidence
    assert right.ok, "in the same process at first"


def test_a_pack_on_a_gpu(tmp_path):
    here = target("cuda")
    with Evaluator(here) as evaluator:
        saved = made_up_pack(tmp_path / "p", here.name, evaluator.environment, [("gemm:64x64x64:fp32", product())])
        found = verify_pack(saved, here, evaluator, Extent(random=20))
    (kernel,) = found.kernels
    assert not found.failed, kernel.failures
    assert kernel.random == 20 and kernel.tails > 0 and kernel.refused > 0
    outcomes = {t.name: t.outcome for t in kernel.tools}
    assert outcomes["machine code"] == "OK" and (TOOL is None or outcomes["memcheck"] == outcomes["racecheck"] == "OK")
