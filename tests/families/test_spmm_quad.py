"""spmm_quad: the kernels' own text runs on the host (tests/device/emulator) on every mask, and compiles with NVRTC to mma.sync and wgmma
without spills; no GPU is needed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kernelwright.evaluate.verify import compare, expect
from kernelwright.families.family import Config, DeviceFacts, Family
from kernelwright.families.spmm_quad import Streams, Tiles
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Candidate, Workload

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator"), str(Path(__file__).parents[1] / "device")]
import emulate

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
A100 = DeviceFacts(target="cuda:sm_80", sms=108, smem_per_block=163 * 1024)
SMS = 6
"""Of the emulated device: two or more strips a cluster."""


@dataclass(frozen=True)
class Case:
    text: str
    """The Workload that the kernel is made for."""
    config: Config
    others: tuple[str, ...] = ()
    """Shapes N x M x K that the same kernel must serve."""
    family: Family = field(default_factory=Streams)
    device: DeviceFacts = H200

    @property
    def w(self) -> Workload:
        return resolve(self.text)

    @property
    def candidate(self) -> Candidate:
        assert (reason := self.family.illegal(self.config, self.w, self.device)) is None, reason
        return self.family.render(self.config, self.w, self.device)

    @property
    def name(self) -> str:
        return "-".join([self.family.name, str(self.device.sm), self.text, *(f"{k}={v}" for k, v in self.config.items())])


def streams(warps: int, slots: int, cluster: int, packing: str = "at_once") -> Config:
    return {"warps": warps, "slots": slots, "cluster": cluster, "packing": packing}


def tiles(groups: int, slots: int, stages: int) -> Config:
    return {"groups": groups, "slots": slots, "stages": stages}


CASES = [
    Case("spmm:1x160x640", streams(4, 1, 1), ("1x16x128", "8x33x136", "5x272x1288", "0x16x128", "3x16x0")),
    Case("spmm:8x144x1024:bf16", streams(8, 3, 2, "late"), ("1x16x256", "7x400x520")),
    Case("spmm:8x80x777", streams(4, 2, 2), ("3x130x301", "1x1x1", "8x64x129")),  # rows of X that no 16 bytes divide
    Case("spmm:12x96x1152:quad-70", streams(4, 2, 3), ("16x48x264", "9x16x400")),
    Case("spmm:32x64x1024:quad-60", streams(4, 2, 4), ("17x80x520",)),
    Case("spmm:4x64x512:bias", streams(4, 2, 1)),
    Case("spmm:5x64x512:bf16:bias+residual", streams(4, 2, 2)),
    Case("spmm:6x72x512:bias+silu-mul+residual", streams(4, 2, 1)),
    Case("spmm:8x160x640", streams(4, 3, 1), ("5x33x136", "1x272x1288"), device=A100),
    Case("spmm:16x96x777:bf16", streams(4, 2, 1), device=A100),
]


TILED = [
    Case("spmm:16x200x640", tiles(1, 2, 2), ("1x16x128", "9x130x1032"), Tiles()),
    Case("spmm:32x300x520:bf16:bias+residual", tiles(2, 1, 3), family=Tiles()),
    Case("spmm:64x128x1024:quad-70", tiles(2, 3, 2), ("50x400x384", "33x16x128"), Tiles()),
    Case("spmm:100x72x264:bias+silu-mul", tiles(1, 2, 2), family=Tiles()),
]
CASES += TILED


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory):
    emulate.prepare([(c.candidate, c.device.sm) for c in CASES], tmp_path_factory.mktemp("emulated"))


def check(case: Case, w: Workload, kinds: tuple[str, ...], order: int = 1) -> None:
    problem = problem_of(w)
    generator = torch.Generator().manual_seed(order)
    for one in problem.cases(w):
        if one.name not in kinds:
            continue
        inputs = problem.generate(w, one, generator, "cpu")
        spec = problem.tensors(w)[-1]
        y = torch.full(spec.shape, float("nan"), dtype=inputs["x"].dtype)
        before = {name: value.clone() for name, value in inputs.items()}
        emulate.run(case.candidate, inputs | {"y": y}, w.axes, sm=case.device.sm, seed=order, sms=SMS)
        judged = compare(problem, w, expect(problem, w, inputs, exact=one.rung == "exact"), {"y": y})
        assert judged.passed, f"{w.name} {one.name}: {judged.note} {judged.error}"
        assert all(a.equal(inputs[name]) or a.isnan().any() for name, a in before.items())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_it_is_right_on_every_mask(case: Case):
    kinds = tuple(c.name for c in problem_of(case.w).cases(case.w))
    check(case, case.w, kinds)
    for i, shape in enumerate(case.others):
        w = case.w.replace(axes=dict(zip("NMK", map(int, shape.split("x")), strict=True)))
        check(case, w, ("integer", "band", "empty-rows"), order=i + 2)
