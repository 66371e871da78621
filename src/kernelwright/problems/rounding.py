"""How far one rounding in each step may carry a result: the error scale of Problems that are any PyTorch function.

Monte Carlo arithmetic (D. S. Parker, "Monte Carlo Arithmetic", UCLA 1997): the function runs in float64 with its inputs and the
result of every torch operation multiplied by 1 + u or 1 - u, the sign random for each element, u the unit roundoff of the type
that a kernel computes in. The spread of the results is what correct rounding in that type could have done, cancellation included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Tensors

DRAWS = 4
"""Four draws: a sign pattern that cancels two equal contributions has probability 1/2 a draw, 6 % after four."""
FEW_DRAWS = 2
"""From this many outputs on the rms along the row says more than further draws: float64 tanh of 2^20 elements takes 37 ms."""
MANY = 2**16


class _Rounded(TorchFunctionMode):
    """Multiplies by slices, at random offsets, of one pool of 1 + u and 1 - u: drawing anew for each step takes longer than the step."""

    def __init__(self, u: float, rng: torch.Generator) -> None:
        super().__init__()
        self.u, self.rng = u, rng
        self.pool = torch.empty(0, dtype=torch.float64, device=rng.device)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out if getattr(func, "__name__", "") == "__get__" else tree_map(self.perturb, out)

    def perturb(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        slack = 4096
        if self.pool.numel() < x.numel() + slack:
            bits = torch.randint(0, 2, (2 * x.numel() + slack,), generator=self.rng, device=x.device, dtype=torch.int8)
            self.pool = 1 + self.u * (2 * bits.double() - 1)
        start = int(torch.randint(slack, (1,), generator=self.rng, device=x.device))
        return x * self.pool[start : start + x.numel()].view(x.shape)


def error_scale(
    function: Callable[[Tensors], Tensors], inputs: Tensors, reference: Tensors, dtype: str, accumulate: str
) -> Tensors:
    """Scale of each output element, float64, finite and above zero. `function` maps float64 inputs to outputs.

    scale = u_out (|ref| + rms of ref along its last axis) + largest change in the draws of Monte Carlo arithmetic + tiny, where tiny is
    the spacing of the output type's denormals plus the smallest normal float32 (intermediate results may be flushed to zero).
    """
    u_out = UNIT_ROUNDOFF[dtype]
    device = next(iter(inputs.values())).device
    rng = torch.Generator(device).manual_seed(0)
    largest = {name: torch.zeros_like(ref) for name, ref in reference.items()}
    mode = _Rounded(UNIT_ROUNDOFF[accumulate], rng)
    for _ in range(FEW_DRAWS if max(r.numel() for r in reference.values()) >= MANY else DRAWS):
        rounded = {name: mode.perturb(x.double()) if x.is_floating_point() else x for name, x in inputs.items()}
        with mode:
            outputs = function(rounded)
        for name, out in outputs.items():
            largest[name] = torch.maximum(largest[name], (out - reference[name]).abs().nan_to_num(0.0, 0.0, 0.0))
    tiny = float(torch.finfo(TORCH_DTYPES[dtype]).smallest_normal) * 2 * u_out + 2.0**-126
    scales = {}
    for name, ref in reference.items():
        finite = torch.where(torch.isfinite(ref), ref, 0.0)
        rms = finite.square().mean(-1, keepdim=True).sqrt() if ref.numel() and ref.ndim else finite.abs()
        scales[name] = u_out * (finite.abs() + rms) + largest[name] + tiny
    return scales


def place(x: torch.Tensor, value: float, rng: torch.Generator) -> None:
    """Sets one random element of a contiguous tensor."""
    if x.numel():
        at = torch.randint(x.numel(), (1,), generator=rng, device=x.device)
        x.view(-1)[at] = value
