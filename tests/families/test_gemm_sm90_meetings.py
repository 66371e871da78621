"""gemm_sm90's Meetings: parts that arrive at any moment, also at one, give one result. The blocks of a cluster are the parts, for those
the emulator runs side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, TensorArg, WorkspaceArg

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator")]
import emulate

HEADER = Path(__file__).parents[2] / "src" / "kernelwright" / "families" / "gemm_sm90" / "workspace_reduce.cuh"
KERNEL = """
extern "C" __global__ void __launch_bounds__(128, 1) meet(const float* a, float* c, float* partials, int* counters) {
    extern __shared__ __align__(16) unsigned char smem[];
    const Meetings<8, 1> meetings{partials, counters, 0, kw::shared_address(smem), 1};
    float sums[8];
    for (int i = 0; i < 8; i++) sums[i] = kw::load_l2_float(a + (blockIdx.x * 128 + threadIdx.x) * 8 + i);
    if (!meetings.climb(sums, 3, blockIdx.x, gridDim.x)) return;
    for (int i = 0; i < 8; i++) kw::store_global_float(c + threadIdx.x * 8 + i, sums[i]);
}
"""
PARTS = (2, 3, 5, 8)
CLEAR = "if (writes) clear(mine);"


def candidate(parts: int, spoilt: bool = False) -> Candidate:
    source = HEADER.read_text("utf-8").replace("#pragma once", "")
    assert source.count(CLEAR) == 1
    launch = Launch(
        kernel="meet",
        args=(TensorArg(name="a"), TensorArg(name="c"), WorkspaceArg(offset=256), WorkspaceArg()),
        grid=(parts, 1, 1),
        block=(128, 1, 1),
        cluster=(parts, 1, 1),
        smem=16,
    )
    plan = LaunchPlan(launches=(launch,), workspace=256 + (3 + parts) * 2 * 4096, workspace_zeroed=True)
    return Candidate(
        kind="cuda", source=(source.replace(CLEAR, "") if spoilt else source) + KERNEL, plan=plan, origin=Origin(kind="script")
    )


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate.prepare([(candidate(2), 90), (candidate(2, spoilt=True), 90)], tmp_path_factory.mktemp("meetings"))


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    """Pairs from the left, the odd one goes through."""
    while len(parts) > 1:
        parts = [torch.stack(parts[i : i + 2]).sum(0) for i in range(0, len(parts), 2)]
    return parts[0]


def meet(made: Candidate, parts: int, seed: int) -> bool:
    """Asserts the sums; whether the workspace was left zeroed."""
    a = torch.randn(parts * 128, 8, generator=torch.Generator().manual_seed(seed))
    c = torch.full((128, 8), float("nan"))
    result = emulate.run(made, {"a": a, "c": c}, {}, sm=90, seed=seed, repeats=3)
    assert torch.equal(c, tree(list(a.view(parts, 128, 8))))
    return not result.workspace.any()


@pytest.mark.parametrize("parts", PARTS)
def test_sums_are_those_of_the_tree(parts: int) -> None:
    assert all(meet(candidate(parts), parts, seed) for seed in range(20))


def test_two_that_arrive_at_one_moment_are_seen() -> None:
    """Both write then, and whoever stays clears both: the rare way through, which the test above must have taken."""
    assert not all(meet(candidate(2, spoilt=True), 2, seed) for seed in range(20))
