"""The choices of chain_cpu and their limits.

unroll        registers of the row that one step of the loop handles
accumulators  independent partial results of a reduction: one addition takes 4 cycles, two can start in each
keep          a costly value that a later pass needs again: `recompute` it, keep it in a `scratch` row, or in the `output`'s own row
stores        `streaming` stores pass the caches by and save reading what they overwrite; only for outputs larger than L2
prefetch      elements ahead that the first pass over an input touches; 0 leaves it to the hardware
exp_degree    of exp's polynomial: 5 saves one FMA, its error is 2.8 units in the last place of float32 instead of 1.7
quotient      tanh, sigmoid and erf end in a quotient: VDIVPS (`divide`), whose unit is busy for 10 cycles on Sapphire Rapids,
              or VRCP14PS and a `newton` step, six instructions on the ports that everything else needs
threads       that share the rows
"""

from __future__ import annotations

from kernelwright.families.chain_cpu.schedule import Schedule
from kernelwright.families.family import Config, DeviceFacts, Space
from kernelwright.problems.rowprogram import RowProgram

L2_BYTES = 1 << 20
"""Where the target does not tell its own."""


def space_of(program: RowProgram, output_bytes: int, float32_output: bool, device: DeviceFacts) -> Space:
    ops = {n.op for n in program.nodes}
    space: Space = {"unroll": (1, 2, 4, 8)}
    if "reduce" in ops:
        space["accumulators"] = (1, 2, 4, 8)
    if Schedule(program, keep=True).kept != Schedule(program, keep=False).kept:
        space["keep"] = ("recompute", "scratch", "output") if float32_output else ("recompute", "scratch")
    if output_bytes > (device.l2_bytes or L2_BYTES):
        space["stores"] = ("cached", "streaming")
    space["prefetch"] = (0, 256, 1024, 4096)
    if ops & {"exp", "sigmoid"}:
        space["exp_degree"] = (5, 6)
    if ops & {"tanh", "sigmoid", "erf"} and "avx512dq" in device.isa:
        space["quotient"] = ("divide", "newton")
    if device.threads > 1:
        space["threads"] = (*(t for t in (1, 2, 4, 8, 16, 32, 64, 128) if t < device.threads), device.threads)
    return space


def illegal_in(space: Space, config: Config) -> str | None:
    """Why a config is not in the space, as a clause."""
    if unknown := sorted(config.keys() - space.keys()):
        return f"{unknown[0]!r} is no choice here; there are {', '.join(space)}"
    if missing := [name for name in space if name not in config]:
        return f"the choice {missing[0]!r} is missing"
    for name, values in space.items():
        if config[name] not in values:
            return f"{name} = {config[name]!r} is not one of {', '.join(map(str, values))}"
    unroll, accumulators = config["unroll"], config.get("accumulators", 1)
    if int(accumulators) > int(unroll):
        return f"{accumulators} accumulators need as many unrolled steps, there are {unroll}"
    if config.get("keep") == "output" and config.get("stores") == "streaming":
        return "streaming stores would drop from the cache the output row that holds the kept value"
    return None
