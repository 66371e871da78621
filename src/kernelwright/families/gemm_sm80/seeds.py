"""Good configs without measuring: a short menu of tiles, ranked by the model for the shape and device at hand."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80 import model, space
from kernelwright.plan import cdiv
from kernelwright.records import Workload

TILES = (
    # block_m, block_n, warps_m, warps_n, warps_k
    (128, 256, 2, 4, 1),
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 128, 2, 4, 1),
    (128, 64, 2, 2, 1),
    (64, 128, 2, 2, 1),
    (64, 64, 2, 2, 1),
    (64, 64, 2, 2, 2),
    (64, 32, 2, 2, 1),
    (32, 64, 2, 2, 1),
    (64, 32, 2, 1, 2),
    (32, 32, 2, 2, 1),
    (32, 32, 2, 1, 2),
    (32, 32, 1, 1, 4),
    (16, 64, 1, 4, 1),
    (16, 128, 1, 4, 1),
    (16, 32, 1, 2, 2),
    (64, 16, 4, 1, 1),
    (128, 16, 4, 1, 1),
)
THREAD_TILES = (
    # block_m, block_n, thread_m, thread_n
    (128, 128, 8, 8),
    (128, 64, 8, 8),
    (64, 128, 8, 8),
    (64, 64, 8, 4),
    (64, 32, 4, 4),
    (32, 64, 4, 4),
    (32, 32, 4, 4),
)
STAGES = {32: (4, 6), 64: (2, 3, 4, 6, 8), 128: (3, 4, 5)}


def seeds(w: Workload, device: DeviceFacts, count: int = 4) -> tuple[Config, ...]:
    """Up to `count` legal configs with different tiles, best predicted first."""
    best: dict[tuple, tuple[float, int, Config]] = {}
    for order, c in enumerate(_menu(w, device)):
        if space.illegal(c, w, device):
            continue
        key = tuple(sorted((int(c["block_m"]), int(c["block_n"]))))  # a tile and its mirror image are one guess
        found = (model.seconds(c, w, device), order, c)
        if key not in best or found[:2] < best[key][:2]:
            best[key] = found
    return tuple(c for _, _, c in sorted(best.values(), key=lambda x: x[:2])[:count])


def _menu(w: Workload, device: DeviceFacts):
    k = w.axes["K"]
    if w.dtype == "fp32":
        for bm, bn, tm, tn in THREAD_TILES:
            for bk in (8, 16):
                for split in space.SPLITS[:8]:
                    yield _simt(bm, bn, tm, tn, bk, 3, split, w, device)
        return
    for bm, bn, wm, wn, wk in TILES:
        for bk in (32, 64, 128):
            if bk % (32 * wk) or (bk > 32 and bk >= 2 * max(k, 1)) or (bk == 128 and bm * bn > 64 * 64):
                continue  # a long step for a large tile leaves too few stages to hide memory
            for stages in STAGES[bk]:
                for split in space.SPLITS:
                    if split == 1 or split * 2 * bk <= k:
                        yield tensor_core(bm, bn, bk, (wm, wn, wk), stages, split, w, device)


def _raster(bm: int, w: Workload) -> int:
    """Grouped order pays once the rows of A of one wave no longer fit beside B in L2; a small grid is cheaper without divisions."""
    tiles_m, tiles_n = cdiv(w.axes["M"], bm), w.axes["N"] // 64
    return 8 if tiles_m > 8 and tiles_n > 8 else 0


def tensor_core(
    bm: int, bn: int, bk: int, warps: tuple[int, int, int], stages: int, split: int, w: Workload, device: DeviceFacts
) -> Config:
    """A config with the choices that follow from the shape filled in: copy width, tails, store path, raster, reduction."""
    vector = space.widest_vector(w)
    m, n, k = space.shape(w)
    c: Config = {
        "block_m": bm,
        "block_n": bn,
        "block_k": bk,
        "warps_m": warps[0],
        "warps_n": warps[1],
        "warps_k": warps[2],
        "stages": stages,
        "split_k": split,
        "reduction": _reduction(bm, bn, split, w, device),
        "raster_group": _raster(bm, w),
        "vector_bytes": vector,
        "tails": "none" if vector == 16 and not (m % bm or n % bn or k % bk) else "chunk",
        "staged_store": n % 8 == 0,
    }
    if space.registers(c, w) > space.register_limit(c) and not w.epilogue:
        c["reduction"] = "second-kernel"
    return c


def _simt(bm: int, bn: int, tm: int, tn: int, bk: int, stages: int, split: int, w: Workload, device: DeviceFacts) -> Config:
    return {
        "block_m": bm,
        "block_n": bn,
        "block_k": bk,
        "thread_m": tm,
        "thread_n": tn,
        "stages": stages,
        "split_k": split,
        "reduction": _reduction(bm, bn, split, w, device),
        "raster_group": _raster(bm, w),
        "vector_bytes": space.widest_vector(w),
    }


def _reduction(bm: int, bn: int, split: int, w: Workload, device: DeviceFacts) -> str:
    """One kernel saves a launch (about 2 us); but a few last blocks alone cannot read much: beyond 256 KB each, all should."""
    return "last-block" if w.epilogue or split * bm * bn * 4 <= 256 * 1024 else "second-kernel"


def warps_for(bm: int, bn: int, bk: int) -> tuple[int, int, int]:
    """Warps along M, N, K for a tile: at most 64 x 64 a warp, four warps or more where the tile has that many 16 x 16 pieces, as
    square as possible (fewest shared-memory reads a multiplication)."""
    wanted = 8 if bm * bn > 128 * 128 else 4
    options = [
        (abs(wm * wn - wanted), bm // wm + bn // wn, wm, wn)
        for wm in (1, 2, 3, 4, 8)
        for wn in (1, 2, 3, 4, 8)
        if bm % (16 * wm) == 0 and bn % (16 * wn) == 0 and (bm // wm) * (bn // wn) <= 64 * 64
    ]
    _, _, wm, wn = min(options)
    wk = 1
    while wm * wn * wk < 4 and bk % (64 * wk) == 0:
        wk *= 2
    return wm, wn, wk


def from_tile(bm: int, bn: int, bk: int, stages: int, split_k: int, w: Workload, device: DeviceFacts) -> Config | None:
    """The nearest legal config to a tile that another heuristic proposes, or None when nothing near is legal. Sizes snap to the
    nearest of the space's values; stages and split-K are lowered until the config fits."""
    values = space.space(w, device)

    def snap(key: str, x: int) -> int:
        return min((int(v) for v in values[key]), key=lambda v: (abs(v - x), v))

    bm, bn = snap("block_m", bm), snap("block_n", bn)
    bk, stages, split_k = snap("block_k", bk), snap("stages", stages), snap("split_k", split_k)
    for split in sorted((s for s in space.SPLITS if s <= split_k), reverse=True):
        for s in range(stages, 1, -1):
            if w.dtype == "fp32":
                options = [_simt(bm, bn, t, u, bk, s, split, w, device) for t, u in ((8, 8), (8, 4), (4, 8), (4, 4))]
            else:
                options = [tensor_core(bm, bn, b, warps_for(bm, bn, b), s, split, w, device) for b in (bk, 64, 32)]
            for c in options:
                if space.illegal(c, w, device) is None:
                    return c
    return None
