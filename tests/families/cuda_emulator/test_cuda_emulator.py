"""The emulator finds what it is there to find."""

from __future__ import annotations

import pytest
import torch

from cuda_emulator import Emulated, EmulatorError, to_host
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, ScalarArg, TensorArg

SPECS = (TensorSpec("x", (64,), "fp32", "in"), TensorSpec("y", (64,), "fp32", "out"))


def emulate(body: str, tmp_path, grid=1) -> torch.Tensor:
    source = (
        'extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {\n'
        f"    const int t = threadIdx.x;\n{body}\n}}\n"
    )
    args = (TensorArg(name="x"), TensorArg(name="y"), ScalarArg(ctype="i32", value="numel_x"))
    plan = LaunchPlan(launches=(Launch(kernel="k", args=args, grid=(grid, 1, 1), block=(64, 1, 1), smem=512),))
    candidate = Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="script"))
    out = Emulated(candidate, {}, tmp_path).run(SPECS, {"x": torch.arange(64.0)}, {})
    assert isinstance(out, dict)
    return out["y"]


def test_shared_memory_and_barriers(tmp_path):
    body = "__shared__ float s[64]; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];"
    assert torch.equal(emulate(body, tmp_path), torch.arange(64.0).flip(0))


def test_dynamic_shared_memory(tmp_path):
    body = "extern __shared__ float s[]; s[t] = x[t]; __syncthreads(); y[t] = s[t ^ 1];"
    assert torch.equal(emulate(body, tmp_path), (torch.arange(64) ^ 1).float())


def test_shuffles_keep_to_their_width(tmp_path):
    body = "y[t] = __shfl_up_sync(0xffffffffu, x[t], 3, 8);"
    expected = torch.tensor([float(t - 3 if t % 8 >= 3 else t) for t in range(64)])
    assert torch.equal(emulate(body, tmp_path), expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("__shared__ float s[64]; s[t] = x[t]; y[t] = s[63 - t];", "a barrier is missing"),
        ("if (t < 32) __syncthreads(); else __syncwarp(0xffffffffu), __shfl_sync(1u << t % 32, x[t], t % 32);", ""),
        ("if (t % 2) y[t] = __shfl_xor_sync(0xffffffffu, x[t], 2);", "has ended"),
        ("if (t < 16) __syncwarp(); else __syncthreads();", "different barriers"),
        ("y[t + 1] = x[t];", "memory outside y"),
        ("const_cast<float*>(x)[t] = 0.0f;", "an input x"),
        ("y[t] = __ldca(reinterpret_cast<const float4*>(x + 4 * (t / 5) + 1)).x;", "misaligned"),
    ],
)
def test_faults_are_found(body, message, tmp_path):
    if not message:
        emulate(body, tmp_path)  # threads of one warp may pass a block's barrier once the other warps have ended
        return
    with pytest.raises(EmulatorError, match=message):
        emulate(body, tmp_path)


def test_an_empty_grid_is_refused(tmp_path):
    with pytest.raises(EmulatorError, match="no GPU launches that"):
        emulate("y[t] = x[t];", tmp_path, grid=0)


def test_unknown_ptx_is_named():
    with pytest.raises(EmulatorError, match=r"wgmma\.fence"):
        to_host('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
