"""Random inputs of the Problems."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

_POOL = 2**22
_SMALL = 2**14


def normal(shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal values.

    On a CPU a large draw is the sum of two windows of a pool, at random places, over sqrt(2): normal as well, never the same values
    twice, and 1 ms for 2^20 of them where `torch.randn` takes 4 to 8 ms (one core), which was a third of a screen's time.
    """
    n = math.prod(shape)
    if torch.device(device).type != "cpu" or n < _SMALL:
        return torch.randn(shape, generator=rng, device=device, dtype=dtype)
    x = torch.empty(n)
    for block in x.split(_POOL // 2):
        first, second = (_pool()[i : i + block.numel()] for i in torch.randint(_POOL // 2, (2,), generator=rng).tolist())
        torch.add(first, second, out=block).mul_(math.sqrt(0.5))
    return x.view(shape).to(dtype)


@lru_cache(maxsize=1)
def _pool() -> torch.Tensor:
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(0))


def place(x: torch.Tensor, value: float, rng: torch.Generator) -> None:
    """Sets one random element of a contiguous tensor."""
    if x.numel():
        at = torch.randint(x.numel(), (1,), generator=rng, device=x.device)
        x.view(-1)[at] = value
