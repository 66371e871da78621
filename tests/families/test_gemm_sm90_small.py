"""gemm_sm90's schemes for small shapes, whole_k and tiny: their own text runs on the host (tests/device/emulator), and compiles with NVRTC
to wgmma and mma.sync without spills; no GPU is needed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90 import render, tiny, whole_k
from kernelwright.families.gemm_sm90.family import Tiny, WholeK
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.targets import nvrtc

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator"), str(Path(__file__).parents[1] / "device")]
import emulate
import nvrtc_helper
import products

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
LAYOUTS = ("nn", "nt", "tn", "tt")

WHOLE_K: Config = {
    "load": "cp_async",
    "swap": False,
    "block_p": 64,
    "block_q": 16,
    "block_k": 64,
    "split_k": 1,
}
TINY: Config = {
    "block_p": 16,
    "block_q": 16,
    "block_k": 32,
    "warps_p": 1,
    "warps_k": 1,
}


def gemm(m: int, n: int, k: int, layout: str = "nt", dtype: str = "fp16") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


@dataclass(frozen=True)
class Case:
    """One config on one Workload, with what differs from the base config of its scheme."""

    w: Workload
    changes: Config = field(default_factory=dict)
    scheme: ModuleType = whole_k

    @property
    def config(self) -> Config:
        return (TINY if self.scheme is tiny else WHOLE_K) | self.changes

    @property
    def candidate(self) -> Candidate:
        assert (reason := self.scheme.illegal(self.config, self.w, H200)) is None, reason
        return render.render(self.scheme, self.config, self.w, H200, Origin(kind="family", config=dict(self.config)))

    @property
    def name(self) -> str:
        return "-".join([self.scheme.__name__.rpartition(".")[2], self.w.name, *(f"{k}={v}" for k, v in self.changes.items())])


# ------------------------------------------------------------------------------------------------------------- emulation

LOADS = ("cp_async", "tma")
TILES = ((16, 8), (16, 16), (16, 32), (32, 8), (32, 32), (64, 16), (64, 32))
GENERAL = [
    Case(gemm(130, 77, 250, layout), {"load": load, "swap": swap, "split_k": split})
    for layout, swap, load, split in (
        *((layout, False, "cp_async", 1) for layout in LAYOUTS),
        *((layout, True, "cp_async", 2) for layout in LAYOUTS),
        *((layout, True, "tma", 1) for layout in LAYOUTS),
        *((layout, False, "tma", 2) for layout in LAYOUTS),
    )
]
"""Right for every M, N and every K up to 256: their Workload has tails everywhere, so they check everything."""
SPLIT: Config = {"block_p": 32, "warps_p": 2, "block_k": 64, "warps_k": 4}
DIRECT: tuple[Config, ...] = ({"block_q": 32, "block_k": 128}, {"block_p": 64, "warps_p": 2, "block_q": 8}, {"block_p": 64, "block_q": 64})
GENERAL_TINY = [
    Case(gemm(40, 45 if layout[1] == "t" else 48, 250 if layout == "tn" else 248, layout), changes, tiny)
    for layout in LAYOUTS
    for changes in (*DIRECT, SPLIT)
]
"""Right for every K up to 250 or so."""

CASES = [
    # whole tiles, where nothing is checked
    *(Case(gemm(64, 64, 64, layout), {"swap": swap}) for layout in LAYOUTS for swap in (False, True)),
    *(Case(gemm(64, 64, 128, layout), {"load": "tma", "swap": True}) for layout in LAYOUTS),
    # widths of Q: every swizzle of its tile, and several chunks
    *(Case(gemm(64, 2 * q, 128, "nt"), {"block_q": q, "block_k": 128}) for q in (8, 32, 48, 64, 96, 128)),
    *(Case(gemm(72, q + 8, 72, "nn"), {"block_q": q}) for q in (16, 32, 48, 64, 96, 128)),
    *(Case(gemm(q + 8, 72, 136, "tn"), {"block_q": q, "block_k": 128, "swap": True, "load": "tma"}) for q in (32, 48, 64)),
    # two warpgroups
    *(Case(gemm(136, 136, 136, layout), {"block_p": 128, "block_q": 32, "load": load}) for layout in ("nt", "tn") for load in LOADS),
    Case(gemm(8, 200, 64, "nt"), {"block_p": 128, "block_q": 8, "block_k": 64, "swap": True}),
    Case(gemm(128, 96, 128, "tn"), {"block_p": 128, "block_q": 48, "swap": True, "split_k": 2}),
    # the parts of a cluster: even, uneven, and more of them than units of sums
    *(Case(gemm(64, 32, 64 * s, "nt"), {"split_k": s, "swap": s % 8 == 0}) for s in (2, 4, 8, 16)),
    *(Case(gemm(72, 40, 64 * 7 + 8, layout, "bf16"), {"split_k": 8, "block_q": 32}) for layout in LAYOUTS),
    Case(gemm(64, 8, 1024, "nt"), {"split_k": 16, "block_q": 8}),
    Case(gemm(70, 50, 500, "tn"), {"split_k": 3, "block_q": 48, "swap": True}),
    Case(gemm(128, 128, 380, "nn"), {"split_k": 6, "block_p": 128, "block_q": 128, "load": "tma"}),
    *(Case(gemm(72, 24, 500, layout), {"block_k": 256, "load": load}) for layout in ("nt", "tn") for load in LOADS),
    Case(gemm(128, 64, 1000, "tt", "bf16"), {"split_k": 4, "block_p": 128, "block_q": 64, "load": "tma", "swap": True}),
    # programmatic dependent launch, bf16, odd extents
    Case(gemm(65, 17, 65, "nn", "bf16")),
    Case(gemm(65, 17, 65, "tt", "bf16"), {"load": "tma", "split_k": 2}),
    # tiny: every width of loads and stores, one warp and many, whole tiles and tails
    *(Case(gemm(64, 64, 64, layout), {"block_p": p, "block_q": q, "block_k": 64}, tiny) for layout in LAYOUTS for p, q in TILES),
    *(Case(gemm(64, 64, 64, layout, "bf16"), {"block_p": 64, "block_q": 32, "warps_p": 4}, tiny) for layout in LAYOUTS),
    *(Case(gemm(40, 24, 136, layout), {"block_p": 32, "block_q": 8, "warps_k": 2}, tiny) for layout in LAYOUTS),
    *(Case(gemm(64, 64, 1024, layout), {"block_p": 64, "block_q": q, "warps_p": 2, "warps_k": 4, "block_k": 64}, tiny)
      for layout, q in zip(LAYOUTS, (8, 16, 32, 64), strict=True)),
    Case(gemm(64, 64, 512), {"block_p": 64, "warps_k": 16}, tiny),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate.prepare([(case.candidate, 90) for case in (*CASES, *GENERAL, *GENERAL_TINY)], tmp_path_factory.mktemp("emulator"))


def check(case: Case, w: Workload, inputs: int, order: int) -> None:
    products.check(case.candidate, w, sm=90, inputs=inputs, order=order)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_product_is_exact(case: Case) -> None:
    check(case, case.w, inputs=1, order=1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 256), st.sampled_from(GENERAL), st.integers(0, 1000))
def test_whole_k_serves_any_shape(m: int, n: int, k: int, case: Case, seed: int) -> None:
    check(case, case.w.replace(axes={"M": m, "N": n, "K": k}), seed, seed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 248), st.sampled_from(GENERAL_TINY), st.integers(0, 1000))
def test_tiny_serves_any_aligned_shape(m: int, n: int, k: int, case: Case, seed: int) -> None:
    """Aligned: of whole chunks of 8 along what is contiguous."""
    axes = {"M": m, "N": n, "K": k}
    for axis in ("K" if case.w.layout[0] == "n" else "M", "K" if case.w.layout[1] == "t" else "N"):
        axes[axis] = -(-axes[axis] // 8) * 8
    check(case, case.w.replace(axes=axes), seed, seed)


@pytest.mark.parametrize("case", [Case(gemm(64, 32, 512), {"split_k": 8, "swap": True}), Case(gemm(64, 32, 256, "nn"), {"split_k": 4})])
def test_sums_do_not_depend_on_who_comes_first(case: Case, tmp_path: Path) -> None:
    emulate.prepare([(case.candidate, 90)], tmp_path)
    m, n, k = (case.w.axes[x] for x in "MNK")
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(m, k, generator=generator).half()
    b = torch.randn((k, n) if case.w.layout[1] == "n" else (n, k), generator=generator).half()
    results = []
    for order in range(3):
        c = torch.full((m, n), float("nan"), dtype=torch.float16)
        emulate.run(case.candidate, {"a": a, "b": b, "c": c}, case.w.axes, sm=90, seed=order)
        results.append(c)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    exact = a.double() @ (b if case.w.layout[1] == "n" else b.t()).double()
    assert float((results[0].double() - exact).norm() / exact.norm()) < 4e-4


# ----------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("scheme", "changes", "w", "words"),
    [
        (whole_k, {"block_q": 8}, gemm(64, 64, 64, "nn"), "multiple of 16"),
        (whole_k, {"block_p": 128, "block_q": 48}, gemm(128, 96, 64), "passes of 32"),
        (whole_k, {"block_q": 8}, gemm(64, 8 * 65536, 64), "65535"),
        (whole_k, {"split_k": 4}, gemm(64, 64, 320), "nothing to do"),
        (whole_k, {}, gemm(64, 64, 1088), "cp_async has at most 16"),
        (whole_k, {"load": "tma", "block_q": 128}, gemm(64, 128, 1024), "KB of shared memory"),
        (tiny, {"warps_p": 2}, gemm(16, 16, 64, "nn"), "less than 16"),
        (tiny, {}, gemm(16, 16, 65, "nn"), "loads of 8"),
        (tiny, {"warps_k": 16}, gemm(16, 16, 64), "nothing to do"),
        (tiny, {"block_k": 128}, gemm(16, 16, 64, "tn"), "half of block_k"),
        (tiny, {"block_p": 64, "block_q": 64, "block_k": 128}, gemm(64, 64, 256, "tt"), "registers"),
        (tiny, {"block_p": 64, "warps_p": 4, "warps_k": 16}, gemm(64, 64, 512), "1024 threads"),
    ],
)
def test_illegal_configs_get_a_reason(scheme: ModuleType, changes: Config, w: Workload, words: str) -> None:
    base = TINY if scheme is tiny else WHOLE_K
    assert words in (scheme.illegal(base | changes, w, H200) or "")


SHAPES = st.tuples(*[st.sampled_from((1, 8, 16, 64, 100, 128, 512, 1024, 4096, 16384))] * 3)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from(LAYOUTS), st.sampled_from((whole_k, tiny)))
def test_seeds_are_legal_and_differ(shape: tuple[int, int, int], layout: str, scheme: ModuleType) -> None:
    w = gemm(*shape, layout)
    configs = (WholeK() if scheme is whole_k else Tiny()).seeds(w, H200)
    assert len({tuple(c.items()) for c in configs}) == len(configs)
    for c in configs:
        assert set(c) == set(scheme.SPACE) and all(c[key] in values for key, values in scheme.SPACE.items())
        assert scheme.illegal(c, w, H200) is None
        assert scheme.smem_bytes(c, w) <= H200.smem_per_block
    if max(shape[0], shape[1]) <= 1024 and shape[2] <= 1024 and (scheme is whole_k or shape[2] % 8 == 0):
        assert configs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 64, 64), (512, 512, 128), (64, 4096, 64), (1024, 128, 256), (4096, 64, 64), (128, 128, 512)])
def test_tiny_tries_direct_stores_of_several_tiles_and_a_split_of_k(shape: tuple[int, int, int], layout: str) -> None:
    seeds = Tiny().seeds(gemm(*shape, layout), H200)
    direct = [c for c in seeds if c["warps_k"] == 1]
    assert len(seeds) == 8 and len(direct) == len({(c["block_p"], c["block_q"]) for c in direct}) == 5
    estimates = [Tiny().estimate(c, gemm(*shape, layout), H200) for c in seeds]
    assert estimates == sorted(estimates)


# --------------------------------------------------------------------------------------------------------------- compiling

COMPILED = [
    *(Case(gemm(64, 64, 64, layout), {"swap": True}) for layout in LAYOUTS),
    Case(gemm(64, 64, 1024), {"swap": True, "split_k": 8}),
    Case(gemm(64, 64, 8192), {"block_q": 32, "split_k": 16}),
    Case(gemm(512, 512, 512), {"block_q": 32}),
    Case(gemm(512, 512, 504, "nn"), {"block_q": 32}),
    Case(gemm(510, 500, 500, "tn", "bf16"), {"block_q": 64, "swap": True}),
    Case(gemm(1024, 64, 1024), {"swap": True, "load": "tma"}),
    Case(gemm(1024, 64, 1024, "tt", "bf16"), {"load": "tma", "block_q": 64, "split_k": 2}),
    Case(gemm(256, 256, 192, "nn"), {"block_p": 128, "block_q": 128}),
    Case(gemm(256, 256, 500, "tn"), {"block_p": 128, "block_q": 128, "load": "tma", "split_k": 2}),
    Case(gemm(64, 64, 512), {"block_q": 8, "block_k": 128}),
    Case(gemm(256, 256, 256, "nt", "bf16"), {"block_p": 128, "block_q": 64, "block_k": 128, "swap": True, "split_k": 2}),
    *(Case(gemm(64, 64, 64, layout), {"block_p": p, "block_q": q, "block_k": 64}, tiny) for layout in LAYOUTS for p, q in TILES),
    *(Case(gemm(64, 4096, 512, layout), {"block_p": 64, "block_q": 16, "block_k": 256, "warps_p": 4}, tiny) for layout in LAYOUTS),
    *(Case(gemm(1000, 136, 264, layout, "bf16"), {"block_q": 16, "block_k": 256}, tiny) for layout in LAYOUTS),
    *(Case(gemm(64, 64, 1024, layout), {"block_p": 32, "block_k": 64, "warps_k": 16}, tiny) for layout in LAYOUTS),
    Case(gemm(60, 60, 504, "nt", "bf16"), {"block_p": 32, "block_q": 32, "block_k": 64, "warps_k": 8}, tiny),
    Case(gemm(64, 64, 256), {"block_p": 64, "block_q": 64, "block_k": 32, "warps_p": 2, "warps_k": 4}, tiny),
]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_compiles_to_tensor_core_code_without_spills(case: Case) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, log = nvrtc.compile_cubin(case.candidate.source, "sm_90a")
    resources, rest = nvrtc.parse_resources(log)
    assert rest == "", rest  # a serialised wgmma is told here
    gemm_kernel = resources["gemm"]
    assert (gemm_kernel.spill_stores, gemm_kernel.spill_loads, gemm_kernel.stack) == (0, 0, 0)
    sass = nvrtc_helper.disassemble(cubin)
    steps = whole_k.stages(case.config, case.w) * int(case.config["block_k"]) // 16 if case.scheme is whole_k else 0
    assert len(re.findall(r"\bHGMMA\.64x", sass)) == steps
    assert ("HMMA.16816.F32" in sass) == (case.scheme is tiny)
    assert ("LDGSTS" in sass) == (case.config.get("load") == "cp_async")
    assert ("UTMALDG" in sass) == (case.config.get("load") == "tma")
    assert ("UCGABAR" in sass) == (int(case.config.get("split_k", 1)) > 1)
    if case.scheme is tiny:
        assert gemm_kernel.registers <= tiny.registers(case.config, case.w)
        assert sass.rindex("LDG") < sass.index("HMMA"), "a load waits for the first mma"
        split = int(case.config["warps_k"]) > 1
        assert [bool(re.search(rf"\b{name}\b", sass)) for name in ("STS", "LDS", "BAR")] == [split] * 3
        assert ("MOVM" in sass) == (case.w.layout != "nt")
