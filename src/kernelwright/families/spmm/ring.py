"""What streams.cuh and three_layer.cuh have in common (ring.cuh): shared memory, launch, limits."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm90.limits import RESIDENT, ints, too_much_smem
from kernelwright.families.spmm.model import CLOCK, CLUSTER, ISSUE, START, shared, streamed
from kernelwright.plan import cdiv, evaluate
from kernelwright.problems.spmm import EPILOGUES
from kernelwright.records import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, Workload

TILES = (1, 2, 4)
"""Tiles of 8 rows of X that a warp multiplies with; for more rows all of W is read again. mma.sync reads X from shared memory for every 16
rows of W: at 32 rows of X as long as it decodes."""
MOST_RECORDS = 2**21
"""Of a matrix (4 billion weights): kernels divide them by kw::quotient, and times warps or multiprocessors 32 bits hold them."""
ELEMENT = {"fp16": "kw::f16", "bf16": "kw::bf16"}


@dataclass(frozen=True)
class Records:
    """Of a layout."""

    columns: int
    full: int
    """Bytes of a record without zeros: every ring holds one."""
    scratch: int = 0
    """Bytes of shared memory that each warp needs besides."""

    def ring_bytes(self, slots: int, largest: float) -> int:
        """Of a warp: so many records as random masks have them (all but one in a million are smaller; a larger one leaves fewer slots)."""
        return max(slots * cdiv(int(largest), 128), cdiv(self.full, 128)) * 128


def clusters(c: Config) -> str:
    """As many as run at a time, but no more than strips."""
    size = int(c["cluster"])
    return f"min(max(1, {RESIDENT[size - 1]} * sms // 132), cdiv(M, 16))"


def smem(c: Config, records: Records, ring_bytes: int, bulk: bool) -> str:
    """Barriers, owners, sums, X, rings; what blocks hand each other lies over X and the rings."""
    warps, cluster = ints(c, "warps", "cluster")
    n = f"min(N, {8 * int(c['tiles'])})"
    most = f"cdiv(M, 16 * max(1, {clusters(c)})) + 1"
    sums = f"({warps} + {most}) * {n} * 64"
    x = f"cdiv(cdiv(K, {records.columns}), {cluster}) * {n} * {2 * records.columns}"
    rings = warps * (ring_bytes + records.scratch)
    return f"{warps * (8 if bulk else 4) * 8 + 128} + ({most}) * 8 + {sums} + max({x} + {rings}, ({most}) * {n} * 64)"


def illegal(c: Config, w: Workload, device: DeviceFacts, records: Records, ring_bytes: int, registers: dict[int, int]) -> str | None:
    """Why the config cannot run or cannot be worth running, or None. `registers`: of a thread, by tiles."""
    warps, slots, cluster, tiles = ints(c, "warps", "slots", "cluster", "tiles")
    if tiles > 1 and w.axes["N"] <= 4 * tiles:
        return f"{w.axes['N']} rows of X need fewer than {tiles} tiles"
    if device.sm < 90 and cluster > 1:
        return "clusters need sm_90"
    if device.sm < 90 and slots > 4:
        return f"{slots} slots: cp.async waits for 4 at most"
    if warps * 32 * registers[tiles] > 65536:
        return f"about {registers[tiles]} registers a thread are needed, {warps * 32} threads leave {65536 // (warps * 32)}"
    if cluster > max(1, cdiv(w.axes["K"], records.columns)):
        return f"K = {w.axes['K']} has fewer than {cluster} records"
    used = evaluate(smem(c, records, ring_bytes, device.sm >= 90), {**w.axes, "sms": device.sms})
    return too_much_smem(used, device)


def microseconds(c: Config, w: Workload, device: DeviceFacts, records: Records, record_bytes: float, instructions: float) -> float:
    """Of the launch. `instructions`: of a warp for a record, with one tile of X."""
    warps, slots, cluster, tiles = ints(c, "warps", "slots", "cluster", "tiles")
    n, m, k = (w.axes[x] for x in "NMK")
    per_strip, strips = cdiv(k, records.columns), cdiv(m, 16)
    running = max(1, int(evaluate(clusters(c), {**w.axes, "sms": device.sms})))
    mine, columns = cdiv(strips, running), cdiv(per_strip, cluster)
    each = cdiv(mine * columns, warps)  # the busiest warp's: the others wait for it
    of_x = (tiles - 1) * records.columns / 16 * 1.5  # an mma each k-step of 16 columns, and half a load of X
    rows = min(n, 8 * tiles)
    sums = (mine + warps / cluster) * rows * 16 * 12 / (CLOCK * ISSUE * 32)
    once = (
        streamed(each * warps, record_bytes, instructions + of_x, warps, slots)
        + shared(rows * columns * records.columns * 2)
        + (CLUSTER if cluster > 1 else 0.0)
        + sums
    )
    return START + once * cdiv(n, 8 * tiles)


def flag(x: object) -> str:
    return "true" if x else "false"


def flags(w: Workload) -> str:
    """The line of Config on the epilogue."""
    steps = w.epilogue.split("+")
    return "static constexpr bool " + ", ".join(f"{step.replace('-', '_')} = {flag(step in steps)}" for step in EPILOGUES) + ";"


def struct(
    c: Config, w: Workload, device: DeviceFacts, records: Records, ring_bytes: int, prefetched: int = 0, mean: float = 0.0
) -> list[str]:
    """`prefetched`: records of a warp that are asked for where they would be if all had `mean` bytes."""
    return [
        f"using Element = {ELEMENT[w.dtype]};",
        f"static constexpr int tiles = {c['tiles']};",
        f"static constexpr int warps = {c['warps']}, ring_bytes = {ring_bytes};",
        f"static constexpr int scratch_bytes = {records.scratch}, cluster = {c['cluster']};",
        f"static constexpr bool bulk = {flag(device.sm >= 90)}, x_vectors = {flag(w.axes['K'] % 8 == 0)};",
        f"static constexpr int prefetched = {prefetched}, record_sixteenths = {round(16 * mean)};",
        flags(w),
    ]


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


def plan(c: Config, w: Workload, device: DeviceFacts, records: Records, ring_bytes: int) -> LaunchPlan:
    warps, cluster = ints(c, "warps", "cluster")
    used = smem(c, records, ring_bytes, device.sm >= 90)
    requires = [
        "align_records % 16 == 0",
        f"cdiv(M, 16) * cdiv(K, {records.columns}) < {MOST_RECORDS}",
        f"{used} <= {device.smem_per_block}",
    ]
    if w.axes["K"] % 8 == 0:
        requires += ["K % 8 == 0", "ld_x % 8 == 0", "align_x % 16 == 0"]
    launch = Launch(
        kernel="spmm",
        args=(*args(w), ScalarArg(ctype="i64", value="numel_records * 4")),
        grid=(f"{clusters(c)} * {cluster}", f"cdiv(N, {8 * int(c['tiles'])})", 1),
        block=(warps * 32, 1, 1),
        cluster=(cluster, 1, 1),
        smem=used,
        pdl=device.sm >= 90,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(requires))
