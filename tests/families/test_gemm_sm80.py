"""gemm_sm80: the kernels' own text runs on the host (tests/device/emulator), and compiles with NVRTC; no GPU is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families import family
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80 import seeds as seeds_module
from kernelwright.families.gemm_sm80 import space
from kernelwright.plan import evaluate
from kernelwright.records import Candidate, Workload

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator"), str(Path(__file__).parents[1] / "device")]
import emulate
import nvrtc_helper
import products

FAMILY = family("gemm_sm80")
H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
A100 = DeviceFacts(target="cuda:sm_80", sms=108, smem_per_block=163 * 1024)
LAYOUTS = ("nn", "nt", "tn", "tt")


def gemm(m: int, n: int, k: int, dtype: str = "fp16", layout: str = "nn", accumulate: str = "fp32") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout, accumulate=accumulate)


# ------------------------------------------------------------------------------------------------------------- emulation

TENSOR_CORE: Config = {
    "block_m": 32,
    "block_n": 32,
    "block_k": 32,
    "warps_m": 1,
    "warps_n": 2,
    "warps_k": 1,
    "stages": 3,
    "split_k": 1,
    "reduction": "last-block",
    "raster_group": 0,
    "vector_bytes": 16,
    "tails": "chunk",
    "staged_store": True,
}
SIMT: Config = {
    "block_m": 32,
    "block_n": 64,
    "block_k": 8,
    "thread_m": 4,
    "thread_n": 8,
    "stages": 3,
    "split_k": 1,
    "reduction": "last-block",
    "raster_group": 0,
    "vector_bytes": 16,
}
ANYTHING = {"vector_bytes": 2, "staged_store": False}
"""Right for every shape, leading dimension and alignment."""


@dataclass(frozen=True)
class Case:
    """One config on one Workload, with what differs from the base config."""

    w: Workload
    changes: Config = field(default_factory=dict)
    sm: int = 80
    pad: int = 0
    repeats: int = 1

    @property
    def candidate(self) -> Candidate:
        config = (SIMT if self.w.dtype == "fp32" else TENSOR_CORE) | self.changes
        assert (reason := FAMILY.illegal(config, self.w, H200)) is None, reason
        return FAMILY.render(config, self.w, H200)

    @property
    def name(self) -> str:
        return "-".join([self.w.name, *(f"{k}={v}" for k, v in self.changes.items()), f"sm{self.sm}"])


ONE_KERNEL, TWO_KERNELS = {"split_k": 3, "reduction": "last-block"}, {"split_k": 3, "reduction": "second-kernel"}
GENERAL = {layout: Case(gemm(33, 65, 17, layout=layout), ANYTHING) for layout in LAYOUTS}
GENERAL_SIMT = {layout: Case(gemm(33, 65, 17, "fp32", layout), {"vector_bytes": 4, "split_k": 2}) for layout in LAYOUTS}
CASES = [
    *(Case(gemm(40, 72, 104, layout=layout), sm=sm) for layout, sm in zip(LAYOUTS, (80, 90, 90, 80), strict=True)),
    *GENERAL.values(),
    *GENERAL_SIMT.values(),
    Case(gemm(40, 72, 136, "bf16", "nt"), {"warps_k": 2, "block_k": 64}, pad=8),
    Case(gemm(64, 64, 256, layout="nn"), {"warps_n": 1, "warps_k": 4, "block_k": 128, "stages": 2, "tails": "none"}, sm=90),
    Case(gemm(64, 40, 264, layout="nt"), ONE_KERNEL | {"raster_group": 4}, repeats=3),
    Case(gemm(72, 40, 200, layout="tn"), ONE_KERNEL | {"block_k": 64, "warps_k": 2, "staged_store": False}, repeats=2, sm=90),
    Case(gemm(40, 72, 264, "bf16", "tt"), TWO_KERNELS, repeats=2),
    Case(gemm(33, 35, 97), ANYTHING | TWO_KERNELS),
    Case(gemm(96, 64, 128, layout="tt", accumulate="fp16"), {"block_m": 96, "warps_m": 3, "warps_n": 1, "raster_group": 4}),
    Case(gemm(64, 48, 128, "bf16"), {"block_m": 16, "block_n": 48, "warps_n": 3, "raster_group": 8, "tails": "none", "stages": 6}),
    Case(gemm(37, 45, 101, layout="nt"), {"tails": "any", "staged_store": False}, pad=3),
    Case(gemm(37, 45, 101, layout="tn"), {"tails": "any", "staged_store": False}, pad=3),
    Case(gemm(40, 44, 36, layout="nn"), {"vector_bytes": 8, "staged_store": False}),
    Case(gemm(38, 42, 50, layout="tt"), {"vector_bytes": 4, "staged_store": False, "stages": 2}),
    *(Case(gemm(44, 76, 44, "fp32", layout), {"raster_group": 4}) for layout in LAYOUTS),
    Case(gemm(44, 76, 44, "fp32", "tn"), ONE_KERNEL, repeats=3, pad=4),
    Case(gemm(45, 75, 43, "fp32", "nt"), TWO_KERNELS | {"vector_bytes": 4, "block_k": 16, "stages": 2}),
]


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate.prepare([(case.candidate, case.sm) for case in CASES], tmp_path_factory.mktemp("emulator"))


def check(case: Case, w: Workload, seed: int = 1) -> None:
    result = products.check(case.candidate, w, sm=case.sm, inputs=seed, order=seed, repeats=case.repeats, pad=case.pad, aligned=False)
    assert result.conflicts == 0, "ldmatrix has bank conflicts"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_product_is_exact(case: Case) -> None:
    for seed in (1, 2):  # other inputs, and another order of threads and blocks
        check(case, case.w, seed)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70), st.sampled_from(LAYOUTS), st.booleans(), st.integers(0, 1000))
def test_general_kernels_serve_any_shape(m: int, n: int, k: int, layout: str, simt: bool, seed: int) -> None:
    case = (GENERAL_SIMT if simt else GENERAL)[layout]
    check(case, case.w.replace(axes={"M": m, "N": n, "K": k}), seed)


def test_aligned_kernel_serves_other_aligned_shapes() -> None:
    for shape in ((8, 8, 8), (1, 8, 40), (100, 8, 8), (8, 0, 8), (0, 8, 8), (8, 8, 0)):
        check(CASES[0], gemm(*shape), seed=3)


# ----------------------------------------------------------------------------------------------------------------- choices

SHAPES = st.tuples(*[st.sampled_from((0, 1, 7, 8, 16, 63, 64, 100, 128, 500, 1000, 1024, 4096, 16384))] * 3)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from(("fp16", "bf16", "fp32")), st.sampled_from(LAYOUTS), st.sampled_from((H200, A100)))
def test_seeds_are_legal_and_differ(shape: tuple[int, int, int], dtype: str, layout: str, device: DeviceFacts) -> None:
    w = gemm(*shape, dtype, layout)
    configs = FAMILY.seeds(w, device)
    values = FAMILY.space(w, device)
    assert configs
    assert len({tuple(c.items()) for c in configs}) == len(configs)
    for c in configs:
        assert FAMILY.illegal(c, w, device) is None
        assert all(c[key] in values[key] for key in values)
        plan = FAMILY.render(c, w, device).plan
        assert plan is not None
        names = w.axes | {"sms": device.sms}
        for launch in plan.launches:
            assert all(evaluate(g, names) >= 1 for g in launch.grid)
            assert evaluate(launch.smem, names) <= device.smem_per_block


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from((8, 64, 100, 128, 256, 320)), st.sampled_from((8, 64, 128, 256)), st.integers(1, 9), st.integers(1, 40))
def test_from_tile_finds_a_legal_neighbour(shape: tuple[int, int, int], bm: int, bn: int, stages: int, split: int) -> None:
    for dtype in ("fp16", "fp32"):
        w = gemm(*shape, dtype)
        c = FAMILY.from_tile(bm, bn, 64, stages, split, w, A100)
        if c is not None:
            assert FAMILY.illegal(c, w, A100) is None
    assert FAMILY.from_tile(128, 128, 64, 3, 1, gemm(4096, 4096, 4096), H200) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_m": 256, "block_n": 256, "warps_m": 8, "warps_n": 4, "block_k": 128}, "KB of shared memory"),
        ({"block_m": 256, "block_n": 256, "warps_m": 2, "warps_n": 2}, "registers"),
        ({"warps_m": 4}, "multiple of 16 x 16"),
        ({"warps_k": 4}, "two 16-wide slices"),
        ({"block_m": 96, "block_n": 96, "warps_n": 2, "warps_m": 2}, "do not divide"),
        ({"split_k": 32}, "fewer than 32 steps"),
        ({"tails": "none", "block_m": 96}, "multiple"),
        ({"stages": 99}, "is not among"),
        ({"flavour": 3}, "not a choice"),
    ],
)
def test_illegal_configs_get_a_reason(changes: Config, words: str) -> None:
    reason = FAMILY.illegal(TENSOR_CORE | changes, gemm(512, 512, 512), H200)
    assert reason is not None and words in reason


def test_shared_memory_and_dependent_launch_follow_the_device() -> None:
    w = gemm(512, 512, 512)
    split = TENSOR_CORE | {"split_k": 2, "reduction": "second-kernel"}
    assert [launch.pdl for launch in FAMILY.render(split, w, H200).plan.launches] == [True, True]
    assert [launch.pdl for launch in FAMILY.render(split, w, A100).plan.launches] == [False, False]
    large = TENSOR_CORE | {"block_m": 128, "block_n": 128, "block_k": 64, "warps_m": 2, "warps_n": 2, "stages": 6}
    assert FAMILY.illegal(large, w, H200) is None
    assert "the device has 163" in (FAMILY.illegal(large, w, A100) or "")


@pytest.mark.parametrize(
    ("w", "device", "words"),
    [
        (gemm(8, 8, 8), DeviceFacts(target="cpu"), "sm_80"),
        (gemm(8, 8, 8), DeviceFacts(target="cuda:sm_75"), "sm_80"),
        (gemm(8, 8, 8, "bf16", accumulate="fp16"), H200, "accumulates bf16 in fp32"),
        (gemm(8, 8, 8, "int32"), H200, "not int32"),
        (Workload(problem="chain:softmax", axes={"rows": 8}), H200, "matrices only"),
    ],
)
def test_refusals_say_why(w: Workload, device: DeviceFacts, words: str) -> None:
    assert words in (FAMILY.refuses(w, device) or "")


def test_unaligned_rows_get_narrow_copies() -> None:
    assert space.widest_vector(gemm(8, 8, 8)) == 16
    assert space.widest_vector(gemm(8, 8, 12)) == 8
    assert space.widest_vector(gemm(8, 6, 8)) == 4
    assert space.widest_vector(gemm(8, 8, 7)) == 2
    assert space.widest_vector(gemm(7, 8, 8, layout="nn")) == 16  # M is no row of an operand
    assert FAMILY.render(CASES[4].candidate.origin.config, CASES[4].w, H200).plan.requires == ("cdiv(N, 32) <= 65535",)


# --------------------------------------------------------------------------------------------------------------- compiling


def compiled(candidate: Candidate, arch: str) -> nvrtc_helper.Compiled:
    result = nvrtc_helper.compile(candidate.source, arch)
    assert 0 < result.registers["gemm"] <= 255
    assert result.spills == 0, f"{candidate.origin.config} spills on {arch}"
    return result


@pytest.mark.parametrize(
    ("w", "device"),
    [
        (gemm(64, 64, 64), H200),
        (gemm(4096, 4096, 4096, "bf16", "nt"), H200),
        (gemm(256, 256, 8192, layout="tn"), A100),
        (gemm(16, 4096, 4096, layout="tt"), H200),
        (gemm(1023, 1023, 1023), A100),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_best_seed_compiles_to_tensor_core_code(w: Workload, device: DeviceFacts) -> None:
    candidate = FAMILY.render(FAMILY.seeds(w, device)[0], w, device)
    sass = nvrtc_helper.disassemble(compiled(candidate, device.target.removeprefix("cuda:")).cubin)
    assert f"HMMA.16816.F32{'.BF16' if w.dtype == 'bf16' else ''}" in sass
    assert "LDSM.16" in sass
    assert ("LDGSTS" in sass) == (candidate.origin.config["vector_bytes"] != 2)
    assert not re.search(r"\b(LDL|STL)\b", sass), "local memory"


def test_fp32_uses_real_fp32() -> None:
    w = gemm(1024, 1024, 1024, "fp32", "nt")
    sass = nvrtc_helper.disassemble(compiled(FAMILY.render(FAMILY.seeds(w, H200)[0], w, H200), "sm_90").cubin)
    assert "FFMA" in sass and "HMMA" not in sass


def test_fp16_accumulation_only_on_request() -> None:
    asked = gemm(256, 256, 256, accumulate="fp16")
    sass = nvrtc_helper.disassemble(compiled(FAMILY.render(FAMILY.seeds(asked, H200)[0], asked, H200), "sm_90").cubin)
    assert "HMMA.16816.F16" in sass and "HMMA.16816.F32" not in sass


@pytest.mark.slow
@pytest.mark.parametrize("tile", seeds_module.TILES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_menu_compiles_without_spills(tile: tuple[int, int, int, int, int], layout: str) -> None:
    w = gemm(4096, 4096, 4096, layout=layout)
    device = (H200, A100)[(seeds_module.TILES.index(tile) + LAYOUTS.index(layout)) % 2]  # each tile and layout meets both
    for tails in ("chunk", "none"):
        c = seeds_module.tensor_core(tile[0], tile[1], 64, tile[2:], 3, 2, w, device) | {"tails": tails}
        if FAMILY.illegal(c, w, device) is None:
            compiled(FAMILY.render(c, w, device), device.target.removeprefix("cuda:"))


def test_nothing_imports_torch_for_the_space() -> None:
    code = "import sys; from kernelwright.families.gemm_sm80 import GemmSm80; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
