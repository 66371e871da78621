"""gemm_sm90's ring: the kernel's own text in the emulator, exact on small integers, and what NVRTC makes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90 import render, ring
from kernelwright.families.gemm_sm90.family import Ring
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.targets import launch, nvrtc, sass
from kernelwright.targets.target import TargetUnavailable

sys.path.insert(0, str(Path(__file__).parents[1] / "device" / "emulator"))
import emulate

DEVICE = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def workload(m: int, n: int, k: int, layout: str = "nn", dtype: str = "fp16") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


def config(bp: int, bq: int, stages: int = 3, *, cluster: tuple[int, int] = (1, 1), split_k: int = 1, **more: int | bool) -> Config:
    c: Config = {"swap": False, "block_p": bp, "block_q": bq, "block_k": 64, "stages": stages, "subtiles": 1}
    return c | {"cluster_p": cluster[0], "cluster_q": cluster[1], "split_k": split_k, "raster_group": 2} | more


def rendered(c: Config, w: Workload) -> Candidate:
    return render.render(ring, c, w, DEVICE, Origin(kind="family", name="gemm_sm90_ring"))


# Rows: layout, dtype, (M, N, K), config. M, N, K miss the tiles; strides and addresses of a and b must be multiples of 16 bytes.
CASES: tuple[tuple[str, str, tuple[int, int, int], Config], ...] = (
    ("nn", "fp16", (72, 136, 200), config(64, 64)),
    ("nt", "bf16", (70, 43, 200), config(64, 8, 2, raster_group=0)),
    ("tn", "fp16", (136, 40, 328), config(128, 48, 4)),
    ("tt", "bf16", (72, 50, 136), config(64, 32, 2, block_k=128)),
    ("nn", "bf16", (20, 136, 264), config(64, 16, swap=True)),
    ("nt", "fp16", (9, 100, 264), config(64, 8, swap=True, raster_group=0)),
    ("tn", "bf16", (40, 200, 200), config(128, 48, swap=True)),
    ("tt", "fp16", (40, 200, 328), config(64, 32, swap=True, block_k=128, stages=2)),
    ("nn", "fp16", (136, 72, 136), config(128, 64, subtiles=2)),
    ("nt", "bf16", (40, 137, 136), config(128, 32, subtiles=2, swap=True)),
    ("nn", "fp16", (136, 72, 328), config(64, 64, 2, cluster=(2, 1))),
    ("nt", "bf16", (72, 75, 328), config(64, 32, 2, cluster=(1, 2))),
    ("tn", "fp16", (40, 200, 264), config(64, 32, 2, cluster=(2, 1), swap=True)),
    ("tt", "bf16", (72, 72, 264), config(64, 32, 2, cluster=(1, 2), swap=True)),
    ("tn", "fp16", (136, 72, 264), config(64, 32, 2, cluster=(2, 2), subtiles=1)),
    ("nn", "fp16", (72, 72, 328), config(64, 48, 2, split_k=2)),
    ("nt", "bf16", (70, 43, 456), config(64, 32, 2, split_k=3)),
    ("tn", "fp16", (72, 40, 584), config(64, 16, 2, split_k=4)),
    ("tt", "bf16", (136, 72, 584), config(128, 32, 2, split_k=8)),
    ("nn", "bf16", (20, 72, 328), config(64, 16, 2, split_k=2, swap=True)),
    ("nt", "fp16", (9, 100, 456), config(64, 8, 2, split_k=3, swap=True)),
    ("tn", "bf16", (24, 136, 584), config(128, 32, 2, split_k=4, swap=True, subtiles=2)),
    ("tt", "fp16", (72, 72, 584), config(64, 48, 2, split_k=8, swap=True)),
    ("nn", "fp16", (136, 40, 392), config(64, 16, 2, cluster=(2, 1), split_k=3)),
    ("nt", "bf16", (72, 75, 328), config(64, 32, 2, cluster=(1, 2), split_k=2, swap=True)),
    ("nn", "fp16", (72, 256, 904), config(64, 256, 5, split_k=3)),  # no room beside the ring for partial sums
    ("nt", "fp16", (200, 130, 392), config(128, 192, 4, split_k=2, swap=True, cluster=(1, 2))),  # the same, with multicast
    ("nn", "fp16", (72, 72, 1032), config(64, 8 * 2, 2, split_k=16)),
)


def tensors(w: Workload, seed: int, normal: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stored operands, and what C must be."""
    m, n, k = w.axes.values()
    generator = torch.Generator().manual_seed(seed)
    stored = {}
    for name, shape in (("a", (m, k) if w.layout[0] == "n" else (k, m)), ("b", (k, n) if w.layout[1] == "n" else (n, k))):
        padded = torch.zeros(shape[0], (shape[1] + 7) // 8 * 8 + 8, dtype=DTYPES[w.dtype])
        values = torch.randn(shape, generator=generator) if normal else torch.randint(-2, 3, shape, generator=generator).float()
        padded[:, : shape[1]] = values
        stored[name] = padded[:, : shape[1]]
    a = stored["a"] if w.layout[0] == "n" else stored["a"].t()
    b = stored["b"] if w.layout[1] == "n" else stored["b"].t()
    return stored, (a.double() @ b.double()).to(DTYPES[w.dtype])


def run(candidate: Candidate, w: Workload, stored: dict[str, torch.Tensor], seed: int, padding: int = 0, offset: int = 0) -> torch.Tensor:
    """C, which lies between guards in rows of N + padding elements, `offset` elements from an aligned address."""
    m, n, _ = w.axes.values()
    ld = n + padding
    whole = torch.full((64 + m * ld + 64,), -77.0, dtype=DTYPES[w.dtype])
    start = (-whole.data_ptr() // 2) % 8 + offset
    c = whole[start : start + m * ld].view(m, ld)[:, :n]
    guard = torch.ones_like(whole, dtype=torch.bool)
    guard[start : start + m * ld].view(m, ld)[:, :n] = False
    c.fill_(float("nan"))
    emulate.run(candidate, {**stored, "c": c}, w.axes, sm=90, seed=seed)
    assert (whole[guard] == -77.0).all(), "wrote outside C"
    return c


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Workload, Candidate]]:
    made = [(workload(*shape, layout, dtype), c) for layout, dtype, shape, c in CASES]
    pairs = [(w, rendered(c, w)) for w, c in made]
    emulate.prepare([(candidate, 90) for _, candidate in pairs], tmp_path_factory.mktemp("emulator"))
    return pairs


@pytest.mark.parametrize("case", range(len(CASES)))
def test_exact_on_small_integers(built: list[tuple[Workload, Candidate]], case: int) -> None:
    w, candidate = built[case]
    assert ring.illegal(CASES[case][3], w, DEVICE) is None
    for seed, padding, offset in ((1, (-w.axes["N"]) % 8, 0), (2, 3, 1)):
        stored, expected = tensors(w, seed)
        assert torch.equal(run(candidate, w, stored, seed, padding, offset), expected)


@pytest.mark.parametrize("case", [10, 17, 18, 24])
def test_bit_equal_run_to_run(built: list[tuple[Workload, Candidate]], case: int) -> None:
    w, candidate = built[case]
    stored, expected = tensors(w, 3, normal=True)
    first = run(candidate, w, stored, 1)
    assert torch.allclose(first.double(), expected.double(), rtol=2e-2, atol=2e-2)
    for seed in (2, 3):
        assert torch.equal(run(candidate, w, stored, seed), first)


@pytest.mark.parametrize("case", [0, 13, 17, 24])
def test_serves_other_shapes(built: list[tuple[Workload, Candidate]], case: int) -> None:
    """A plan stays in the axes' names: also with fewer steps of K than parts, and with less than a tile."""
    w, candidate = built[case]
    for shape in ((8, 8, 8), (136, 80, 72)):
        other = workload(*shape, w.layout, w.dtype)
        stored, expected = tensors(other, 5)
        assert torch.equal(run(candidate, other, stored, 5), expected)


@pytest.mark.parametrize(
    ("layout", "c"),
    [
        ("nn", config(64, 64, 8)),
        ("tt", config(192, 192, 4, cluster=(1, 2), split_k=3, swap=True)),
        ("nt", config(128, 224, 5, subtiles=2)),
        ("tn", config(64, 32, 8, block_k=128, split_k=16)),
    ],
)
def test_compiles_without_spills(layout: str, c: Config, tmp_path: Path) -> None:
    w = workload(4096, 4096, 16384, layout, "bf16")
    assert ring.illegal(c, w, DEVICE) is None
    try:
        cubin, log = nvrtc.compile_cubin(rendered(c, w).source, "sm_90a")
    except TargetUnavailable as missing:
        pytest.skip(str(missing))
    resources, rest = nvrtc.parse_resources(log)
    assert resources["gemm"].spill_stores == resources["gemm"].stack == 0
    assert not rest, "ptxas serialises wgmma, or warns of something else"
    (tmp_path / "gemm.cubin").write_bytes(cubin)
    mix = sass.sass_mix(tmp_path / "gemm.cubin")
    assert mix["HGMMA"] == int(c["block_k"]) // 16 * int(c["subtiles"])


def test_an_empty_matrix_launches_nothing() -> None:
    plan = ring.plan(config(64, 64), workload(64, 64, 64))
    names = {"M": 0, "N": 64, "K": 64, "ld_a": 64, "ld_b": 64, "ld_c": 64}
    stored = {name: launch.Tensor(0, "fp16") for name in "abc"}
    assert launch.pack(plan, names, stored, 0, 0) == ()


REASONS: tuple[tuple[Config, str], ...] = (
    (config(64, 64, subtiles=2), "no multiple of 2 subtiles"),
    (config(64, 8), "needs a multiple of 16"),
    (config(64, 64, split_k=8, cluster=(2, 2)), "a cluster of 32 blocks"),
    (config(64, 64, cluster=(2, 4)), "at most 4 share loads"),
    (config(256, 256, 2, subtiles=2), "registers a thread"),
    (config(128, 256, 5), "KB of shared memory"),
    (config(64, 64, 2, split_k=10), "fewer than 10 steps"),
    (config(64, 16, swap=True, cluster=(4, 1)), "cuts the 8 rows"),
    (config(256, 64, cluster=(4, 1)), "there are only 2 tiles"),
)


@pytest.mark.parametrize(("c", "reason"), REASONS)
def test_reasons(c: Config, reason: str) -> None:
    assert reason in (ring.illegal(c, workload(512, 512, 512), DEVICE) or "legal")


def test_seeds_are_legal() -> None:
    for shape in ((512, 512, 512), (1024, 1024, 16384), (64, 4096, 4096), (8, 8, 8), (16384, 16384, 128)):
        for layout in ("nn", "nt", "tn", "tt"):
            w = workload(*shape, layout)
            found = Ring().seeds(w, DEVICE)
            assert found and all(ring.illegal(c, w, DEVICE) is None and set(c) == set(ring.SPACE) for c in found)
