"""Exact modular arithmetic, as zero-knowledge proofs need it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from kernelwright.problems.applications.application import Application
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding
from kernelwright.problems.validators import modular as check
from kernelwright.problems.validators.modular import LIMBS, ORDER, PRIME
from kernelwright.records import Workload


class NumberTheoreticTransform(Application):
    judged_by = check
    title, domain = "ntt", "modular arithmetic"
    formula = "y_k = sum_j x_j w^(j k) mod 15 * 2^27 + 1, w = 31^((p - 1) / n), in natural order"
    axes = ("batch", "n")
    inputs, outputs = {"x": "batch n"}, {"y": "batch n"}
    dtypes = ("int32",)
    full = ((256, 1 << 16), (16, 1 << 20))
    tiny = ((3, 64), (1, 1), (2, 2), (1, 512))
    adversarial = ("largest", "impulse")
    tolerance = "exact: random combinations of all values, and each value up to 4096"
    read, alters = ("x",), ("x",)

    def refuses(self, w: Workload) -> str | None:
        n = w.axes["n"]
        if n < 1 or n & (n - 1) or n > 1 << 27 or w.axes["batch"] < 1:
            return "has a length n that is a power of two up to 2^27, and a batch of 1 or more"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        x = torch.randint(PRIME, (n.batch, n.n), generator=rng, device=device)
        if case == "largest":
            x = torch.full_like(x, PRIME - 1)
        elif case == "impulse":
            x = x * (torch.arange(n.n, device=device) == n.n // 3)
        return {"x": x}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return check.ntt(inputs, outputs)

    def solve(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        """Radix 2, in int64."""
        return check.transform(x.long())

    mistakes = {
        "the opposite root": lambda p, n, x: p.solve(n, x).roll(-1, 1).flip(1),
        "one value off": lambda p, n, x: (p.solve(n, x) + (torch.arange(n.n) == n.n - 1)) % PRIME,
        "not reduced": lambda p, n, x: p.solve(n, x) - PRIME,
        "half of each row": lambda p, n, x: p.solve(n, x * (torch.arange(n.n) < n.n // 2)),
    }


@lru_cache(maxsize=4)
def _pool(count: int) -> list[tuple[int, int]]:
    """Points that this process alone has, since a table of logarithms would make each sum one multiplication."""
    return [check.random_point() for _ in range(count)]


class MultiScalar(Application):
    judged_by = check
    title, domain = "msm", "modular arithmetic"
    formula = "sums of scalar times point on the curve BN254; numbers are eight 32-bit limbs, points affine, zeros the identity"
    axes = ("n", "batch")
    inputs = {"points": f"n {2 * LIMBS}", "scalars": f"batch n {LIMBS}"}
    outputs = {"sums": f"batch {2 * LIMBS}"}
    dtypes = ("int32",)
    full = ((256, 4), (2048, 4))
    tiny = ((5, 2), (1, 1), (16, 1))
    adversarial = ("extremes",)
    tolerance = "exact: all sums of a batch, combined with random weights of 128 bits"
    read, alters = ("points", "scalars"), ("scalars",)

    def refuses(self, w: Workload) -> str | None:
        if min(w.axes.values()) < 1 or w.axes["n"] > 1 << 14:
            return "has 1 to 2^14 points, and a batch of 1 or more"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        """`extremes`: scalars 0, 1 and the order less one, and points that are equal, opposite, or the identity."""
        pool = _pool(n.n + 16)
        picked = [pool[i] for i in torch.randperm(len(pool), generator=rng, device=device)[: n.n].tolist()]
        # much cheaper than new points
        fresh = check.shifted(picked, check.random_point())
        points = check.limbs([c for p in fresh for c in (p or (0, 0))]).view(n.n, 2 * LIMBS)
        # the highest limb stays below the order's, so every number does
        scalars = torch.randint(-(2**31), 2**31, (n.batch, n.n, LIMBS), generator=rng, device=device)
        scalars[..., -1] = scalars[..., -1].remainder(ORDER >> 224)
        if case == "extremes":
            few = check.limbs([0, 1, ORDER - 1]).to(device)
            scalars = few[torch.randint(3, (n.batch, n.n), generator=rng, device=device)].long()
            points[1::2] = points[0]
            if n.n > 2:
                points[2] = 0
        return {"points": points.to(device), "scalars": scalars}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return check.msm(inputs, outputs)

    def solve(self, n: Sizes, points: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
        """Pippenger's buckets in Python's integers, on the host: PyTorch has none of this length."""
        bases, numbers = check.points(points), check.numbers(scalars)
        sums = [check.multi_scalar(numbers[b * n.n : (b + 1) * n.n], bases) for b in range(n.batch)]
        return check.limbs([c for p in sums for c in (p or (0, 0))]).view(n.batch, 2 * LIMBS).to(points.device)

    mistakes = {
        "the last point left out": lambda p, n, points, scalars: p.solve(
            n, torch.cat([points[:-1], torch.zeros_like(points[:1])]), scalars
        ),
        "scalars of 192 bits": lambda p, n, points, scalars: p.solve(n, points, scalars * (torch.arange(LIMBS) < 6).int()),
        "sums in another order": lambda p, n, points, scalars: p.solve(n, points, scalars).roll(1, 0),
        "the identity": lambda p, n, points, scalars: torch.zeros(n.batch, 2 * LIMBS, dtype=torch.int32),
    }


PROBLEMS = (NumberTheoreticTransform, MultiScalar)
