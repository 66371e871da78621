"""The Family chain_cpu: element-wise, row-reduction and row-scan programs as one fused, vectorised C++ function."""

from __future__ import annotations

from typing import ClassVar

from kernelwright.families.chain_cpu.render import Choices, Kernel
from kernelwright.families.chain_cpu.space import illegal_in, space_of
from kernelwright.families.chain_cpu.task import task_of
from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.records import DTYPES, Arg, Candidate, Launch, LaunchPlan, ScalarArg, TensorArg, Workload, WorkspaceArg

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
"""No -ffast-math: NaN and infinity must come out as IEEE 754 and PyTorch say."""


class ChainCpu(Family):
    name: ClassVar[str] = "chain_cpu"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if device.target != "cpu":
            return "it writes C++ for the cpu target"
        try:
            task = task_of(w)
        except ValueError as error:
            return str(error)
        return task.refusal

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        task = task_of(w)
        wide = [b for b in task.buffers if b.role == "out" and b.shape == "full"]
        bytes_out = task.rows * task.cols * sum(DTYPES[b.dtype] for b in wide)
        return space_of(task.program, bytes_out, any(b.dtype == "fp32" for b in wide), device)

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return illegal_in(self.space(w, device), config)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        space = self.space(w, device)
        # Measured on a Sapphire Rapids core: streaming stores save a third of the time where the output leaves L2; where it
        # does not, the output's own row is the better place for kept values.
        guesses: list[Config] = [
            {"unroll": 4, "accumulators": 4, "keep": "scratch", "stores": "streaming", "prefetch": 256},
            {"unroll": 4, "accumulators": 4, "keep": "output", "prefetch": 256},
            {"unroll": 8, "accumulators": 8, "keep": "scratch", "stores": "streaming", "prefetch": 1024},
            {"unroll": 8, "accumulators": 4, "keep": "output", "prefetch": 0},
            {"unroll": 1, "accumulators": 1, "keep": "output", "prefetch": 4096},
            {"unroll": 2, "accumulators": 2, "keep": "output", "prefetch": 256, "exp_degree": 6},
        ]
        seeds: list[Config] = []
        for guess in guesses:
            config = {name: guess[name] if guess.get(name) in values else values[0] for name, values in space.items()}
            if config.get("keep") == "recompute":  # there is no float32 output to keep it in
                config["keep"] = "scratch"
            if "threads" in space:
                config["threads"] = space["threads"][-1]
            if config not in seeds:
                seeds.append(config)
        return tuple(seeds)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        if reason := self.illegal(config, w, device):
            raise ValueError(f"chain_cpu cannot render this config for {w.name}: {reason}")
        task = task_of(w)
        kernel = Kernel(w.problem, task.program, task.buffers, task.constants, Choices(**config))  # pyright: ignore[reportArgumentType]
        rows, cols = ("rows", "cols") if task.named_axes else (task.rows, task.cols)
        args: list[Arg] = [TensorArg(name=b.tensor) for b in task.buffers]
        args += [ScalarArg(ctype="i64", value=v) for v in (rows, cols, *(f"ld_{b.tensor}" for b in task.buffers if b.strided))]
        args += [WorkspaceArg()] if kernel.slots else []
        row_bytes = 4 * len(kernel.slots) * kernel.choices.threads
        plan = LaunchPlan(
            launches=(Launch(kernel="kernel", args=tuple(args)),),
            workspace=f"{row_bytes} * {cols}" if kernel.slots else 0,
            requires=task.requires,
        )
        return Candidate(kind="cpu", source=kernel.source(), plan=plan, flags=FLAGS, origin=self.origin(config))
