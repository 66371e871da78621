"""gemm_sm90's scheme `persistent`: its text runs on the host (tests/device/emulator), and compiles with NVRTC; no GPU is needed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90 import persistent
from kernelwright.families.gemm_sm90.family import Persistent
from kernelwright.families.gemm_sm90.render import render
from kernelwright.plan import evaluate
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.targets import nvrtc
from kernelwright.targets.sass import sass_mix

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator")]
import emulate
import products

SMALL = DeviceFacts(target="cuda:sm_90", sms=4, smem_per_block=227 * 1024)
"""What the emulator passes for: small grids have several waves on it."""
H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
LAYOUTS = ("nn", "nt", "tn", "tt")
ORIGIN = Origin(kind="family", name="gemm_sm90_persistent")


def gemm(m: int, n: int, k: int, dtype: str = "fp16", layout: str = "nn") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


BASE: Config = {
    "swap": False,
    "schedule": "cooperative",
    "consumers_p": 2,
    "consumers_q": 1,
    "block_p": 128,
    "block_q": 32,
    "block_k": 64,
    "stages": 3,
    "store_buffers": 2,
    "cluster_p": 1,
    "cluster_q": 1,
    "raster": "p",
    "raster_group": 2,
    "evict": "normal",
    "split_k": 1,
    "tail": "tiles",
}
PINGPONG: Config = {"schedule": "pingpong", "consumers_p": 1, "block_p": 64}
SWAP: Config = {"swap": True}
HALF_COLUMNS: Config = {"consumers_p": 1, "consumers_q": 2, "block_p": 64}
THREE: Config = {"consumers_p": 3, "block_p": 192}


def cluster(p: int, q: int) -> Config:
    return {"cluster_p": p, "cluster_q": q}


def candidate(changes: Config, w: Workload, device: DeviceFacts = H200) -> Candidate:
    config = BASE | changes
    assert config.keys() == BASE.keys()
    assert all(config[key] in values for key, values in persistent.SPACE.items())
    assert (reason := persistent.illegal(config, w, device)) is None, reason
    return render(persistent, config, w, device, ORIGIN)


# ------------------------------------------------------------------------------------------------------------- emulation


@dataclass(frozen=True)
class Case:
    """One config on one Workload, with what differs from the base config."""

    w: Workload
    changes: Config = field(default_factory=dict)
    pad: int = 0
    repeats: int = 1

    @cached_property
    def candidate(self) -> Candidate:
        return candidate(self.changes, self.w, SMALL if "tail" in self.changes else H200)

    @property
    def name(self) -> str:
        return "-".join([self.w.name, *(f"{k}={v}" for k, v in self.changes.items())])


COOPERATIVE = [Case(gemm(264, 72, 200, layout=layout), pad=8) for layout in LAYOUTS]
TURNS = [Case(gemm(72, 200, 264, "bf16", layout), PINGPONG | SWAP) for layout in LAYOUTS]
CASES = [
    *COOPERATIVE,
    *TURNS,
    # the other orientations
    Case(gemm(203, 104, 136, "bf16", "nt"), PINGPONG | {"raster": "q"}),
    Case(gemm(67, 264, 136, layout="nn"), SWAP | {"store_buffers": 1}, pad=8),
    # clusters: either operand or both shared
    Case(gemm(264, 136, 136, layout="nn"), cluster(2, 1)),
    Case(gemm(264, 136, 136, "bf16", "tt"), cluster(1, 2) | {"block_k": 128, "stages": 2}),
    Case(gemm(300, 72, 200, layout="nt"), cluster(2, 2)),
    Case(gemm(264, 200, 136, layout="tn"), cluster(2, 2) | PINGPONG),
    Case(gemm(72, 264, 136, "bf16", "nn"), cluster(2, 2) | PINGPONG | SWAP),
    Case(gemm(104, 264, 72, layout="tt"), cluster(1, 2) | SWAP),
    Case(gemm(104, 520, 72, layout="nt"), cluster(2, 1) | SWAP),
    Case(gemm(264, 136, 136, layout="nt"), cluster(4, 1) | PINGPONG),
    # other shares of a tile: halves of its columns, three consumers, more than one wgmma side by side, 16- and 64-wide boxes
    Case(gemm(136, 200, 136, layout="nt"), HALF_COLUMNS | {"block_q": 96}),
    Case(gemm(136, 200, 136, layout="tn"), HALF_COLUMNS | SWAP | {"block_p": 128, "block_q": 128}),
    Case(gemm(200, 72, 136, "bf16", "nn"), THREE | {"block_q": 48}),
    Case(gemm(72, 200, 136, layout="nn"), THREE | SWAP),
    Case(gemm(72, 328, 136, layout="nn"), PINGPONG | {"block_q": 320, "stages": 2}),
    Case(gemm(328, 72, 72, layout="tt"), PINGPONG | SWAP | {"block_q": 320, "stages": 2, "store_buffers": 1}),
    Case(gemm(264, 72, 72, layout="tn"), {"block_p": 256, "block_q": 80}),
    # K in parts
    Case(gemm(136, 72, 456, layout="nn"), {"split_k": 3}, repeats=3),
    Case(gemm(72, 136, 456, "bf16", "tn"), {"split_k": 2} | PINGPONG | SWAP | cluster(2, 1), repeats=2),
    Case(gemm(200, 72, 328, layout="nt"), {"split_k": 4} | THREE, repeats=2),
    # the last wave shared along K by all
    Case(gemm(264, 72, 584, layout="nn"), {"tail": "stream"}, pad=8, repeats=3),
    Case(gemm(264, 72, 200, "bf16", "nt"), {"tail": "two_tile"}, repeats=2),
    Case(gemm(200, 72, 328, layout="tn"), {"tail": "stream", "raster": "hilbert", "raster_group": 1} | THREE, repeats=2),
    Case(gemm(136, 296, 264, layout="tt"), {"tail": "two_tile", "block_q": 96} | HALF_COLUMNS | SWAP, repeats=2),
    Case(gemm(72, 136, 456, "bf16", "nn"), {"tail": "stream"} | PINGPONG | SWAP, repeats=3),
    Case(gemm(296, 72, 264, layout="nt"), {"tail": "two_tile"} | PINGPONG, repeats=2),
    Case(gemm(600, 72, 328, layout="nt"), {"tail": "two_tile"} | PINGPONG | cluster(2, 1), repeats=2),
    Case(gemm(264, 136, 328, layout="tn"), {"tail": "stream"} | cluster(1, 2), repeats=2),
    Case(gemm(136, 424, 520, layout="tn"), {"tail": "stream", "block_q": 208, "stages": 2}, repeats=2),
    # the rest
    Case(gemm(392, 232, 72, layout="nt"), {"raster": "hilbert", "raster_group": 1} | cluster(2, 1)),
    Case(gemm(136, 72, 8, layout="nt"), {"stages": 8, "evict": "keep_p"}, repeats=2),
    Case(gemm(264, 136, 200, layout="nn"), PINGPONG | {"stages": 2, "evict": "keep_q", "raster": "q", "raster_group": 4}),
]


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate.prepare([(case.candidate, 90) for case in CASES], tmp_path_factory.mktemp("emulator"))


def check(case: Case, w: Workload, seed: int = 1) -> None:
    products.check(case.candidate, w, sm=90, inputs=seed, order=seed, repeats=case.repeats, pad=case.pad)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_product_is_exact(case: Case) -> None:
    check(case, case.w)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.sampled_from([*COOPERATIVE, *TURNS]), st.integers(0, 1000))
def test_kernels_serve_any_shape_in_eights(m: int, n: int, k: int, case: Case, seed: int) -> None:
    check(case, case.w.replace(axes={"M": 8 * m, "N": 8 * n, "K": 8 * k}), seed)


@pytest.mark.parametrize("case", [c for c in CASES if "tail" in c.changes], ids=lambda case: case.name)
def test_any_grid_has_a_tail(case: Case) -> None:
    """Fewer tiles than clusters, one wave, more of them; one step of K, fewer steps than clusters, steps that do not divide."""
    p, q, k = (int(case.changes.get(x, BASE[x])) for x in ("block_p", "block_q", "block_k"))
    p, q = (p, q) if not case.changes.get("swap") else (q, p)
    for seed, (tiles_m, tiles_n, steps, sms) in enumerate(
        [(1, 1, 17, 4), (1, 1, 1, 4), (2, 3, 2, 5), (3, 3, 1, 4), (2, 2, 7, 4), (5, 3, 5, 6)]
    ):
        axes = {"M": p * tiles_m - 8, "N": q * tiles_n - 8, "K": k * steps - 8}
        products.check(case.candidate, case.w.replace(axes=axes), sm=90, inputs=seed, order=seed, repeats=2, sms=sms)


@pytest.mark.parametrize("case", [c for c in CASES if "tail" in c.changes or "split_k" in c.changes], ids=lambda case: case.name)
def test_sums_do_not_depend_on_who_comes_last(case: Case) -> None:
    m, n, k = (case.w.axes[x] for x in "MNK")
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(*shape, generator=generator).to(TORCH_DTYPES[case.w.dtype]) for shape in ((m, k), (k, n)))
    a, b = (x if order == "n" else x.t().contiguous() for x, order in zip((a, b), case.w.layout, strict=True))
    results = []
    for order in range(4):
        c = torch.zeros(m, n, dtype=a.dtype)
        emulate.run(case.candidate, {"a": a, "b": b, "c": c}, case.w.axes, sm=90, seed=order)
        results.append(c)
    assert all(torch.equal(c, results[0]) for c in results[1:])


def test_uneven_extents_that_are_no_rows_in_memory() -> None:
    for m in (1, 63, 129):
        check(COOPERATIVE[0], COOPERATIVE[0].w.replace(axes={"M": m, "N": 45, "K": 61}), seed=m)


# ----------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_p": 256, "block_q": 256}, "sums a thread"),
        ({"block_p": 192}, "multiples of 64"),
        (PINGPONG | {"block_p": 192, "block_q": 192}, "sums a thread"),
        ({"schedule": "pingpong"}, "share no tile"),
        ({"consumers_q": 2}, "do not share a tile"),
        ({"consumers_p": 1, "consumers_q": 2, "block_q": 80}, "multiples of 16"),
        (cluster(4, 2), "a cluster of 8 blocks"),
        ({"block_q": 48} | cluster(4, 1), "do not divide into 4 boxes"),
        ({"block_q": 256, "stages": 5}, "KB of shared memory"),
        ({"split_k": 8, "block_k": 128}, "fewer than 8 steps"),
        ({"block_p": 384}, "boxes of 8 to 256 rows"),
        (PINGPONG | {"split_k": 8}, "over four waves"),
        ({"split_k": 2, "tail": "stream"}, "cut in one way"),
        ({"tail": "two_tile"}, "no full wave"),
        ({"tail": "stream", "block_k": 128}, "too few steps"),
        ({"raster": "hilbert"}, "no groups"),
    ],
)
def test_illegal_configs_get_a_reason(changes: Config, words: str) -> None:
    reason = persistent.illegal(BASE | changes, gemm(512, 512, 512, layout="nt"), H200)
    assert reason is not None and words in reason


def test_grid_is_whole_clusters_that_fit() -> None:
    w = gemm(8192, 8192, 8192)
    for shape, blocks in (((1, 1), 132), ((2, 1), 132), ((2, 2), 120)):
        plan = candidate(cluster(*shape) | {"block_q": 128}, w).plan
        assert plan is not None
        assert evaluate(plan.launches[0].grid[0], w.axes | {"sms": 132}) == blocks
        assert evaluate(plan.launches[0].grid[0], {"M": 1, "N": 1, "K": 8, "sms": 132}) == shape[0] * shape[1]
        assert evaluate(plan.launches[0].grid[0], {"M": 0, "N": 1, "K": 8, "sms": 132}) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8192, 4096), (512, 512, 8192), (4096, 4096, 4096), (16384, 512, 512)])
def test_seeds_are_legal_and_differ(shape: tuple[int, int, int], layout: str) -> None:
    w = gemm(*shape, layout=layout)
    configs = Persistent().seeds(w, H200)
    assert len({tuple(c.items()) for c in configs}) == len(configs) >= 8
    for c in configs:
        assert c.keys() == persistent.SPACE.keys()
        assert all(c[key] in values for key, values in persistent.SPACE.items())
        assert persistent.illegal(c, w, H200) is None


# --------------------------------------------------------------------------------------------------------------- compiling


def rows(block_p: int, block_q: int, stages: int) -> Config:
    return {"block_p": block_p, "block_q": block_q, "stages": stages}


MENU: list[tuple[str, str, Config]] = [
    ("fp16", "nt", rows(128, 256, 4) | cluster(2, 1)),
    ("bf16", "nn", rows(256, 128, 4) | cluster(1, 2)),
    ("fp16", "tn", rows(256, 160, 3) | cluster(2, 2)),
    ("fp16", "nt", rows(256, 192, 3) | {"store_buffers": 1}),
    ("fp16", "nn", rows(128, 320, 3) | SWAP | cluster(2, 1)),
    ("fp16", "tt", HALF_COLUMNS | rows(192, 192, 4) | cluster(1, 2)),
    ("fp16", "nn", HALF_COLUMNS | rows(320, 128, 3) | SWAP | cluster(1, 2)),
    ("bf16", "nt", THREE | rows(192, 192, 3)),
    ("fp16", "nn", THREE | rows(192, 160, 4) | SWAP),
    ("fp16", "nt", PINGPONG | rows(128, 128, 6)),
    ("bf16", "nn", PINGPONG | rows(128, 192, 4) | SWAP | cluster(2, 1)),
    ("fp16", "tt", PINGPONG | rows(64, 256, 4)),
    ("fp16", "nt", PINGPONG | rows(192, 128, 4)),
    ("fp16", "nn", PINGPONG | rows(64, 128, 3) | {"block_k": 128}),
    ("fp16", "nn", rows(128, 256, 4) | {"split_k": 4}),
    ("fp16", "nt", PINGPONG | rows(128, 128, 6) | SWAP | {"split_k": 2}),
    ("fp16", "nn", rows(128, 256, 4) | cluster(2, 1) | {"tail": "stream"}),
    ("fp16", "tt", HALF_COLUMNS | rows(192, 192, 4) | {"tail": "two_tile", "raster": "hilbert", "raster_group": 1}),
    ("bf16", "nt", THREE | rows(192, 192, 3) | {"tail": "stream"}),
    ("fp16", "nt", PINGPONG | rows(128, 128, 6) | {"tail": "two_tile"}),
    ("bf16", "nn", PINGPONG | rows(192, 128, 4) | SWAP | {"tail": "stream", "raster": "hilbert", "raster_group": 1}),
]


@pytest.mark.parametrize(("dtype", "layout", "changes"), MENU, ids=str)
def test_menu_compiles_without_spills(dtype: str, layout: str, changes: Config, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    size = (1024, 1024, 4096) if "split_k" in changes else (4096, 4096, 4096)
    cubin, log = nvrtc.compile_cubin(candidate(changes, gemm(*size, dtype, layout)).source, "sm_90a")
    resources, rest = nvrtc.parse_resources(log)
    used = resources["gemm"]
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    assert used.registers <= (128 if "consumers_p" in changes and changes["consumers_p"] == 3 else 168)
    assert not re.search("C7510|serialized", rest), rest
    path = tmp_path / "gemm.cubin"
    path.write_bytes(cubin)
    mix = sass_mix(path)
    config = BASE | changes
    sums = int(config["block_p"]) * int(config["block_q"]) // (int(config["consumers_p"]) * int(config["consumers_q"]))
    assert mix["HGMMA"] == int(config["block_k"]) // 16 * sums // 64 // persistent.wgmma_n(config), "the main loop is not what it should be"
    assert not mix.get("LDL") and not mix.get("STL")
