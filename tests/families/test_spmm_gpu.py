"""Products with compressed weights on a GPU: every kernel that the emulator runs (test_spmm.py), the kernels that are tried first for real
layers, random shapes, every number of activation rows; integers exactly, guard bands untouched, the same bits each time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from test_spmm import ANY, CASES, LAYERED, TILED, UNPACKED, Case, layers, streams, tiles

from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.verify import compare, expect
from kernelwright.families.spmm import Streams, ThreeLayer, Tiles, Unpack
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Build, Candidate, Workload
from kernelwright.targets import usable
from kernelwright.targets.target import Bound, Contender

pytestmark = pytest.mark.gpu
FAMILIES = {"quad": (Streams(), Tiles()), "three": (ThreeLayer(),)}
LARGE = (
    "1x4096x4096",
    "8x5120x5120:bf16",
    "16x11008x4096",
    "32x4096x11008:bf16",
    "64x13824x5120",
    "128x4096x4096",
    "8x22016x4096:quad-50:swiglu",
    "32x28672x8192:quad-60",
    "1x4096x4096:three-50",
    "16x5120x5120:bf16:three-50",
    "32x11008x4096:three-50",
)
RANDOM = (
    Case("spmm:8x64x512", streams(16, 3, 2)),
    Case("spmm:8x64x512:bf16", streams(32, 2, 4, "late")),
    Case("spmm:8x64x513", streams(8, 4, 1)),
    Case("spmm:32x64x512:quad-70", streams(8, 2, 2, tiles=4)),
    Case("spmm:32x64x512", tiles(4, 3, 4), family=Tiles()),
    Case("spmm:128x64x512:bf16", tiles(2, 2, 2), family=Tiles()),
    Case("spmm:64x64x512", tiles(5, 2, 2), family=Tiles()),
    Case("spmm:8x64x512:three-50", layers(8, 3, 2), family=ThreeLayer()),
    Case("spmm:8x64x512:bf16:three-40", layers(12, 2, 1), family=ThreeLayer()),
)
GUARD = 1024
"""Elements before and after an output."""


class Gpu:
    """The device, and kernels compiled in a pool."""

    def __init__(self) -> None:
        self.target = usable("cuda")
        self.facts, self.device = self.target.facts(), self.target.open()
        self.builder = Builder(self.target)

    def load(self, candidate: Candidate, w: Workload, *sets: Bound) -> Contender:
        ((_, build),) = self.builder.builds([candidate])
        assert isinstance(build, Build), build
        return self.device.load(candidate, build, w, sets)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory) -> Iterator[Gpu]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        opened = Gpu()
        with opened.builder:
            opened.builder.want([c.candidate for c in (*CASES, *ANY, *RANDOM)])
            yield opened


class Guarded:
    """A Workload's inputs on the GPU, and its output between guard bands, poisoned."""

    def __init__(self, gpu: Gpu, w: Workload, case: str, seed: int):
        self.w, self.problem = w, problem_of(w)
        self.case = next(c for c in self.problem.cases(w) if c.name == case)
        self.inputs = self.problem.generate(w, self.case, torch.Generator("cuda").manual_seed(seed), "cuda")
        spec = self.problem.tensors(w)[-1]
        self.flat = torch.full((spec.numel + 2 * GUARD,), float("nan"), dtype=TORCH_DTYPES[spec.dtype], device="cuda")
        self.y, self.name = self.flat[GUARD : GUARD + spec.numel].view(spec.shape), spec.name
        self.bound = Bound(tensors=self.inputs | {spec.name: self.y}, names=dict(self.problem.names(w, gpu.facts.sms)))

    def check(self) -> None:
        exact = self.case.rung == "exact"
        of_inputs, pick = self.problem.sample_rows(self.w, {self.name: self.y})
        part = pick({self.name: self.y})
        rows = self.problem.rows_workload(self.w, part)
        judged = compare(self.problem, rows, expect(self.problem, rows, of_inputs(dict(self.inputs)), exact=exact), part)
        assert judged.passed, f"{self.w.name} {self.case.name}: {judged.note} {judged.error}"
        assert self.flat[:GUARD].isnan().all() and self.flat[-GUARD:].isnan().all(), f"{self.w.name}: it wrote beyond y"


def ran(gpu: Gpu, candidate: Candidate, w: Workload, case: str, seed: int = 1) -> Contender:
    guarded = Guarded(gpu, w, case, seed)
    contender = gpu.load(candidate, w, guarded.bound)
    contender.run(0)
    guarded.check()
    assert contender.disturbed() is None
    return contender


def sized(w: Workload, *sizes: int) -> Workload:
    return w.replace(axes=dict(zip(w.axes, sizes, strict=True)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_it_is_right_on_every_mask(gpu: Gpu, case: Case):
    """Those of sm_80 too, whose code an H200 runs as well."""
    for kind in problem_of(case.w).cases(case.w):
        ran(gpu, case.candidate, case.w, kind.name).close()
    for i, shape in enumerate(case.others):
        w = sized(case.w, *map(int, shape.split("x")))
        for kind in [k for k in problem_of(w).cases(w) if k.name in ("integer", "band", "banded", "empty-rows")]:
            ran(gpu, case.candidate, w, kind.name, i + 2).close()


@pytest.mark.parametrize("text", LARGE)
def test_what_is_tried_first_is_right_on_real_layers(gpu: Gpu, text: str):
    w = resolve(f"spmm:{text}")
    able = [f for f in FAMILIES[w.layout.partition("-")[0]] if f.refuses(w, gpu.facts) is None]
    candidates = [f.render(c, w, gpu.facts) for f in able for c in f.seeds(w, gpu.facts)[:4]]
    gpu.builder.want(candidates)
    for candidate in candidates:
        for kind in ("integer", "normal", "banded") if "swiglu" not in w.epilogue else ("normal", "band"):
            ran(gpu, candidate, w, kind).close()


@pytest.mark.parametrize("case", RANDOM, ids=lambda c: c.name)
def test_random_shapes(gpu: Gpu, case: Case):
    rng = random.Random(case.name)
    most = case.w.axes["N"] if isinstance(case.family, Tiles) else 70
    for i in range(30 if not isinstance(case.family, ThreeLayer) else 12):  # packing three layers takes a tenth of a second
        k = rng.randint(1, 500) * 8 if case.w.axes["K"] % 8 == 0 else rng.randint(1, 3000)
        w = sized(case.w, rng.randint(1, most), rng.randint(1, 3000), k)
        ran(gpu, case.candidate, w, rng.choice(("integer", "rows", "banded", "empty-rows")), i).close()


@pytest.mark.parametrize("case", [*ANY, RANDOM[5]], ids=lambda c: c.name)
def test_any_number_of_rows_of_x(gpu: Gpu, case: Case):
    for n in (*range(1, 35), 40, 47, 48, 49, 63, 64, 65, 80, 95, 96, 97, 112, 127, 128, *([] if isinstance(case.family, Tiles) else [129])):
        ran(gpu, case.candidate, case.w.replace(axes={**case.w.axes, "N": n}), "integer", n).close()


@pytest.mark.parametrize("case", [RANDOM[0], RANDOM[4], RANDOM[6]], ids=lambda c: c.family.name)
def test_the_same_bits_each_time_and_behind_a_writer(gpu: Gpu, case: Case):
    w = sized(case.w, 8, 5120, 4096)
    guarded = Guarded(gpu, w, "normal", 1)
    contender = gpu.load(case.candidate, w, guarded.bound)
    contender.run(0)
    first = guarded.y.clone().view(torch.int16)
    for turn in range(50):
        guarded.y.fill_(float("nan"))
        contender.run(0)
        assert torch.equal(guarded.y.view(torch.int16), first), f"run {turn} gave other bits"
    assert contender.dependent
    contender.run_dependent({name: t.clone() for name, t in guarded.inputs.items()})
    assert torch.equal(guarded.y.view(torch.int16), first)
    assert contender.sample("device-chain", 8)[0] > 0 and contender.sample("device-cold", 8)[0] > 0
    assert torch.equal(guarded.y.view(torch.int16), first)
    guarded.check()
    contender.close()


def test_unpacking_gives_every_bit_of_a_large_weight(gpu: Gpu):
    w = resolve("unpack:11008x4096:bf16:quad-50")
    for config in Unpack().seeds(w, gpu.facts)[:4]:
        for kind in ("rows", "banded", "nan"):
            ran(gpu, Unpack().render(config, w, gpu.facts), w, kind).close()


def test_the_cases_are_those_of_the_emulator():
    assert {c.family.name for c in CASES} == {f.name for f in (Streams(), Tiles(), ThreeLayer(), Unpack())}
    assert set(TILED + UNPACKED + LAYERED) <= set(CASES)
