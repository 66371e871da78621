"""Products with compressed weights: the kernels' own text runs on the host (tests/device/emulator) on every mask, and compiles with NVRTC
to mma.sync, mma.sp and wgmma without spills; no GPU is needed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kernelwright.evaluate.verify import compare, expect
from kernelwright.families.family import Config, DeviceFacts, Family
from kernelwright.families.spmm import Streams, ThreeLayer, Tiles, Unpack
from kernelwright.families.spmm.streams import mean
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Candidate, Workload
from kernelwright.targets import nvrtc, sass

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


def streams(warps: int, slots: int, cluster: int, packing: str = "at_once", tiles: int = 1, prefetch: int = 0) -> Config:
    return {"warps": warps, "slots": slots, "cluster": cluster, "packing": packing, "tiles": tiles, "prefetch": prefetch}


def tiles(groups: int, slots: int, stages: int) -> Config:
    return {"groups": groups, "slots": slots, "stages": stages}


def layers(warps: int, slots: int, cluster: int, tiles: int = 1) -> Config:
    return {"warps": warps, "slots": slots, "cluster": cluster, "tiles": tiles}


CASES = [
    Case("spmm:1x160x640", streams(4, 1, 1), ("1x16x128", "8x33x136", "5x272x1288", "0x16x128", "3x16x0")),
    Case("spmm:8x144x1024:bf16", streams(8, 3, 2, "late", prefetch=1), ("1x16x256", "7x400x520")),
    Case("spmm:8x80x777", streams(4, 2, 2, prefetch=1), ("3x130x301", "1x1x1", "8x64x129")),  # rows of X that no 16 bytes divide
    Case("spmm:12x96x1152:quad-70", streams(4, 2, 3, tiles=2), ("16x48x264", "9x16x400")),
    Case("spmm:32x64x1024:quad-60", streams(4, 2, 4, tiles=4), ("17x80x520", "70x24x136")),
    Case("spmm:4x64x512:bias", streams(4, 2, 1)),
    Case("spmm:5x64x512:bf16:bias+residual", streams(4, 2, 2)),
    Case("spmm:6x72x512:bias+silu-mul+residual", streams(4, 2, 1)),
    Case("spmm:3x160x512:bias+swiglu+residual", streams(4, 2, 2), ("9x32x136", "1x256x520")),
    Case("spmm:8x160x640", streams(4, 3, 1), ("5x33x136", "1x272x1288"), device=A100),
    Case("spmm:16x96x777:bf16:bias+silu-mul+residual", streams(4, 2, 1), device=A100),
]


TILED = [
    Case("spmm:16x200x640", tiles(1, 2, 2), ("1x16x128", "9x130x1032"), Tiles()),
    Case("spmm:32x300x520:bf16:bias+residual", tiles(2, 1, 3), family=Tiles()),
    Case("spmm:8x700x264", tiles(6, 2, 2), ("5x48x1160",), Tiles()),
    Case("spmm:64x128x1024:quad-70", tiles(2, 3, 2), ("50x400x384", "33x16x128"), Tiles()),
    Case("spmm:100x72x264:bias+silu-mul", tiles(1, 2, 2), family=Tiles()),
    Case("spmm:20x160x264:bias+swiglu+residual", tiles(1, 2, 2), ("9x32x1032",), Tiles()),
]
UNPACKED = [
    Case("unpack:80x640", {"warps": 4, "blocks": 1, "packing": "late"}, ("16x128", "33x136"), Unpack()),
    Case("unpack:72x777:bf16:quad-70", {"warps": 4, "blocks": 2, "packing": "at_once"}, ("1x1", "130x301"), Unpack(), A100),
]
LAYERED = [
    Case("spmm:8x48x1024:three-50", layers(4, 2, 2), ("8x130x520", "0x16x256", "3x16x0"), ThreeLayer()),
    Case("spmm:20x24x520:bf16:three-60:bias", layers(4, 1, 3, 4), family=ThreeLayer()),
    Case("spmm:2x96x264:bf16:three-50:swiglu", layers(4, 2, 1), family=ThreeLayer()),
    Case("spmm:8x16x301:three-40:bias+silu-mul+residual", layers(4, 2, 1), ("1x1x1",), ThreeLayer(), A100),
]
CASES += TILED + UNPACKED + LAYERED


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory):
    emulate.prepare([(c.candidate, c.device.sm) for c in (*CASES, *ANY)], tmp_path_factory.mktemp("emulated"))


def check(case: Case, w: Workload, kinds: tuple[str, ...], order: int = 1) -> None:
    problem = problem_of(w)
    generator = torch.Generator().manual_seed(order)
    for one in problem.cases(w):
        if one.name not in kinds:
            continue
        inputs = problem.generate(w, one, generator, "cpu")
        spec = problem.tensors(w)[-1]
        y = torch.full(spec.shape, float("nan"), dtype=TORCH_DTYPES[spec.dtype])
        before = {name: value.clone() for name, value in inputs.items()}
        emulate.run(case.candidate, inputs | {spec.name: y}, w.axes, sm=case.device.sm, seed=order, sms=SMS)
        judged = compare(problem, w, expect(problem, w, inputs, exact=one.rung == "exact"), {spec.name: y})
        assert judged.passed, f"{w.name} {one.name}: {judged.note} {judged.error}"
        assert all(a.equal(inputs[name]) or a.isnan().any() for name, a in before.items())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_it_is_right_on_every_mask(case: Case):
    kinds = tuple(c.name for c in problem_of(case.w).cases(case.w))
    check(case, case.w, kinds)
    for i, shape in enumerate(case.others):
        w = case.w.replace(axes=dict(zip(case.w.axes, map(int, shape.split("x")), strict=True)))
        check(case, w, ("integer", "band", "empty-rows"), order=i + 2)


ANY = [Case("spmm:32x24x256", streams(4, 1, 2, tiles=4)), Case("spmm:8x16x256:three-50", layers(4, 1, 1), family=ThreeLayer())]


@pytest.mark.parametrize("case", ANY, ids=lambda c: c.family.name)
def test_any_number_of_rows_of_x(case: Case):
    for n in (*range(1, 18), 31, 33, 40, 63, 65, 127, 128, 129):
        check(case, case.w.replace(axes={**case.w.axes, "N": n}), ("integer",), order=n)


@pytest.mark.parametrize("case", [*ANY, TILED[0]], ids=lambda c: c.family.name)
def test_the_same_bits_in_any_order_of_threads(case: Case):
    problem = problem_of(case.w)
    normal = next(c for c in problem.cases(case.w) if c.name == "normal")
    inputs = problem.generate(case.w, normal, torch.Generator().manual_seed(0), "cpu")
    found = []
    for seed in (1, 2, 3):
        y = torch.empty(problem.tensors(case.w)[-1].shape, dtype=TORCH_DTYPES[case.w.dtype])
        emulate.run(case.candidate, inputs | {"y": y}, case.w.axes, sm=case.device.sm, seed=seed, sms=SMS)
        found.append(y.view(torch.int16))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("text", ["spmm:1x512x4096", "spmm:1x256x5120:quad-60", "spmm:1x256x4096:quad-70"])
def test_records_lie_where_the_prefetch_expects_them(text: str):
    """Of masks with as many zeros in each row, as pruning leaves them: all of a record but its ends, in the mean."""
    w = resolve(text)
    problem = problem_of(w)
    normal = next(c for c in problem.cases(w) if c.name == "normal")
    offsets = problem.generate(w, normal, torch.Generator().manual_seed(0), "cpu")["offsets"].double() * 16
    guess = torch.arange(len(offsets)) * mean(w)
    assert float((guess - offsets).abs().mean()) < 300 and float(offsets[-1] / guess[-1]) == pytest.approx(1, abs=0.002)


# ----------------------------------------------------------------------------------------------------------------- space


SHAPES = (
    "1x4096x4096:three-50",
    "32x8192x28672:three-70",
    "1x4096x4096",
    "8x28672x8192",
    "16x5120x5120",
    "32x8192x28672",
    "64x11008x4096",
    "100x4096x4096",
    "3x100x1000:bf16:bias",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_seeds_are_legal_distinct_and_render(shape: str):
    w = resolve(f"spmm:{shape}")
    able = [family for family in (Streams(), Tiles(), ThreeLayer()) if family.refuses(w, H200) is None]
    assert able and any(family.seeds(w, H200) for family in able)
    for family in able:
        seeds = family.seeds(w, H200)
        assert len({str(c) for c in seeds}) == len(seeds)
        for config in seeds:
            plan = family.render(config, w, H200).plan
            assert plan is not None and family.illegal(config, w, H200) is None


def test_dependent_launches_and_clusters_are_hopper_s():
    for case in CASES:
        plan = case.candidate.plan
        assert plan is not None and all(launch.pdl == (case.device is H200) for launch in plan.launches)
        assert case.device is H200 or all(launch.cluster == (1, 1, 1) for launch in plan.launches)


@pytest.mark.parametrize(
    ("text", "device", "family", "words"),
    [
        ("gemm:64x64x64", H200, Streams(), "quad-bitmap"),
        ("spmm:8x64x64:three-50", H200, Streams(), "layout quad"),
        ("spmm:8x64x64", H200, ThreeLayer(), "three-layer"),
        ("spmm:129x64x64", H200, Tiles(), "up to 128 rows"),
        ("spmm:16x64x65", H200, Tiles(), "16 bytes"),
        ("spmm:16x64x64", A100, Tiles(), "sm_90"),
        ("spmm:16x64x64", DeviceFacts(target="cuda:sm_100", sms=148), Tiles(), "sm_90"),
        ("spmm:16x64x64", DeviceFacts(target="cuda:sm_75", sms=40), Streams(), "sm_80"),
    ],
)
def test_what_it_refuses(text: str, device: DeviceFacts, family: Family, words: str):
    assert words in (family.refuses(resolve(text), device) or "")


@pytest.mark.parametrize(
    ("text", "family", "config", "words"),
    [
        ("spmm:8x4096x4096", Streams(), streams(16, 5, 2), "not among"),
        ("spmm:32x4096x4096", Streams(), streams(32, 1, 1, tiles=4), "registers"),
        ("spmm:8x4096x4096", Streams(), streams(8, 1, 1, tiles=2), "fewer than 2 tiles"),
        ("spmm:8x4096x28672", Streams(), streams(16, 3, 1), "shared memory"),
        ("spmm:8x4096x128", Streams(), streams(4, 1, 2), "fewer than 2 records"),
        ("spmm:8x4096x200:three-50", ThreeLayer(), layers(4, 1, 2), "fewer than 2 records"),
        ("spmm:8x4096x4096:three-50", ThreeLayer(), layers(16, 2, 2), "shared memory"),
        ("spmm:128x4096x4096", Tiles(), tiles(4, 1, 2), "registers"),
        ("spmm:64x4096x4096", Tiles(), tiles(4, 6, 4), "shared memory"),
    ],
)
def test_a_bad_config_is_told_what_is_wrong(text: str, family: Family, config: Config, words: str):
    assert words in (family.illegal(config, resolve(text), H200) or "")


# -------------------------------------------------------------------------------------------------------------- compiler


COMPILED = [
    *(("spmm:1x4096x4096", Streams(), streams(warps, 2, 2, packing), H200) for warps in (16, 32) for packing in ("at_once", "late")),
    ("spmm:16x4096x4096:bf16:bias", Streams(), streams(24, 1, 4, tiles=2), H200),
    ("spmm:32x4096x4096", Streams(), streams(16, 2, 8, tiles=4), H200),
    ("spmm:8x4096x4096", Streams(), streams(24, 2, 2, prefetch=1), H200),
    ("spmm:8x4096x4096", Streams(), streams(8, 3, 1), A100),
    ("spmm:16x4096x4096", Tiles(), tiles(4, 3, 4), H200),
    ("spmm:32x4096x4096", Tiles(), tiles(6, 2, 2), H200),
    ("spmm:48x4096x4096", Tiles(), tiles(6, 1, 2), H200),
    ("spmm:64x4096x4096:bf16", Tiles(), tiles(5, 2, 2), H200),
    ("spmm:64x4096x4096:bf16:bias+silu-mul+residual", Tiles(), tiles(4, 2, 2), H200),
    ("spmm:128x4096x4096", Tiles(), tiles(3, 2, 2), H200),
    ("spmm:8x4096x4096:three-50", ThreeLayer(), layers(10, 2, 2), H200),
    ("spmm:32x4096x4096:bf16:three-50:bias", ThreeLayer(), layers(8, 2, 8, 4), H200),
    ("spmm:16x4096x2048:three-50", ThreeLayer(), layers(4, 2, 1, 2), A100),
]


@pytest.mark.parametrize(("text", "family", "config", "device"), COMPILED, ids=lambda x: getattr(x, "name", None) or str(x))
def test_it_compiles_to_matrix_instructions_without_spills(tmp_path, text: str, family: Family, config: Config, device: DeviceFacts):
    pytest.importorskip("cuda.bindings.nvrtc")
    w = resolve(text)
    assert family.illegal(config, w, device) is None
    cubin, log = nvrtc.compile_cubin(family.render(config, w, device).source, nvrtc.architecture(device.sm))
    resources, words = nvrtc.parse_resources(log)
    assert "wgmma" not in words, "ptxas serialises it"
    assert all(not r.spill_stores and not r.spill_loads and not r.stack for r in resources.values())
    place = tmp_path / "kernel.cubin"
    place.write_bytes(cubin)
    found = sass.sass_mix(place)
    assert found.get("HGMMA" if isinstance(family, Tiles) else "HMMA", 0) >= 16 and not found.get("LDL")
    if isinstance(family, ThreeLayer):
        # of each of a record's 8 k-steps the slots and the overflow; and of each of 4 fillers at a time where it is and where it goes
        assert found["HMMA"] == 16 * int(config["tiles"]) and found["IDP"] == 8
    else:
        # one population count and one R2P for each of the 16 quads that a lane has in a record, in both loops
        assert found["POPC"] == found["R2P"] == 32 and found["IDP"] == 16
    assert ("UBLKCP" in found) == (device is H200), "records come in bulk"
    assert ("UBLKPF" in found) == bool(config.get("prefetch"))
