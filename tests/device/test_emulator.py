"""The emulator must see the faults it is for: each of these kernels is the real one with one line spoilt."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernelwright.families import family
from kernelwright.families.family import DeviceFacts
from kernelwright.families.gemm_sm90.sides import Side, load_map
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, ScalarArg, TensorArg, TensorMapArg, Workload

sys.path.insert(0, str(Path(__file__).parent / "emulator"))
import emulate

W = Workload(problem="gemm", axes={"M": 40, "N": 72, "K": 264}, dtype="fp16", layout="nt")
DEVICE = DeviceFacts(target="cuda:sm_80", sms=108, smem_per_block=163 * 1024)
BARRIER = "__syncthreads();                          // and for all"
SPOILT = {
    "wait one group too few": ("kw::cp_async_wait<Config::stages - 2>();  //", "kw::cp_async_wait<Config::stages - 1>();  //"),
    "no barrier in the loop": (BARRIER, "// and for all"),
    "no barrier in the epilogue": ("    __syncthreads();\n    constexpr int all", "    constexpr int all"),
    "k-contiguous fragments from the wrong rows": ("first_m + i * 16 + lane % 16", "first_m + i * 16 + lane % 15"),
    "tail of M not checked": ("pass * rows_per_pass < present ?", "true ?"),
    "tail of M stored": ("if (m >= M) continue;\n        unsigned", "unsigned"),
    "counter not reset": ("if (arrived == split - 1) atomicExch(counter, 0);", ""),
    "only half of a warp multiplies": ("            multiply(accumulators", "            if (lane < 16) multiply(accumulators"),
}


def candidates() -> dict[str, Candidate]:
    f = family("gemm_sm80")
    config = f.from_tile(32, 32, 32, 3, 2, W, DEVICE)
    assert config is not None
    good = f.render(config, W, DEVICE)
    result = {"as it is": good}
    for name, (line, spoilt) in SPOILT.items():
        assert good.source.count(line) == 1, f"{name}: the kernel no longer has that line"
        result[name] = good.replace(source=good.source.replace(line, spoilt))
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Candidate]:
    made = candidates()
    emulate.prepare([(c, 80) for c in made.values()], tmp_path_factory.mktemp("emulator"))
    return made


def right(candidate: Candidate, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-2, 3, shape, generator=generator).half() for shape in ((40, 264), (72, 264)))
    c = torch.full((40, 72), float("nan"), dtype=torch.float16)
    try:
        result = emulate.run(candidate, {"a": a, "b": b, "c": c}, W.axes, seed=seed, repeats=2)
    except AssertionError:
        return False
    return torch.equal(c, (a.double() @ b.double().t()).half()) and not result.workspace.any()


def test_the_kernel_passes(built: dict[str, Candidate]) -> None:
    assert all(right(built["as it is"], seed) for seed in range(3))


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_kernel_is_caught(built: dict[str, Candidate], name: str) -> None:
    assert not all(right(built[name], seed) for seed in range(3))


# ------------------------------------------------------------------------------------------------------------------ Hopper

FOLDER = Path(__file__).parents[2] / "src" / "kernelwright" / "families" / "gemm_sm90"
KERNELS = Path(__file__).parent / "emulator" / "kernels"
ORIGIN = Origin(kind="script")


@dataclass(frozen=True)
class Tile:
    """A config of kernels/gemm.cuh."""

    layout: str = "nt"
    block_q: int = 16
    dtype: str = "fp16"
    cluster: int = 1
    line: str = ""
    spoilt: str = ""

    @property
    def candidate(self) -> Candidate:
        p, q = Side("a", "M", self.layout[0] == "n"), Side("b", "N", self.layout[1] == "t")
        source = '#include "kernelwright/barrier.cuh"\n#include "kernelwright/copy.cuh"\n#include "kernelwright/layout.cuh"\n'
        source += (FOLDER / "operands.cuh").read_text("utf-8") + (KERNELS / "gemm.cuh").read_text("utf-8")
        changes = {
            "#pragma once": "",
            "Element = kw::f16;": f"Element = kw::{'bf16' if self.dtype == 'bf16' else 'f16'};",
            "p_k_contiguous = true": f"p_k_contiguous = {str(p.k_contiguous).lower()}",
            "q_k_contiguous = true": f"q_k_contiguous = {str(q.k_contiguous).lower()}",
            "block_q = 16": f"block_q = {self.block_q}",
            "cluster = 1;": f"cluster = {self.cluster};",
        } | ({self.line: self.spoilt} if self.line else {})
        for old, new in changes.items():
            assert source.count(old) == 1, f"the kernel has not one {old!r}"
            source = source.replace(old, new)
        launch = Launch(
            kernel="gemm",
            args=(
                load_map(p, 64, 64, self.cluster),
                load_map(q, self.block_q, 64),
                TensorArg(name="c"),
                *(ScalarArg(ctype="i32", value=x) for x in "MNK"),
            ),
            grid=(f"cdiv(cdiv(N, {self.block_q}), {self.cluster}) * {self.cluster}", "cdiv(M, 64)", 1),
            block=(160, 1, 1),
            cluster=(self.cluster, 1, 1),
            smem=2 * (64 + self.block_q) * 128 + 32,
        )
        return Candidate(kind="cuda", source=source, plan=LaunchPlan(launches=(launch,)), origin=ORIGIN)

    def check(self, m: int, n: int, k: int, seed: int) -> None:
        """A product of small integers; the rows of a and b are followed by NaN."""
        generator = torch.Generator().manual_seed(seed)
        dtype = TORCH_DTYPES[self.dtype]

        def stored(rows: int, columns: int) -> torch.Tensor:
            padded = torch.full((rows, -(-columns // 8) * 8 + 8), float("nan"), dtype=dtype)
            padded[:, :columns] = torch.randint(-2, 3, (rows, columns), generator=generator)
            return padded[:, :columns]

        a, b = stored(*((m, k) if self.layout[0] == "n" else (k, m))), stored(*((k, n) if self.layout[1] == "n" else (n, k)))
        c = torch.full((m, n), float("nan"))
        emulate.run(self.candidate, {"a": a, "b": b, "c": c}, {"M": m, "N": n, "K": k}, sm=90, seed=seed)
        expected = (a if self.layout[0] == "n" else a.t()).double() @ (b if self.layout[1] == "n" else b.t()).double()
        assert torch.equal(c, expected.float()), f"{int((c != expected).sum())} elements are wrong"


TILES = [
    *(
        Tile(layout, n, dtype)
        for layout, dtype in zip(("nn", "nt", "tn", "tt"), ("fp16", "bf16") * 2, strict=True)
        for n in (16, 48, 96, 256)
    ),
    Tile("nt", 8),
    *(Tile(layout, 32, cluster=2) for layout in ("nt", "tn")),
]
ARRIVE = "if (threadIdx.x % 32 < cluster) kw::barrier_arrive_cluster(kw::cluster_address(empty + slot * 8, threadIdx.x % 32));"
WAIT = "            kw::wgmma_wait<0>();\n"
SPOILT_TILES = {
    "operands not waited for": (1, "kw::barrier_wait(full + slot * 8, step / stages % 2);", "", ""),
    "empty slot not waited for": (1, "kw::barrier_wait(empty + slot * 8, (step / stages + 1) % 2);", "", ""),
    "empty slot of the wrong parity": (
        1,
        "(step / stages + 1) % 2",
        "step / stages % 2",
        "deadlock.* 1 threads from .* parity 0 of the mbarrier",
    ),
    "too few bytes announced": (1, "kw::barrier_expect(bar, bytes);", "kw::barrier_expect(bar, bytes - 128);", "mbarrier at offset 20480"),
    "too many bytes announced": (
        1,
        "kw::barrier_expect(bar, bytes);",
        "kw::barrier_expect(bar, bytes + 128);",
        "mbarrier at offset 20480 .*128 bytes",
    ),
    "slot never released": (1, ARRIVE, "", "deadlock.* wait for parity 0 of the mbarrier at offset 20496 .4 of 4 arrivals"),
    "slot released too early": (1, WAIT, "", "wgmma in flight"),
    "slot released before the wait": (1, f"{WAIT}            {ARRIVE}", f"            {ARRIVE}\n{WAIT}", "are wrong"),
    "no fence before wgmma": (1, "kw::wgmma_fence();", "", "wgmma_fence"),
    "no commit": (1, "kw::wgmma_commit();", "", "wgmma in flight|are wrong|share sums"),
    "barriers not fenced": (1, "kw::fence_barrier_init();", "", "fence_barrier_init"),
    "descriptor of the wrong row": (1, "sums, at, 0, at + PTile::bytes", "sums, at + 16, 0, at + PTile::bytes", ""),
    "only three warps multiply": (
        1,
        "    } else {\n        float sums",
        "    } else if (warp) {\n        float sums",
        "deadlock|are wrong",
    ),
    "released in one block only": (
        2,
        "kw::cluster_address(empty + slot * 8, threadIdx.x % 32)",
        "kw::cluster_address(empty + slot * 8, rank)",
        "",
    ),
    "cluster does not meet at the start": (
        2,
        "    kw::cluster_arrive();\n    kw::cluster_wait();  // at the start",
        "    __syncthreads();",
        "",
    ),
    "cluster does not meet at the end": (2, "    kw::cluster_arrive();\n    kw::cluster_wait();  // at the end", "", "has ended"),
    "both blocks load the same half": (2, "step * 64, rank, (1 << cluster) - 1", "step * 64, 0, (1 << cluster) - 1", "are wrong"),
    "half of the bytes announced": (2, "kw::barrier_expect(bar, bytes);", "kw::barrier_expect(bar, bytes / 2);", "mbarrier at offset"),
}


def spoilt_tile(name: str) -> Tile:
    cluster, line, spoilt, _ = SPOILT_TILES[name]
    return Tile(cluster=cluster, line=line, spoilt=spoilt)


MEET = "    kw::cluster_arrive();\n    kw::cluster_wait();\n"
SYNC = "kw::named_sync(1, 384);"
PARTS_SPOILT = {
    "reduce": {
        "not waited for": ("kw::barrier_wait_cluster(bar, 0);", "", ""),
        "cluster does not meet": (MEET, "", "no mbarrier|not fenced"),
        "counted at another block": ("(bar, owner)", "(bar, rank)", "one block that counts at another"),
    },
    "negate": {
        "no fence": ("kw::fence_async_proxy();", "", "fence_async_proxy"),
        "overwritten while stored": ("kw::tma_store_wait<0>();", "", "overwritten while a TMA store"),
        "no barrier": ("fence_async_proxy();\n        __syncthreads();", "fence_async_proxy();", ""),
    },
    "reverse": {
        "not waited for": (SYNC, "kw::named_arrive(1, 384);", "are wrong"),
        "another count": (SYNC, "kw::named_sync(1, 256);", "384|are wrong"),
        "another barrier": (SYNC, "kw::named_sync(2, 384);", "deadlock.*256 threads from 128 on wait for named barrier 2"),
        "too many registers": ("kw::shrink_registers<40>();", "", "waits for ever"),
        "registers of one warp": ("kw::shrink_registers<40>();", "if (threadIdx.x < 32) kw::shrink_registers<40>();", "not called alike"),
    },
    "matrices": {"other matrix": ("kw::stmatrix_x4_trans(row, r[0], r[1]", "kw::stmatrix_x4_trans(row, r[1], r[0]", "are wrong")},
}


def part(kernel: str, name: str = "") -> Candidate:
    includes = "".join(f'#include "kernelwright/{h}.cuh"\n' for h in ("barrier", "copy", "mma", "tma"))
    source = includes + (KERNELS / "parts.cuh").read_text("utf-8")
    if name:
        line, spoilt, _ = PARTS_SPOILT[kernel][name]
        assert source.count(line) >= 1, f"the kernel has no {line!r}"
        at = source.index(line, source.index(f" {kernel}(") if f" {kernel}(" in source else source.index(f"\n{kernel}("))
        source = source[:at] + spoilt + source[at + len(line) :]
    a, c = TensorArg(name="a"), TensorArg(name="c")
    maps = tuple(TensorMapArg(name=t, dims=(40, "M"), strides=("ld_a * 2",), box=(64, 8), swizzle="128B") for t in "ac")
    args = {"reduce": (a, c), "reverse": (a, c), "matrices": (c,), "negate": (*maps, ScalarArg(ctype="i32", value="M"))}[kernel]
    threads = {"reduce": 128, "negate": 64, "reverse": 384, "matrices": 32}[kernel]
    blocks = 4 if kernel == "reduce" else 1
    launch = Launch(kernel=kernel, args=args, grid=(blocks, 1, 1), block=(threads, 1, 1), cluster=(blocks, 1, 1), smem=2056)
    return Candidate(kind="cuda", source=source, plan=LaunchPlan(launches=(launch,)), origin=ORIGIN)


def run_part(kernel: str, name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if kernel == "negate":
        stored = torch.randn((20, 48), generator=generator).half()
        c = torch.full((20, 48), float("nan"), dtype=torch.float16)
        tensors, c, expected = {"a": stored[:, :40], "c": c[:, :40]}, c, torch.cat([-stored[:, :40], c[:, 40:]], 1)
    elif kernel == "matrices":
        c = torch.full((32, 16), -1, dtype=torch.int32)
        tensors, expected = {"c": c}, torch.tensor([0] * 10 + [0, 8, 16, 24, 32, 40], dtype=torch.int32).repeat(32, 1)
    else:
        a = torch.randint(-9, 9, (4, 512) if kernel == "reduce" else (1, 128), generator=generator).float()
        c = torch.full((1, a.shape[1]), float("nan"))
        tensors, expected = {"a": a, "c": c}, a.sum(0, keepdim=True) if kernel == "reduce" else a.flip(1)
    emulate.run(part(kernel, name), tensors, {"M": 20}, sm=90, seed=seed)
    assert torch.equal(c.nan_to_num(7), expected.nan_to_num(7)), f"{int((c != expected).sum())} elements are wrong"


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = [t.candidate for t in (*TILES, *map(spoilt_tile, SPOILT_TILES))]
    made += [part(kernel, name) for kernel, names in PARTS_SPOILT.items() for name in ("", *names)]
    emulate.prepare([(c, 90) for c in made], tmp_path_factory.mktemp("hopper"))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.layout}-{t.block_q}-{t.cluster}")
def test_tiles_by_tma_and_wgmma(tile: Tile) -> None:
    tile.check(64, tile.block_q, 64, seed=1)
    tile.check(100, tile.block_q + 24, 200, seed=2)  # tails on all sides, read as zeros
    tile.check(1, 1, 1, seed=3)
    tile.check(0, 8, 64, seed=3)  # no block, no launch


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", SPOILT_TILES)
def test_a_spoilt_tile_is_caught(name: str) -> None:
    must_fail(lambda seed: spoilt_tile(name).check(64, 32, 320, seed), SPOILT_TILES[name][3])


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kernel", PARTS_SPOILT)
def test_parts(kernel: str) -> None:
    for seed in range(5):
        run_part(kernel, "", seed)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("kernel", "name"), [(k, n) for k, names in PARTS_SPOILT.items() for n in names])
def test_a_spoilt_part_is_caught(kernel: str, name: str) -> None:
    must_fail(lambda seed: run_part(kernel, name, seed), PARTS_SPOILT[kernel][name][2])


def must_fail(check: Callable[[int], None], words: str) -> None:
    """For one of some seeds, with these words."""
    found = []
    for seed in range(4):
        try:
            check(seed)
        except AssertionError as error:
            found.append(str(error))
    assert found, "no seed shows the fault"
    assert any(re.search(words, text) for text in found), found
