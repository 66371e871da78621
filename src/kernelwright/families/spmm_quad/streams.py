"""The space of streams.cuh: which configs are legal and why, its Config and its launch."""

from __future__ import annotations

import math

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90.limits import RESIDENT, ints, too_much_smem
from kernelwright.plan import cdiv, evaluate
from kernelwright.problems.spmm import EPILOGUES, weights
from kernelwright.records import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, Workload

SPACE: Space = {
    "warps": (4, 8, 12, 16, 20, 24, 32),
    "slots": (1, 2, 3, 4, 6, 8),
    "cluster": (1, 2, 3, 4, 6, 8, 16),
    "packing": ("at_once", "late"),
}

TILES = (1, 2, 4)
"""Tiles of 8 rows of X that a warp multiplies with. mma.sync reads X from shared memory for every 16 rows of W: at 32 rows of X as long as
it decodes."""
FULL_RECORD = 4480
"""Bytes of a record without zeros, with 16-bit prefixes: every ring holds one."""
MOST_RECORDS = 2**24
"""Of a matrix (34 billion weights): times warps or multiprocessors, 32 bits hold it."""
REGISTERS = {1: 64, 2: 80, 4: 104}
"""Below which it spills, by tiles (ptxas 13.x)."""


def tiles(w: Workload) -> int:
    return next((t for t in TILES if w.axes["N"] <= 8 * t), 0)


def ring_bytes(c: Config, w: Workload) -> int:
    """Of a warp: `slots` records as random masks have them (all but one in a million are smaller; a larger one leaves fewer slots)."""
    kept = 1 - weights(w).zeros / 100
    largest = 320 + 2 * (2048 * kept + 5 * math.sqrt(2048 * kept * (1 - kept)))
    return max(int(c["slots"]) * cdiv(int(largest), 128) * 128, FULL_RECORD)


def clusters(c: Config) -> str:
    """As many as run at a time, but no more than strips."""
    size = int(c["cluster"])
    return f"min(max(1, {RESIDENT[size - 1]} * sms // 132), cdiv(M, 16))"


def smem(c: Config, w: Workload, bulk: bool) -> str:
    """Barriers, sums, X, rings; what blocks hand each other lies over X and the rings."""
    warps, cluster = ints(c, "warps", "cluster")
    most = f"cdiv(M, 16 * max(1, {clusters(c)})) + 1"
    sums = f"({warps} + {most}) * N * 64"
    x = f"cdiv(cdiv(K, 128), {cluster}) * N * 256"
    return f"{warps * (8 if bulk else 4) * 8 + 128} + {sums} + max({x} + {warps * ring_bytes(c, w)}, ({most}) * N * 64)"


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    warps, slots, cluster = ints(c, "warps", "slots", "cluster")
    if device.sm < 90 and cluster > 1:
        return "clusters need sm_90"
    if device.sm < 90 and slots > 4:
        return f"{slots} slots: cp.async waits for 4 at most"
    registers = REGISTERS[tiles(w)]
    if warps * 32 * registers > 65536:
        return f"about {registers} registers a thread are needed, {warps * 32} threads leave {65536 // (warps * 32)}"
    if cluster > max(1, cdiv(w.axes["K"], 128)):
        return f"K = {w.axes['K']} has fewer than {cluster} records"
    used = evaluate(smem(c, w, device.sm >= 90), {**w.axes, "sms": device.sms})
    return too_much_smem(used, device)


def flag(x: object) -> str:
    return "true" if x else "false"


def flags(w: Workload) -> str:
    """The line of Config on the epilogue."""
    steps = w.epilogue.split("+")
    return "static constexpr bool " + ", ".join(f"{step.replace('-', '_')} = {flag(step in steps)}" for step in EPILOGUES) + ";"


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        f"using Element = {ELEMENT[w.dtype]};",
        f"static constexpr int expected = {weights(w).expected};",
        f"static constexpr int tiles = {tiles(w)};",
        f"static constexpr int warps = {c['warps']}, ring_bytes = {ring_bytes(c, w)}, cluster = {c['cluster']};",
        f"static constexpr bool bulk = {flag(device.sm >= 90)}, x_vectors = {flag(w.axes['K'] % 8 == 0)};",
        f"static constexpr Packing packing = Packing::{c['packing']};",
        flags(w),
    ]


ELEMENT = {"fp16": "kw::f16", "bf16": "kw::bf16"}


def args(w: Workload) -> tuple[Arg, ...]:
    steps, null, zero = w.epilogue.split("+"), ScalarArg(ctype="i64", value=0), ScalarArg(ctype="i32", value=0)
    added = [(name, step) for name, step in (("factor", "silu-mul"), ("addend", "residual"))]
    return (
        TensorArg(name="x"),
        TensorArg(name="records"),
        TensorArg(name="offsets"),
        TensorArg(name="facts"),
        TensorArg(name="bias") if "bias" in steps else null,
        *(TensorArg(name=name) if step in steps else null for name, step in added),
        TensorArg(name="y"),
        *(ScalarArg(ctype="i32", value=axis) for axis in "NMK"),
        ScalarArg(ctype="i32", value="ld_x"),
        *(ScalarArg(ctype="i32", value=f"ld_{name}") if step in steps else zero for name, step in added),
        ScalarArg(ctype="i32", value="ld_y"),
    )


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    warps, cluster = ints(c, "warps", "cluster")
    requires = [
        "align_records % 16 == 0",
        f"cdiv(M, 16) * cdiv(K, 128) < {MOST_RECORDS}",
        f"N <= {8 * tiles(w)}",
        f"{smem(c, w, device.sm >= 90)} <= {device.smem_per_block}",
    ]
    if w.axes["K"] % 8 == 0:
        requires += ["K % 8 == 0", "ld_x % 8 == 0", "align_x % 16 == 0"]
    launch = Launch(
        kernel="spmm",
        args=args(w),
        grid=(f"{clusters(c)} * {cluster} * min(N, 1)", 1, 1),
        block=(warps * 32, 1, 1),
        cluster=(cluster, 1, 1),
        smem=smem(c, w, device.sm >= 90),
        pdl=True,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(requires))


SEEDS: tuple[Config, ...] = tuple(
    {"warps": warps, "slots": slots, "cluster": cluster, "packing": "at_once"}
    for cluster in (2, 4, 1, 8)
    for warps, slots in ((16, 3), (24, 2), (20, 3), (32, 2), (8, 4))
)
"""By what won in scratch kernels on an H200: clusters of 2, 16 warps, 3 slots; larger clusters as X and sums grow."""


def refuses(w: Workload) -> str | None:
    return None if tiles(w) else f"it multiplies up to {8 * TILES[-1]} rows of X, not {w.axes['N']}"
