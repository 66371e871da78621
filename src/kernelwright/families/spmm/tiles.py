"""The space of tiles.cuh: which configs are legal and why, its Config and its launches."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90.limits import ints, too_many_registers, too_much_smem
from kernelwright.families.spmm.model import CLOCK, KERNEL, START, shared, streamed
from kernelwright.families.spmm.ring import ELEMENT, MOST_RECORDS, args, flags
from kernelwright.families.spmm.streams import ring_bytes
from kernelwright.plan import cdiv
from kernelwright.problems.spmm import weights
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorArg, TensorMapArg, Workload, WorkspaceArg

SPACE: Space = {"groups": (1, 2, 3, 4, 5, 6), "slots": (1, 2, 3, 4, 6, 8), "stages": (2, 3, 4, 6, 8)}

WGMMA_N = (8, 16, 32, 48, 64, 96, 128)
INSTRUCTIONS = 5.8 * 64
"""Of a warp for a record (sm_90a)."""
OTHER_REGISTERS = 46
"""Beside the sums, below which it spills and wgmma is serialised (ptxas 13.x)."""


def columns(w: Workload) -> int:
    """Rows of X, padded to what wgmma multiplies with; 0 where there is none."""
    return next((n for n in WGMMA_N if w.axes["N"] <= n), 0)


def refuses(w: Workload) -> str | None:
    if not columns(w):
        return f"it multiplies up to {WGMMA_N[-1]} rows of X, not {w.axes['N']}"
    if w.axes["K"] % 8:
        return f"TMA needs rows of a multiple of 16 bytes (x: {w.axes['K']} elements)"
    return "it has nothing for empty matrices" if 0 in w.axes.values() else None


def smem_bytes(c: Config, w: Workload) -> int:
    """Stages of X, rings of records, barriers."""
    groups, stages = ints(c, "groups", "stages")
    return stages * columns(w) * 256 + 4 * groups * (ring_bytes(c, w) + 64) + stages * 16


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None."""
    groups = int(c["groups"])
    registers = columns(w) // 2 + OTHER_REGISTERS
    most = min(255, 65536 // (cdiv(128 * groups + 32, 128) * 128) // 8 * 8)
    return too_many_registers(registers, most, 128 * groups + 32) or too_much_smem(smem_bytes(c, w), device)


def microseconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    """Both launches."""
    groups, slots = ints(c, "groups", "slots")
    n, warps = columns(w), 4 * groups
    steps = cdiv(cdiv(w.axes["M"], 64 * groups) * cdiv(w.axes["K"], 128), device.sms)  # of each block, all warps with a record each
    kept = 1 - weights(w).zeros / 100
    multiplying = steps * groups * 8 * n / 2 / CLOCK  # wgmma m64nNk16: N / 2 cycles of the four tensor cores
    decoding = streamed(steps * warps, 336 + 4096 * kept, INSTRUCTIONS, warps, slots)
    return START + max(multiplying, decoding) + shared(steps * n * 256) + KERNEL


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        f"using Element = {ELEMENT[w.dtype]};",
        f"static constexpr int expected = {weights(w).expected};",
        f"static constexpr int columns = {columns(w)};",
        f"static constexpr int groups = {c['groups']}, stages = {c['stages']}, ring_bytes = {ring_bytes(c, w)};",
        flags(w),
    ]


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    n, groups = columns(w), int(c["groups"])
    tiles = f"cdiv(M, {64 * groups})"
    blocks = f"min(sms, {tiles} * cdiv(K, 128))"
    kernel_args = args(w)
    x, records, rest = kernel_args[0], kernel_args[1:8], kernel_args[8:]
    assert isinstance(x, TensorArg)
    map_x = TensorMapArg(name="x", dims=("K", "N"), strides=("ld_x * 2",), box=(64, n), swizzle="128B")
    multiply = Launch(
        kernel="spmm",
        args=(map_x, *records, WorkspaceArg(), *(a for a in rest if getattr(a, "value", "") != "ld_x")),
        grid=(blocks, 1, 1),
        block=(128 * groups + 32, 1, 1),
        smem=smem_bytes(c, w),
        pdl=True,
    )
    *sizes, _, ld_factor, ld_addend, ld_y = rest
    add = Launch(
        kernel="add_parts",
        args=(WorkspaceArg(), *records[3:], *sizes, ScalarArg(ctype="i32", value=blocks), ld_factor, ld_addend, ld_y),
        grid=(tiles, n // 8, 1),
        block=(128 * groups, 1, 1),
        pdl=True,
    )
    return LaunchPlan(
        launches=(multiply, add),
        workspace=f"({blocks} + {tiles}) * {64 * groups * n * 4}",
        requires=(
            "align_records % 16 == 0",
            f"cdiv(M, 16) * cdiv(K, 128) < {MOST_RECORDS}",
            f"N <= {n}",
            "min(N, M, K) > 0",
            "ld_x % 8 == 0",
            "align_x % 16 == 0",
        ),
    )


SEEDS: tuple[Config, ...] = tuple(
    {"groups": groups, "slots": slots, "stages": stages}
    for groups in (4, 6, 5, 3, 2)
    for slots, stages in ((3, 4), (2, 4), (2, 3), (4, 6), (2, 2), (1, 4))
)
"""Guesses. A warp waits for a quad's values before it looks at the next quad (decode.cuh), so that 16 to 24 warps are needed to hide it."""
