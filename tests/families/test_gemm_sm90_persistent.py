"""gemm_sm90's scheme `persistent`: its text runs on the host (tests/device/emulator), and compiles with NVRTC; no GPU is needed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90 import persistent
from kernelwright.families.gemm_sm90.render import render
from kernelwright.plan import evaluate
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.targets import nvrtc
from kernelwright.targets.sass import sass_mix

sys.path += [str(Path(__file__).parents[1] / "device" / "emulator")]
import emulate
import products

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
}
PINGPONG: Config = {"schedule": "pingpong", "consumers_p": 1, "block_p": 64}
SWAP: Config = {"swap": True}
HALF_COLUMNS: Config = {"consumers_p": 1, "consumers_q": 2, "block_p": 64}
THREE: Config = {"consumers_p": 3, "block_p": 192}


def cluster(p: int, q: int) -> Config:
    return {"cluster_p": p, "cluster_q": q}


def candidate(changes: Config, w: Workload) -> Candidate:
    config = BASE | changes
    assert config.keys() == BASE.keys()
    assert all(config[key] in values for key, values in persistent.SPACE.items())
    assert (reason := persistent.illegal(config, w, H200)) is None, reason
    return render(persistent, config, w, H200, ORIGIN)


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
        return candidate(self.changes, self.w)

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
    # the rest
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
    ],
)
def test_illegal_configs_get_a_reason(changes: Config, words: str) -> None:
    reason = persistent.illegal(BASE | changes, gemm(512, 512, 512, layout="nt"), H200)
    assert reason is not None and words in reason


def test_grid_is_whole_clusters_that_fit() -> None:
    w = gemm(8192, 8192, 8192)
    for shape, blocks in (((1, 1), 132), ((2, 1), 132), ((2, 2), 128)):
        plan = candidate(cluster(*shape) | {"block_q": 128}, w).plan
        assert plan is not None
        assert evaluate(plan.launches[0].grid[0], w.axes | {"sms": 132}) == blocks
        assert evaluate(plan.launches[0].grid[0], {"M": 1, "N": 1, "K": 8, "sms": 132}) == shape[0] * shape[1]
        assert evaluate(plan.launches[0].grid[0], {"M": 0, "N": 1, "K": 8, "sms": 132}) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8192, 4096), (512, 512, 8192), (4096, 4096, 4096), (16384, 512, 512)])
def test_seeds_are_legal_and_differ(shape: tuple[int, int, int], layout: str) -> None:
    w = gemm(*shape, layout=layout)
    configs = persistent.seeds(w, H200)
    assert len({tuple(c.items()) for c in configs}) == len(configs) == 8
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
]


@pytest.mark.parametrize(("dtype", "layout", "changes"), MENU, ids=str)
def test_menu_compiles_without_spills(dtype: str, layout: str, changes: Config, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, log = nvrtc.compile_cubin(candidate(changes, gemm(4096, 4096, 4096, dtype, layout)).source, "sm_90a")
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
