"""What was measured of a kernel, as lines for a prompt: speed, share of the roofline, registers, occupancy, instructions, sensors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.families.family import DeviceFacts
from kernelwright.plan import PlanError, evaluate
from kernelwright.problems import problem_of
from kernelwright.records import Build, Candidate, KernelResources, Trial, Workload
from kernelwright.targets.target import TargetUnavailable

OPCODES = 30
"""Most frequent ones. A small kernel has about 25 in all, and its one load is among the rare ones."""
_REGISTERS, _THREADS, _BLOCKS, _RESERVED = 65_536, 2_048, 32, 1_024
"""Of one multiprocessor of sm_80 and sm_90 (CUDA programming guide, compute capabilities); shared memory that a block costs on top."""
_SHARED = {80: 164 * 1024, 90: 228 * 1024}


def roofline_us(w: Workload, peaks: Mapping[str, Any], warm: bool) -> tuple[float, str] | None:
    """Microseconds that no kernel can beat, and which limit says so (`memory`, `arithmetic`); None without measured peaks."""
    cost = problem_of(w).cost(w)
    flops = peaks.get("flops", {}).get(cost.unit)
    bandwidth = peaks.get("bandwidth_warm" if warm else "bandwidth_cold")
    if not flops or not bandwidth:
        return None
    return max((1e6 * cost.bytes / bandwidth, "memory"), (1e6 * cost.flops / flops, "arithmetic"))


def report(trial: Trial, device: DeviceFacts, peaks: Mapping[str, Any], brief: bool = False) -> list[str]:
    """Lines on one right Trial. `brief`: on the mode that was timed first, and on registers; nothing is disassembled."""
    w, lines = trial.workload, []
    cost = problem_of(w).cost(w)
    for timing in trial.timings[: 1 if brief else None]:
        us = timing.median
        line = f"{timing.mode}: {us:.2f} µs ({cost.bytes / us / 1e3:.1f} GB/s, {cost.flops / us / 1e3:.1f} GFLOP/s"
        if limit := roofline_us(w, peaks, warm=timing.mode == "device-warm"):
            line += f", {100 * limit[0] / us:.0f} % of what the {limit[1]} allows"
        lines.append(line + ")")
    compared = [c for c in trial.comparisons if not brief or c.mode == trial.timings[0].mode]
    lines += [f"{c.ratio:.2f}x the speed of {c.rival} ({c.low:.2f} to {c.high:.2f}), {c.mode}: {c.outcome}" for c in compared]
    lines += resources(trial.candidate, trial.build, w, device, brief)
    if trial.sensors and not brief:
        lines.append("sensors: " + ", ".join(f"{name} {value:g}" for name, value in sorted(trial.sensors.items())))
    return lines


def resources(candidate: Candidate, build: Build | None, w: Workload, device: DeviceFacts, brief: bool = False) -> list[str]:
    """Lines on what the compiler made of it; `brief`: without the instructions."""
    lines = []
    for name, r in (build.resources if build else {}).items():
        line = f"kernel {name}: {r.registers} registers, spills {r.spill_stores} B stored {r.spill_loads} B loaded, {r.smem} B static smem"
        if found := occupancy(candidate, name, r, w, device):
            line += f", occupancy {found[0]:.0%} (limited by {found[1]})"
        lines.append(line)
    if not brief and (mix := instructions(build, candidate.kind)):
        lines.append("instructions in the machine code: " + ", ".join(f"{n} {op}" for op, n in mix.items()))
    return lines


def occupancy(candidate: Candidate, kernel: str, r: KernelResources, w: Workload, device: DeviceFacts) -> tuple[float, str] | None:
    """Resident threads over the most that a multiprocessor holds, and what limits them. Registers are given out 256 a warp at a time."""
    shared = _SHARED.get(device.sm)
    launch = next((one for one in candidate.plan.launches if one.kernel == kernel), None) if candidate.plan else None
    if shared is None or launch is None:
        return None
    try:
        threads, smem = 1, r.smem + evaluate(launch.smem, names(w, device)) + _RESERVED
        for side in launch.block:
            threads *= evaluate(side, names(w, device))
    except PlanError:
        return None
    if not 0 < threads <= 1024:
        return None
    warps = -(-threads // 32)
    per_block = max(1, warps * -(-32 * max(1, r.registers) // 256) * 256)
    blocks, why = min(
        (_REGISTERS // per_block, "registers"),
        (shared // smem, "shared memory"),
        (_THREADS // (warps * 32), "threads"),
        (_BLOCKS, "blocks"),
    )
    return blocks * warps * 32 / _THREADS, why


def names(w: Workload, device: DeviceFacts) -> dict[str, int]:
    """Values for plan expressions, with tensors stored without padding and aligned as we allocate them."""
    found = dict(w.axes) | {"sms": device.sms}
    for spec in problem_of(w).tensors(w):
        found |= {f"ld_{spec.name}": spec.shape[-1] if spec.shape else 1, f"numel_{spec.name}": spec.numel, f"align_{spec.name}": 256}
    return found


def instructions(build: Build | None, kind: str) -> dict[str, int]:
    """How often the most frequent opcodes stand in the artifact; empty where it is gone, or cannot be disassembled here."""
    if build is None or not build.artifact or not Path(build.artifact).is_file():
        return {}
    if kind == "cpu":
        return _vector_mix(build.artifact)
    from kernelwright.targets.sass import sass_mix

    try:
        return dict(list(sass_mix(build.artifact).items())[:OPCODES])
    except (TargetUnavailable, ValueError, OSError):
        return {}


_X86 = re.compile(r"^\s*[0-9a-f]+:\s+([a-z]\w*)\s*(.*)$", re.MULTILINE)


def _vector_mix(artifact: str) -> dict[str, int]:
    """Of x86 code: instructions on 512-, 256- and 128-bit registers, fused multiply-adds, divisions and square roots, calls."""
    tool = shutil.which("objdump")
    if tool is None:
        return {}
    command = [tool, "-d", "--no-show-raw-insn", "--section=.text", artifact]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: Counter[str] = Counter()
    for op, operands in _X86.findall(done.stdout):
        for register, what in (("%zmm", "512-bit"), ("%ymm", "256-bit"), ("%xmm", "128-bit or scalar")):
            if register in operands:
                found[f"{what} floating-point or vector"] += 1
                break
        for part, what in (("fmadd", "fused multiply-add"), ("fnmadd", "fused multiply-add"), ("div", "divide"), ("sqrt", "square root")):
            if part in op:
                found[what] += 1
                break
        if op.startswith("call") and "<__cxa_" not in operands and "<deregister" not in operands:  # the loader's own
            found[f"call {operands.split()[-1]}"[:60]] += 1
    return dict(found.most_common(OPCODES))
