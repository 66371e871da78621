"""The emulator must see the faults it is for: each of these kernels is the real one with one line spoilt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernelwright.families import family
from kernelwright.families.family import DeviceFacts
from kernelwright.records import Candidate, Workload

sys.path.insert(0, str(Path(__file__).parent / "emulator"))
import emulate

W = Workload(problem="gemm", axes={"M": 40, "N": 72, "K": 264}, dtype="fp16", layout="nt")
DEVICE = DeviceFacts(target="cuda:sm_80", sms=108, smem_per_block=163 * 1024)
BARRIER = "__syncthreads();                          // and for all"
SPOILT = {
    "wait one group too few": ("kw::cp_async_wait<Config::stages - 2>();  //", "kw::cp_async_wait<Config::stages - 1>();  //"),
    "no barrier in the loop": (BARRIER, "// and for all"),
    "no barrier in the epilogue": ("    __syncthreads();\n    constexpr int all", "    constexpr int all"),
    "k-contiguous fragments from the wrong rows": ("first_m + i * 16 + lane % 16", "first_m + i * 16 + lane % 15"),
    "tail of M not checked": ("pass * rows_per_pass < present ?", "true ?"),
    "tail of M stored": ("if (m >= M) continue;\n        unsigned", "unsigned"),
    "counter not reset": ("if (arrived == split - 1) atomicExch(counter, 0);", ""),
    "only half of a warp multiplies": ("            multiply(accumulators", "            if (lane < 16) multiply(accumulators"),
}


def candidates() -> dict[str, Candidate]:
    f = family("gemm_sm80")
    config = f.from_tile(32, 32, 32, 3, 2, W, DEVICE)
    assert config is not None
    good = f.render(config, W, DEVICE)
    result = {"as it is": good}
    for name, (line, spoilt) in SPOILT.items():
        assert good.source.count(line) == 1, f"{name}: the kernel no longer has that line"
        result[name] = good.replace(source=good.source.replace(line, spoilt))
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Candidate]:
    made = candidates()
    emulate.prepare([(c, 80) for c in made.values()], tmp_path_factory.mktemp("emulator"))
    return made


def right(candidate: Candidate, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-2, 3, shape, generator=generator).half() for shape in ((40, 264), (72, 264)))
    c = torch.full((40, 72), float("nan"), dtype=torch.float16)
    try:
        result = emulate.run(candidate, {"a": a, "b": b, "c": c}, W.axes, seed=seed, repeats=2)
    except AssertionError:
        return False
    return torch.equal(c, (a.double() @ b.double().t()).half()) and not result.workspace.any()


def test_the_kernel_passes(built: dict[str, Candidate]) -> None:
    assert all(right(built["as it is"], seed) for seed in range(3))


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_kernel_is_caught(built: dict[str, Candidate], name: str) -> None:
    assert not all(right(built[name], seed) for seed in range(3))
