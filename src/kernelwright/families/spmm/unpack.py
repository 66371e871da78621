"""The space of unpack.cuh, its Config and its launch."""

from __future__ import annotations

from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.families.gemm_sm90.limits import too_much_smem
from kernelwright.families.spmm.model import unpacked
from kernelwright.families.spmm.ring import ELEMENT, flag
from kernelwright.problems.spmm import weights
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorArg, Workload

SPACE: Space = {"warps": (4, 8, 16), "blocks": (1, 2, 3, 4), "packing": ("at_once", "late")}

WARP_BYTES = 4480 + 16 * 272
"""Of shared memory: a record without zeros, and its 16 rows."""


def refuses(w: Workload) -> str | None:
    return None


def illegal(c: Config, w: Workload, device: DeviceFacts) -> str | None:
    """Why the config cannot run or cannot be worth running, or None. `blocks` run on a multiprocessor at a time."""
    return too_much_smem(int(c["blocks"]) * (int(c["warps"]) * WARP_BYTES + 1024), device)


def microseconds(c: Config, w: Workload, device: DeviceFacts) -> float:
    return unpacked(w.axes["M"] * w.axes["K"], 0.164 + 2 * (1 - weights(w).zeros / 100), device)


def struct(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        f"using Element = {ELEMENT[w.dtype]};",
        f"static constexpr int expected = {weights(w).expected};",
        f"static constexpr int warps = {c['warps']};",
        f"static constexpr bool vectors = {flag(w.axes['K'] % 8 == 0)};",
        f"static constexpr Packing packing = Packing::{c['packing']};",
    ]


def plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    warps, blocks = int(c["warps"]), int(c["blocks"])
    requires = ["align_records % 16 == 0"]
    if w.axes["K"] % 8 == 0:
        requires += ["K % 8 == 0", "ld_w % 8 == 0", "align_w % 16 == 0"]
    launch = Launch(
        kernel="unpack",
        args=(
            *(TensorArg(name=name) for name in ("records", "offsets", "facts", "w")),
            *(ScalarArg(ctype="i32", value=value) for value in ("M", "K", "ld_w")),
        ),
        grid=(f"min({blocks} * sms, cdiv(cdiv(M, 16) * cdiv(K, 128), {warps}))", 1, 1),
        block=(warps * 32, 1, 1),
        smem=warps * WARP_BYTES,
        pdl=device.sm >= 90,
    )
    return LaunchPlan(launches=(launch,), requires=tuple(requires))


SEEDS: tuple[Config, ...] = tuple(
    {"warps": warps, "blocks": blocks, "packing": packing}
    for warps, blocks in ((8, 3), (16, 1), (4, 4), (8, 2))
    for packing in ("late", "at_once")
)
