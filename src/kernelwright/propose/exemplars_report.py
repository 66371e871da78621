"""What was measured of a kernel, as lines for a prompt: speed, share of the roofline, registers, occupancy, instructions, sensors."""

from __future__ import annotations

import math
from pathlib import Path

from kernelwright.families.family import DeviceFacts
from kernelwright.plan import PlanError, evaluate
from kernelwright.problems import problem_of
from kernelwright.records import Build, Candidate, KernelResources, Trial, Workload
from kernelwright.targets.sass import sass_mix
from kernelwright.targets.target import Peaks, TargetUnavailable
from kernelwright.targets.x86 import vector_mix

OPCODES = 30
"""Most frequent ones. A small kernel has about 25 in all, and its one load is among the rare ones."""
_REGISTERS, _THREADS, _BLOCKS, _RESERVED = 65_536, 2_048, 32, 1_024
"""Of one multiprocessor of sm_80 and sm_90 (CUDA programming guide, compute capabilities); shared memory that a block costs on top."""
_SHARED = {80: 164 * 1024, 90: 228 * 1024}


def report(trial: Trial, device: DeviceFacts, peaks: Peaks | None, brief: bool = False) -> list[str]:
    """Lines on one right Trial. `brief`: on the mode that was timed first, and on registers; nothing is disassembled."""
    w, lines = trial.workload, []
    cost = problem_of(w).cost(w)
    for timing in trial.timings[: 1 if brief else None]:
        us = timing.median
        line = f"{timing.mode}: {us:.2f} µs ({cost.bytes / us / 1e3:.1f} GB/s, {cost.flops / us / 1e3:.1f} GFLOP/s"
        if peaks is not None:
            floor, limit = peaks.floor(cost, timing.mode)
            line += f", {100 * floor / us:.0f} % of what the {limit} allows"
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
        names = problem_of(w).names(w, device.sms)
        smem = r.smem + evaluate(launch.smem, names) + _RESERVED
        threads = math.prod(evaluate(side, names) for side in launch.block)
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


def instructions(build: Build | None, kind: str) -> dict[str, int]:
    """How often the most frequent opcodes stand in the artifact; empty where it is gone, or cannot be disassembled here."""
    if build is None or not build.artifact or not Path(build.artifact).is_file():
        return {}
    mix = vector_mix if kind == "cpu" else sass_mix
    try:
        return dict(list(mix(build.artifact).items())[:OPCODES])
    except (TargetUnavailable, ValueError, OSError):
        return {}
