"""How far one rounding in each step may carry a result: the error scale of Problems that are any PyTorch function.

Monte Carlo arithmetic (D. S. Parker, "Monte Carlo Arithmetic", UCLA 1997): the function runs in float64 with its inputs and the
result of every torch operation multiplied by 1 + u or 1 - u, the sign random for each element, u the unit roundoff of the type
that a kernel computes in. The spread of the results is what rounding in that type could have done, cancellation included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Tensors

DRAWS = ((2**10, 16), (2**16, 4), (math.inf, 2))
"""Below so many outputs so many draws. A sign pattern that cancels two equal contributions has probability 1/2 a draw: 6 % after four,
which the rms along a row makes up for, but not in a row of two. Of large outputs it says more than further draws: float64 tanh of 2^20
elements takes 37 ms."""

POOL = 2**20


@lru_cache(maxsize=4)
def _pool(u: float, device: str) -> torch.Tensor:
    """Factors 1 + u and 1 - u in random order. One pool serves every step: drawing anew would take longer than the step."""
    bits = torch.randint(0, 2, (2 * POOL,), generator=torch.Generator(device).manual_seed(0), device=device)
    return 1 + u * (2 * bits.double() - 1)


class _Rounded(TorchFunctionMode):
    """Multiplies every result by factors from a random place of the pool."""

    def __init__(self, u: float, device: torch.device, turn: int) -> None:
        super().__init__()
        self.pool = _pool(u, str(device))
        self.places = random.Random(turn)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__get__":
            return out
        return self.perturb(out) if isinstance(out, torch.Tensor) else tree_map(self.perturb, out)

    def perturb(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        start = self.places.randrange(POOL)
        factors = self.pool[start : start + POOL]
        if x.numel() > POOL:
            factors = factors.repeat(-(-x.numel() // POOL))
        return x * factors[: x.numel()].view(x.shape)


def error_scale(function: Callable[[Tensors], Tensors], inputs: Tensors, reference: Tensors, dtype: str, accumulate: str) -> Tensors:
    """Scale of each output element: float64, finite, above zero. `function` maps float64 inputs to outputs.

    scale = u_out (|ref| + rms of ref along its last axis) + largest change in the draws of Monte Carlo arithmetic + its rms along the last
    axis + tiny, where tiny is the spacing of the output type's denormals plus the smallest normal float32: steps may flush denormals to
    zero. The rms of the change matters where a whole row cancels: some of its elements hardly move in any draw, by chance.
    """
    u_out = UNIT_ROUNDOFF[dtype]
    device = next(iter(inputs.values())).device
    largest = {name: torch.zeros_like(ref) for name, ref in reference.items()}
    most = max(ref.numel() for ref in reference.values())
    for turn in range(next(draws for below, draws in DRAWS if most < below)):
        mode = _Rounded(UNIT_ROUNDOFF[accumulate], device, turn)
        rounded = {name: mode.perturb(x.double()) if x.is_floating_point() else x for name, x in inputs.items()}
        with mode:
            outputs = function(rounded)
        for name, out in outputs.items():
            change = (out - reference[name]).abs_().nan_to_num_(0.0, 0.0, 0.0)
            torch.maximum(largest[name], change, out=largest[name])
    tiny = float(torch.finfo(TORCH_DTYPES[dtype]).smallest_normal) * 2 * u_out + 2.0**-126
    scales = {}
    for name, ref in reference.items():
        size = ref.abs().nan_to_num_(0.0, 0.0, 0.0)
        scales[name] = largest[name] + _rms(largest[name]) + u_out * (size + _rms(size)) + tiny
    return scales


def _rms(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis, which is kept."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True) / math.sqrt(max(1, x.shape[-1])) if x.ndim else x
