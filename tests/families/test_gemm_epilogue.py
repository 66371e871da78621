"""The epilogues of gemm_sm90, in every scheme, and of gemm_sm80: the kernels' text in the emulator against float64 and one rounding;
what NVRTC makes of it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, product
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.families import gemm_sm80
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80.family import GemmSm80
from kernelwright.families.gemm_sm80.space import illegal
from kernelwright.families.gemm_sm90 import persistent, render, ring, tiny, whole_k
from kernelwright.families.gemm_sm90.family import Persistent, Ring, Tiny, WholeK
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.epilogue import parse
from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.rivals import names_for
from kernelwright.targets import nvrtc, sass, target

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator")]
import emulate

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
EPILOGUES = (
    "bias",
    "bias+gelu",
    "alpha=0.5+beta=2",
    "bias+residual+silu",
    "gelu-tanh+residual",
    "bias+residual",
    "alpha=-2+bias+gelu+residual",
    "silu",
    "alpha=4+beta=-1+bias+gelu-tanh",
)

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
SM80: Config = {
    "block_m": 32, "block_n": 32, "block_k": 32, "warps_m": 1, "warps_n": 2, "warps_k": 1, "stages": 3, "split_k": 1,
    "reduction": "last-block", "raster_group": 0, "vector_bytes": 16, "tails": "chunk", "staged_store": True,
}  # fmt: skip
BASE = {persistent: PERSISTENT, ring: RING, whole_k: WHOLE_K, tiny: TINY, gemm_sm80: SM80}


@dataclass(frozen=True)
class Case:
    """One config, as what differs from its scheme's base, on one Workload."""

    scheme: ModuleType
    changes: Config
    w: Workload

    @property
    def config(self) -> Config:
        return BASE[self.scheme] | self.changes

    @cached_property
    def candidate(self) -> Candidate:
        reason = (illegal if self.scheme is gemm_sm80 else self.scheme.illegal)(self.config, self.w, H200)
        assert reason is None, reason
        if self.scheme is gemm_sm80:
            return GemmSm80().render(self.config, self.w, H200)
        return render.render(self.scheme, self.config, self.w, H200, Origin(kind="family"))

    @property
    def name(self) -> str:
        return "-".join([self.scheme.__name__.rpartition(".")[2], self.w.name, *(f"{k}={v}" for k, v in self.changes.items())])


WAYS: tuple[tuple[ModuleType, Config, tuple[int, int, int]], ...] = (
    # every way out of the sums; M, N and K miss the tiles
    (persistent, {}, (136, 72, 136)),
    (persistent, {"swap": True, "block_q": 48}, (67, 136, 136)),
    (persistent, PINGPONG | {"cluster_p": 2}, (203, 45, 72)),
    (persistent, {"split_k": 3, "swap": True}, (40, 130, 200)),
    (persistent, {"consumers_p": 1, "consumers_q": 2, "block_p": 64, "block_q": 64}, (72, 75, 72)),
    (ring, {}, (72, 72, 136)),
    (ring, {"subtiles": 2, "block_p": 128, "swap": True, "block_q": 32}, (40, 137, 136)),
    (ring, {"split_k": 2}, (70, 43, 200)),
    (ring, {"split_k": 3, "swap": True, "block_q": 32}, (40, 106, 264)),
    (whole_k, {}, (72, 40, 72)),
    (whole_k, {"load": "tma", "swap": True, "block_q": 8}, (9, 75, 64)),
    (whole_k, {"split_k": 2, "block_q": 32}, (66, 45, 128)),
    (whole_k, {"split_k": 2, "swap": True, "block_p": 128}, (24, 136, 128)),
    (tiny, {"block_q": 32}, (37, 48, 56)),
    (tiny, {"block_p": 32, "warps_p": 2}, (24, 42, 56)),
    (tiny, {"block_q": 8}, (33, 45, 56)),
    (tiny, {"warps_k": 4, "block_p": 32}, (33, 45, 120)),
    (gemm_sm80, {}, (37, 72, 64)),
    (gemm_sm80, {"staged_store": False, "block_n": 64, "tails": "any"}, (70, 45, 72)),
    (gemm_sm80, {"split_k": 3, "block_n": 64, "staged_store": False}, (33, 106, 104)),
    (gemm_sm80, {"warps_k": 2, "block_k": 64}, (66, 40, 136)),
    (gemm_sm80, {"split_k": 2, "warps_m": 2, "block_m": 64}, (72, 136, 96)),
)
_turn = cycle(EPILOGUES)
CASES = [
    Case(scheme, changes, resolve(f"linear:{m}x{n}x{k}:{dtype}:nt:{next(_turn)}"))
    for (scheme, changes, (m, n, k)), dtype in product(WAYS, ("fp16", "bf16"))
]
GENERAL = [case for case in CASES if case.scheme in (persistent, ring) and case.w.axes["N"] % 2]
"""Kernels for any N."""


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate.prepare([(case.candidate, 90) for case in CASES], tmp_path_factory.mktemp("emulator"))


def stored(rows: int, columns: int, dtype: str, generator: torch.Generator, unit: float) -> torch.Tensor:
    """Multiples of `unit` in rows of a multiple of 16 bytes; what lies between the rows is NaN, which any read would spread."""
    whole = torch.full((rows, (columns + 7) // 8 * 8 + 8), float("nan"), dtype=TORCH_DTYPES[dtype])
    whole[:, :columns] = (torch.randint(-3, 4, (rows, columns), generator=generator) * unit).to(whole.dtype)
    return whole[:, :columns]


def check(candidate: Candidate, w: Workload, seed: int) -> None:
    """C is the exact value, rounded once: sums and addends are multiples of 1/32, exact in fp32. An activation may cost a few fp32
    roundings of its argument before."""
    m, n, k = w.axes.values()
    e, generator = parse(w.epilogue), torch.Generator().manual_seed(seed)
    tensors = {"a": stored(m, k, w.dtype, generator, 1), "b": stored(n, k, w.dtype, generator, 1 / 16)}
    if e.bias:
        tensors["bias"] = stored(1, n, w.dtype, generator, 0.5)
    if e.added:
        tensors["addend"] = stored(m, n, w.dtype, generator, 0.25)
    c = stored(m, n, w.dtype, generator, 1).fill_(float("nan"))
    result = emulate.run(candidate, tensors | {"c": c}, w.axes, sm=90, seed=seed)
    inputs = {name: t[0] if name == "bias" else t for name, t in tensors.items()}
    problem = problem_of(w)
    reference = problem.reference(w, inputs)["c"]
    assert reference.isfinite().all()
    if not e.activation:
        assert torch.equal(c, reference.to(c.dtype)), f"{int((c != reference.to(c.dtype)).sum())} of {c.numel()} elements are wrong"
    else:
        # a few fp32 roundings of an argument up to about 20, and no second rounding to 16 bits
        most = UNIT_ROUNDOFF[w.dtype] * reference.abs() + 5e-6
        wrong = ~((c.double() - reference).abs() <= most)
        assert not wrong.any(), f"{int(wrong.sum())} of {c.numel()} elements are wrong, first at {wrong.nonzero()[0].tolist()}"
    assert torch.as_strided(c, (m, c.stride(0) - n), (c.stride(0), 1), n)[:-1].isnan().all(), "padding of C was written"
    assert candidate.plan is not None
    if candidate.plan.workspace_zeroed:
        assert not result.workspace.any()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_rounding_after_the_epilogue(case: Case) -> None:
    check(case.candidate, case.w, 1)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 40), st.sampled_from(GENERAL), st.integers(0, 1000))
def test_kernels_serve_any_shape(m: int, n: int, eights: int, case: Case, seed: int) -> None:
    check(case.candidate, case.w.replace(axes={"M": m, "N": n, "K": 8 * max(eights, 3)}), seed)


def test_infinite_and_absent_numbers_pass_through_activations() -> None:
    for case in (c for c in CASES if parse(c.w.epilogue).activation and c.scheme is whole_k):
        m, n, k = case.w.axes.values()
        values = torch.tensor([float("inf"), float("-inf"), float("nan"), 6e4, -6e4, 0.0, -0.0, 1e-3], dtype=TORCH_DTYPES[case.w.dtype])
        inputs = {"a": torch.zeros(m, k), "b": torch.zeros(n, k), "bias": torch.zeros(n), "addend": torch.zeros(m, n)}
        inputs = {name: x.to(values.dtype) for name, x in inputs.items()}
        inputs["a"][:, 0] = values.repeat(m)[:m]
        inputs["b"][:, 0] = 1
        e = parse(case.w.epilogue)
        kept = {s.name: inputs[s.name] for s in problem_of(case.w).tensors(case.w) if s.role == "in"}
        c = torch.full((m, (n + 7) // 8 * 8), 7.0, dtype=values.dtype)[:, :n]
        placed = {name: padded(x[None] if x.dim() == 1 else x) for name, x in kept.items()}
        emulate.run(case.candidate, placed | {"c": c}, case.w.axes, sm=90)
        want = problem_of(case.w).reference(case.w, kept)["c"].to(c.dtype)
        assert torch.equal(c.isnan(), want.isnan()) and torch.equal(c.isinf(), want.isinf()), e.text


def padded(x: torch.Tensor) -> torch.Tensor:
    """The same in rows of a multiple of 16 bytes."""
    whole = torch.zeros(x.shape[0], (x.shape[1] + 7) // 8 * 8, dtype=x.dtype)
    whole[:, : x.shape[1]] = x
    return whole[:, : x.shape[1]]


@pytest.mark.parametrize("family", [Persistent(), Ring(), WholeK(), Tiny()], ids=lambda f: f.name)
def test_families_take_linear_and_say_what_its_loads_need(family) -> None:
    for n, vector in ((512, 8), (514, 2), (515, 1)):
        w = resolve(f"linear:512x{n}x512:bf16:nt:bias+gelu+residual")
        assert family.refuses(w, H200) is None
        for config in family.seeds(w, H200):
            plan = family.render(config, w, H200).plan
            assert plan is not None
            given = [getattr(a, "name", "") for launch in plan.launches for a in launch.args]
            assert (given.count("bias"), given.count("addend")) == (1, 1)
            assert ("ld_addend % 8 == 0" in plan.requires, f"N % {vector} == 0" in plan.requires) == (vector == 8, vector > 1)
    plain = family.render(family.seeds(resolve("gemm:512x512x512:fp16:nt"), H200)[0], resolve("gemm:512x512x512:fp16:nt"), H200)
    assert "static constexpr kw::Steps epilogue = {};" in plain.source


# --------------------------------------------------------------------------------------------------------------- compiling

BIG: Config = {"block_m": 128, "block_n": 96, "block_k": 64, "warps_m": 2, "warps_n": 2}
COMPILED = [
    (persistent, {"block_q": 256, "stages": 4, "cluster_p": 2}, "linear:4096x4096x4096:fp16:nt:bias+gelu"),
    (persistent, {"block_p": 256, "block_q": 160, "cluster_q": 2}, "linear:4096x4096x4096:bf16:tn:alpha=2+beta=3+bias+gelu-tanh"),
    (persistent, {"swap": True, "block_q": 320, "cluster_p": 2}, "linear:4096x4096x4096:fp16:nn:bias+gelu+residual"),
    (persistent, {"consumers_p": 3, "block_p": 192, "block_q": 192}, "linear:4096x4096x4096:bf16:nt:bias+residual+silu"),
    (persistent, PINGPONG | {"block_p": 128, "block_q": 192, "swap": True}, "linear:4096x4096x4096:bf16:nn:alpha=2+bias+silu"),
    (persistent, {"block_q": 256, "stages": 4, "tail": "stream"}, "linear:4096x4096x4096:fp16:nn:bias+gelu+residual"),
    (ring, {"stages": 8}, "linear:4096x4096x16384:bf16:nn:bias+gelu+residual"),
    (
        ring,
        {"block_p": 192, "block_q": 192, "stages": 4, "cluster_q": 2, "split_k": 3, "swap": True},
        "linear:4096x4096x16384:bf16:tt:bias+gelu",
    ),
    (ring, {"block_p": 128, "block_q": 160, "stages": 5, "subtiles": 2}, "linear:4096x4096x16384:fp16:nt:bias+gelu+residual"),
    (whole_k, {"block_p": 128, "block_q": 128, "swap": True}, "linear:256x256x192:fp16:nt:bias+gelu+residual"),
    (whole_k, {"split_k": 8, "swap": True}, "linear:64x64x1024:fp16:nt:beta=2+silu"),
    (tiny, {"block_p": 64, "block_q": 64, "warps_p": 2}, "linear:64x64x256:bf16:nt:bias+gelu+residual"),
    (tiny, {"block_p": 64, "block_q": 64, "warps_k": 4}, "linear:64x64x256:fp16:nt:bias+gelu+residual"),
    (gemm_sm80, BIG, "linear:4096x4096x4096:fp16:nt:bias+gelu"),
    (gemm_sm80, BIG, "linear:4096x4096x4096:bf16:nt:bias+residual+silu"),
    (gemm_sm80, BIG | {"block_n": 64, "split_k": 4}, "linear:4096x4096x4096:bf16:nn:bias+gelu+residual"),
    (gemm_sm80, BIG | {"block_n": 128}, "linear:4096x4096x4096:fp16:tn:alpha=2+bias+gelu-tanh"),
]


@pytest.mark.parametrize(("scheme", "changes", "text"), COMPILED, ids=str)
def test_compiles_without_spills(scheme: ModuleType, changes: Config, text: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    case = Case(scheme, changes, resolve(text))
    cubin, log = nvrtc.compile_cubin(case.candidate.source, "sm_90a")
    resources, rest = nvrtc.parse_resources(log)
    used = resources["gemm"]
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    assert not re.search("C7510|serialized", rest), rest
    path = tmp_path / "gemm.cubin"
    path.write_bytes(cubin)
    mix = sass.sass_mix(path)
    assert mix["HMMA" if scheme in (tiny, gemm_sm80) else "HGMMA"] > 0
    assert bool(mix.get("MOVM")) == (scheme is not tiny and parse(case.w.epilogue).added != "" and bool(changes.get("swap")))
    # one of each for an activation; gelu has a reciprocal as well
    assert (mix.get("MUFU", 0) > 0) == (parse(case.w.epilogue).activation != "")


# ------------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text",
    [
        "linear:512x512x512:fp16:nt:bias+gelu",
        "linear:1000x520x1032:bf16:nt:bias+residual+silu",
        "linear:264x1024x512:fp16:nn:alpha=0.5+beta=2",
        "linear:2048x2048x1024:bf16:tn:bias+gelu-tanh+residual",
    ],
)
def test_best_seeds_pass_the_whole_ladder(text: str) -> None:
    w, device = resolve(text), target("cuda").facts()
    families = [f for f in (Persistent(), Ring(), WholeK(), Tiny()) if f.refuses(w, device) is None]
    found = [f.render(seeds[0], w, device) for f in families if (seeds := f.seeds(w, device))]
    if not found:
        pytest.skip("no family of gemm_sm90 is for this GPU")
    rivals = names_for(w, device.target)
    with Evaluator(target("cuda")) as evaluator:
        job = Job(workload=w, rivals=tuple(r for r in rivals if r in ("eager", "cublaslt")), rungs=ALL_RUNGS, modes=("device-cold",))
        trials = list(evaluator.evaluate(found, job, stage="screen", session="test"))
    assert len(trials) == len(found)
    for trial in trials:
        assert trial.verdict.ok, f"{trial.candidate.origin.name}: {trial.verdict.evidence}"
        assert all(verdict.ok for verdict in trial.rivals.values()), trial.rivals
