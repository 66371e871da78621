"""Molecular dynamics of a Lennard-Jones fluid."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, but, resized
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding, dynamics
from kernelwright.problems.validators.dynamics import CUTOFF, STEP, advance, forces, molecular, near
from kernelwright.records import Workload

_DENSITY = 0.8
_N = "4*side*side*side"


class LennardJones(Application):
    judged_by = dynamics
    title, domain = "lennard-jones", "molecular dynamics"
    formula = (
        "a Lennard-Jones fluid of shifted force by velocity Verlet, 0.004 a step, cutoff 2.5: positions, velocities, forces of snapshots"
    )
    axes = ("side", "every", "snapshots")
    inputs = {"position": f"{_N} 3", "velocity": f"{_N} 3", "box": "1"}
    outputs = {"positions": f"snapshots {_N} 3", "velocities": f"snapshots {_N} 3", "forces": f"snapshots {_N} 3"}
    dtypes, unit = ("fp32",), "vector"
    full = ((16, 10, 10), (32, 10, 4))
    tiny = ((3, 2, 2), (4, 3, 1))
    adversarial = ("gas", "cold")
    tolerance = (
        "4 times what a rounding of each coordinate in each step explains, by the stiffness of the neighbours; energy to 2e-3 a particle"
    )
    read = ("position", "velocity")

    def refuses(self, w: Workload) -> str | None:
        if w.axes["side"] < 3 or min(w.axes.values()) < 1:
            return "has a side of 3 or more, and 1 or more snapshots and steps between them"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        """A face-centred cubic lattice, every particle moved a little; `cold` starts at a hundredth of the speed, `gas` at a quarter of the
        density."""
        particles = 4 * n.side**3
        box = (particles / (_DENSITY / 4 if case == "gas" else _DENSITY)) ** (1 / 3)
        cells = torch.cartesian_prod(*[torch.arange(n.side, device=device)] * 3)
        base = torch.tensor([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], device=device)
        position = ((cells[:, None] + base).view(-1, 3) + 0.25) * (box / n.side)
        shaken = 0.04 * torch.randn(position.shape, generator=rng, device=device).clamp(-3, 3)
        position = (position + shaken)[torch.randperm(particles, generator=rng, device=device)]
        velocity = torch.randn(position.shape, generator=rng, device=device) * (0.1 if case == "cold" else 1.0)
        return {"position": position, "velocity": velocity - velocity.mean(0), "box": torch.tensor([box], device=device)}

    def solve(self, n: Sizes, position: torch.Tensor, velocity: torch.Tensor, box: torch.Tensor) -> Any:
        """Lists of pairs from cells, made anew every ten steps."""
        edge, x, v = float(box), position, velocity
        found = []
        for _ in range(n.snapshots):
            x, v = advance(x, v, edge, n.every)
            x = x - edge * torch.floor(x / edge)
            found.append((x, v, forces(x, edge, near(x, edge, CUTOFF + 0.01))[0]))
        return tuple(torch.stack(t) for t in zip(*found, strict=True))

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return molecular(inputs, outputs, every=n.every)

    def flops(self, n: Sizes) -> float:
        """26 pairs a particle within the cutoff, 10 operations each at least; a gas has fewer."""
        return 10.0 * 26 * 4 * n.side**3 * n.every * n.snapshots

    @staticmethod
    def _one_stands_still(p: LennardJones, n: Sizes, **x: torch.Tensor) -> Any:
        outputs = p.solve(n, **x)
        positions = outputs[0].clone()
        positions[:, -1] = x["position"][-1]
        return but(outputs, 0, positions)

    mistakes = {
        "one step less": lambda p, n, **x: p.solve(resized(n, every=n.every - 1), **x),
        "the forces of the snapshot before": lambda p, n, **x: but(o := p.solve(n, **x), 2, o[2].roll(1, 0)),
        "velocities half a step behind": lambda p, n, **x: but(o := p.solve(n, **x), 1, o[1] - STEP / 2 * o[2]),
        "the last particle stands still": _one_stands_still,
        "a box that is not periodic": lambda p, n, position, velocity, box: p.solve(n, position, velocity, 2 * box),
    }


PROBLEMS = (LennardJones,)
