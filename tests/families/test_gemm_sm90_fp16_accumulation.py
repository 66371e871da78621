"""gemm_sm90 with sums in fp16, which only a Workload asks for: each scheme in the emulator, what its sums round, what NVRTC makes of it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90 import persistent, render, ring, tiny, whole_k
from kernelwright.families.gemm_sm90.family import Persistent, Ring, Tiny, WholeK
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.rivals import names_for
from kernelwright.targets import nvrtc, target

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator"), str(Path(__file__).parents[1] / "device")]
import emulate
import nvrtc_helper
import products

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=50 * 2**20)
SMALL = DeviceFacts(target="cuda:sm_90", sms=4, smem_per_block=227 * 1024)
FAMILIES = (Persistent(), Ring(), WholeK(), Tiny())
LAYOUTS = ("nn", "nt", "tn", "tt")

PERSISTENT: Config = {
    "swap": False, "schedule": "cooperative", "consumers_p": 2, "consumers_q": 1, "block_p": 128, "block_q": 32, "block_k": 64, "stages": 3,
    "store_buffers": 2, "cluster_p": 1, "cluster_q": 1, "raster": "p", "raster_group": 2, "evict": "normal", "split_k": 1, "tail": "tiles",
}  # fmt: skip
PINGPONG: Config = {"schedule": "pingpong", "consumers_p": 1, "block_p": 64}
RING: Config = {
    "swap": False, "block_p": 64, "block_q": 64, "block_k": 64, "stages": 2, "subtiles": 1, "cluster_p": 1, "cluster_q": 1, "split_k": 1,
    "raster_group": 2,
}  # fmt: skip
WHOLE_K: Config = {"load": "cp_async", "swap": False, "block_p": 64, "block_q": 16, "block_k": 64, "split_k": 1}
TINY: Config = {"block_p": 16, "block_q": 16, "block_k": 32, "warps_p": 1, "warps_k": 1}
BASE = {persistent: PERSISTENT, ring: RING, whole_k: WHOLE_K, tiny: TINY}


def gemm(m: int, n: int, k: int, layout: str = "nt", accumulate: str = "fp16") -> Workload:
    return resolve(f"gemm:{m}x{n}x{k}:fp16:{layout}:acc={accumulate}")


@dataclass(frozen=True)
class Case:
    """One config, as what differs from its scheme's base, on one Workload."""

    scheme: ModuleType
    changes: Config
    w: Workload

    @cached_property
    def candidate(self) -> Candidate:
        config, device = BASE[self.scheme] | self.changes, SMALL if self.changes.get("tail") else H200
        assert (reason := self.scheme.illegal(config, self.w, device)) is None, reason
        return render.render(self.scheme, config, self.w, device, Origin(kind="family"))

    @property
    def name(self) -> str:
        return "-".join([self.scheme.__name__.rpartition(".")[2], self.w.name, *(f"{k}={v}" for k, v in self.changes.items())])


# ------------------------------------------------------------------------------------------------------------- emulation

CASES = [
    *(Case(persistent, {"swap": swap}, gemm(136, 136, 200, layout)) for layout, swap in product(LAYOUTS, (False, True))),
    *(Case(ring, {"swap": swap, "block_q": 48}, gemm(72, 136, 200, layout)) for layout, swap in product(LAYOUTS, (False, True))),
    *(Case(whole_k, {"swap": swap}, gemm(72, 136, 136, layout)) for layout, swap in product(LAYOUTS, (False, True))),
    *(Case(tiny, {"warps_k": 4}, gemm(40, 48, 248, layout)) for layout in LAYOUTS),
    Case(tiny, {"block_p": 32, "block_q": 32}, gemm(37, 45, 248)),
    Case(tiny, {"block_q": 8, "block_k": 64}, gemm(40, 48, 248, "tn")),
    Case(persistent, PINGPONG | {"cluster_p": 2, "block_q": 80}, gemm(264, 200, 136)),
    Case(persistent, {"consumers_p": 1, "consumers_q": 2, "block_p": 64, "block_q": 96}, gemm(136, 200, 136, "nn")),
    Case(persistent, {"block_p": 64, "consumers_p": 1, "block_q": 320, "schedule": "pingpong", "stages": 2}, gemm(72, 328, 136, "tn")),
    Case(persistent, {"split_k": 3}, gemm(136, 72, 456, "nn")),
    Case(persistent, {"split_k": 2, "swap": True} | PINGPONG, gemm(72, 136, 456, "tn")),
    Case(persistent, {"tail": "stream"}, gemm(264, 72, 584, "tt")),
    Case(ring, {"block_q": 8}, gemm(70, 43, 200)),
    Case(ring, {"subtiles": 2, "block_p": 128, "block_q": 224, "stages": 2}, gemm(136, 264, 136)),
    Case(ring, {"split_k": 3, "block_q": 32}, gemm(70, 43, 456)),
    Case(ring, {"split_k": 4, "block_q": 32, "swap": True, "cluster_p": 2}, gemm(24, 136, 584, "tn")),
    Case(whole_k, {"load": "tma", "split_k": 2, "swap": True}, gemm(40, 77, 250, "tn")),
    Case(whole_k, {"split_k": 8, "block_q": 32}, gemm(72, 40, 456, "nn")),
    Case(whole_k, {"block_q": 8, "block_k": 128}, gemm(64, 16, 128)),
]

LONG = 512
WAYS: tuple[tuple[ModuleType, Config, int], ...] = (
    # how much of K the first part has
    (persistent, {}, LONG),
    (persistent, PINGPONG | {"swap": True}, LONG),
    (persistent, {"split_k": 2}, LONG // 2),
    (ring, {}, LONG),
    (ring, {"split_k": 4, "swap": True}, LONG // 4),
    (whole_k, {}, LONG),
    (whole_k, {"split_k": 2, "swap": True}, LONG // 2),
    (tiny, {}, LONG),
    (tiny, {"warps_k": 4}, LONG // 4),
)
ROUNDED = {way: Case(scheme, c, gemm(72, 48, LONG)) for way, (scheme, c, _) in enumerate(WAYS)}
UNROUNDED = {way: Case(scheme, c, gemm(72, 48, LONG, accumulate="fp32")) for way, (scheme, c, _) in enumerate(WAYS)}


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    cases = (*CASES, *ROUNDED.values(), *UNROUNDED.values())
    emulate.prepare([(case.candidate, 90) for case in cases], tmp_path_factory.mktemp("emulator"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_small_integers_are_exact(case: Case) -> None:
    for seed in (1, 2):
        products.check(case.candidate, case.w, sm=90, inputs=seed, order=seed, repeats=2)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=lambda way: ROUNDED[way].name)
def test_the_sum_itself_is_fp16_inside_a_part_of_k_and_fp32_where_parts_meet(way: int) -> None:
    """2048 in one step, then ones: fp16 has 2050 next, so 2048 + 1 is 2048 again; ones that meet 2048 later, as a sum, count."""
    first_part = WAYS[way][2]
    a = torch.zeros(72, LONG, dtype=torch.float16)
    a[:, ::32] = 1  # one product a step
    a[:, 0] = 2048
    ones = LONG // 32 - 1
    lost = first_part // 32 - 1
    for case, expected in ((ROUNDED[way], 2048 + ones - lost), (UNROUNDED[way], 2048 + ones)):
        c = torch.full((72, 48), float("nan"), dtype=torch.float16)
        emulate.run(case.candidate, {"a": a, "b": torch.ones(48, LONG, dtype=torch.float16), "c": c}, case.w.axes, sm=90, seed=1)
        assert (c == torch.tensor(expected).half()).all(), (case.name, c.unique().tolist(), expected)


def test_the_tolerance_takes_fp16_sums_where_they_were_asked_for_and_nowhere_else() -> None:
    problem, generator = problem_of(gemm(8, 8, 8)), torch.Generator().manual_seed(5)
    inputs = {"a": torch.randn(72, LONG, generator=generator).half(), "b": torch.randn(48, LONG, generator=generator).half()}
    for way in (0, 3, 5, 7):  # whole parts of K
        errors = {}
        for case in (ROUNDED[way], UNROUNDED[way]):
            c = torch.full((72, 48), float("nan"), dtype=torch.float16)
            emulate.run(case.candidate, inputs | {"c": c}, case.w.axes, sm=90, seed=2)
            errors[case.w.accumulate] = (c.double() - problem.reference(case.w, inputs)["c"]).abs()
        asked, plain = ROUNDED[way].w, UNROUNDED[way].w
        scales = {w.accumulate: problem.scale(w, inputs, problem.reference(w, inputs))["c"] for w in (asked, plain)}
        assert (errors["fp16"] / scales["fp16"]).max() <= problem.bound(asked)
        assert (errors["fp32"] / scales["fp32"]).max() <= problem.bound(plain) < (errors["fp16"] / scales["fp32"]).max()


# ----------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_only_the_workload_chooses(family) -> None:
    """The space, the seeds and what is legal are those of fp32; what is rendered differs."""
    for layout, shape in product(LAYOUTS, ("512x512x512", "64x64x64", "4096x4096x4096", "264x1000x2048")):
        asked, plain = (resolve(f"gemm:{shape}:fp16:{layout}:acc={accumulate}") for accumulate in ("fp16", "fp32"))
        assert family.refuses(asked, H200) is None
        assert family.space(asked, H200) == family.space(plain, H200) and family.seeds(asked, H200) == family.seeds(plain, H200)
        for config in family.seeds(asked, H200)[:2]:
            assert family.illegal(config, asked, H200) is None
            assert "bool fp16_accumulate = true;" in family.render(config, asked, H200).source
            assert "bool fp16_accumulate = false;" in family.render(config, plain, H200).source


def test_only_fp16_products_are_summed_in_fp16() -> None:
    for family in FAMILIES:
        for dtype in ("bf16", "fp32"):
            assert "fp16 in fp16" in (family.refuses(gemm(64, 64, 64).replace(dtype=dtype), H200) or "")


# --------------------------------------------------------------------------------------------------------------- compiling

LARGE = (4096, 4096, 4096)
COMPILED = [
    Case(persistent, {"block_q": 256, "stages": 4, "cluster_p": 2}, gemm(*LARGE)),
    Case(persistent, {"block_p": 256, "block_q": 192, "store_buffers": 1}, gemm(*LARGE, "nn")),
    Case(persistent, {"block_q": 320, "swap": True, "cluster_p": 2}, gemm(*LARGE, "tt")),
    Case(persistent, {"consumers_p": 3, "block_p": 192, "block_q": 192}, gemm(*LARGE, "tn")),
    Case(persistent, PINGPONG | {"block_p": 192, "block_q": 128, "stages": 4, "swap": True}, gemm(*LARGE, "nn")),
    Case(persistent, {"block_q": 256, "stages": 4, "split_k": 4}, gemm(1024, 1024, 4096, "nn")),
    Case(ring, {"stages": 8}, gemm(*LARGE, "tn")),
    Case(ring, {"block_p": 128, "block_q": 224, "stages": 5, "subtiles": 2}, gemm(*LARGE)),
    Case(ring, {"block_p": 192, "block_q": 192, "stages": 4, "cluster_q": 2, "split_k": 3, "swap": True}, gemm(4096, 4096, 16384, "tt")),
    Case(whole_k, {"block_p": 128, "block_q": 128}, gemm(256, 256, 192, "nn")),
    Case(whole_k, {"load": "tma", "split_k": 8, "swap": True}, gemm(64, 64, 1024, "tt")),
    Case(tiny, {"block_p": 64, "block_q": 64, "warps_k": 4}, gemm(64, 64, 256)),
]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_compiles_to_fp16_sums_without_spills(case: Case) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, log = nvrtc.compile_cubin(case.candidate.source, "sm_90a")
    resources, rest = nvrtc.parse_resources(log)
    used = resources["gemm"]
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    assert not rest, rest  # a serialised wgmma is told here
    found = set(re.findall(r"\b(?:HGMMA|HMMA)\.\S+", nvrtc_helper.disassemble(cubin)))
    wanted = r"HMMA\.16816\.F16" if case.scheme is tiny else r"HGMMA\.64x\d+x16\.F16"
    assert found and all(re.fullmatch(wanted, instruction) for instruction in found), found


PROBE = """
#include "kernelwright/wgmma.cuh"
template <int N, bool TransposedA, bool TransposedB>
__device__ void one(unsigned long long a, unsigned long long b, float* out) {
    float wide[N / 2] = {};
    unsigned narrow[N / 4] = {}, sum = 0;
    kw::wgmma_fence();
    kw::Wgmma<kw::f16, N, TransposedA, TransposedB>::run(wide, a, b, true);
    kw::Wgmma<kw::f16, N, TransposedA, TransposedB>::run(narrow, a, b, true);
    kw::wgmma_commit();
    kw::wgmma_wait<0>();
    kw::wgmma_settle(wide);
    kw::wgmma_settle(narrow);
    for (float x : wide) out[threadIdx.x] += x;
    for (unsigned x : narrow) sum += x;
    out[threadIdx.x] += sum;
}
extern "C" __global__ void __launch_bounds__(128) probe(unsigned long long a, unsigned long long b, float* out) {
    CALLS
}
"""


def test_every_width_has_both_kinds_of_sums() -> None:
    widths = (8, *range(16, 257, 16))
    calls = "".join(f"one<{n}, {str(n % 32 == 0).lower()}, {str(n % 64 == 0).lower()}>(a, b, out);" for n in widths)
    sass = nvrtc_helper.disassemble(nvrtc_helper.compile(PROBE.replace("CALLS", calls), "sm_90a").cubin)
    for n in widths:
        assert f"HGMMA.64x{n}x16.F16 " in sass and f"HGMMA.64x{n}x16.F32 " in sass, n


# ------------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["64x64x64:fp16:nt", "512x512x512:fp16:nn", "1000x520x1032:fp16:tn", "264x1024x8192:fp16:tt"])
def test_best_seeds_pass_the_whole_ladder(text: str) -> None:
    w, device = resolve(f"gemm:{text}:acc=fp16"), target("cuda").facts()
    families = [f for f in FAMILIES if f.refuses(w, device) is None]
    found = [f.render(seeds[0], w, device) for f in families if (seeds := f.seeds(w, device))]
    if not found:
        pytest.skip("no family of gemm_sm90 is for this GPU")
    rivals = tuple(r for r in names_for(w, device.target) if r in ("eager", "cublas"))
    with Evaluator(target("cuda")) as evaluator:
        job = Job(workload=w, rivals=rivals, rungs=ALL_RUNGS, modes=("device-cold",))
        trials = list(evaluator.evaluate(found, job, stage="screen", session="test"))
    assert len(trials) == len(found)
    for trial in trials:
        assert trial.verdict.ok, f"{trial.candidate.origin.name}: {trial.verdict.evidence}"
        assert all(verdict.ok for verdict in trial.rivals.values()), trial.rivals
