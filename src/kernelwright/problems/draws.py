"""Random inputs of the Problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

_POOL = 2**22
_SMALL = 2**14


def normal(shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal values.

    On a CPU a large draw is the sum of two windows of a pool, at random places, over sqrt(2): normal as well, never the same values
    twice, and 1 ms for 2^20 of them where `torch.randn` takes 4 to 8 ms (one core), which was a third of a screen's time.
    """
    if _cheap(shape, device):
        return torch.randn(shape, generator=rng, device=device, dtype=dtype)
    return _sum_of_windows(torch.randn, shape, rng).mul_(math.sqrt(0.5)).to(dtype)


def uniform(shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """float32 values from 0 up to 1; a large draw on a CPU is the fractional part of such a sum, which is uniform as well."""
    if _cheap(shape, device):
        return torch.rand(shape, generator=rng, device=device)
    return _sum_of_windows(torch.rand, shape, rng).frac_()


def _cheap(shape: tuple[int, ...], device: torch.device | str) -> bool:
    return torch.device(device).type != "cpu" or math.prod(shape) < _SMALL


def _sum_of_windows(draw: Callable[..., torch.Tensor], shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    pool, x = _pool(draw), torch.empty(math.prod(shape))
    for block in x.split(_POOL // 2):
        first, second = (pool[i : i + block.numel()] for i in torch.randint(_POOL // 2, (2,), generator=rng).tolist())
        torch.add(first, second, out=block)
    return x.view(shape)


@lru_cache(maxsize=2)
def _pool(draw: Callable[..., torch.Tensor]) -> torch.Tensor:
    return draw(_POOL, generator=torch.Generator().manual_seed(0))


def place(x: torch.Tensor, value: float, rng: torch.Generator) -> None:
    """Sets one random element of a contiguous tensor."""
    if x.numel():
        at = torch.randint(x.numel(), (1,), generator=rng, device=x.device)
        x.view(-1)[at] = value
