"""Large draws on the CPU come from a pool: they must look like torch's own."""

from __future__ import annotations

import pytest
import torch

from kernelwright.problems.draws import normal, place, uniform

SHAPE = (1024, 1030)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("draw", "mean", "deviation"), [(normal, 0.0, 1.0), (uniform, 0.5, 12**-0.5)])
def test_moments_and_independence(draw, mean: float, deviation: float):
    one, g = rng(), None
    x, y = draw(SHAPE, one, "cpu"), draw(SHAPE, one, "cpu")
    for z in (x, y):
        g = (z - mean) / deviation
        assert abs(float(g.mean())) < 0.01 and abs(float(g.std()) - 1) < 0.01
        # neighbours, rows and the two draws: 10^6 values correlate by 0.001 at random
        assert abs(float((g[:, 1:] * g[:, :-1]).mean())) < 0.01 and abs(float((g[1:] * g[:-1]).mean())) < 0.01
    assert abs(float((g * (x - mean) / deviation).mean())) < 0.01
    assert not (x == y).all(dim=1).any()


def test_normal_quantiles():
    x = normal(SHAPE, rng(3), "cpu").flatten()[: 2**20]
    wanted = torch.special.ndtri(torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999]))
    assert torch.allclose(x.quantile(torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999])), wanted, atol=0.03)


def test_uniform_stays_below_one():
    x = uniform(SHAPE, rng(1), "cpu")
    assert float(x.min()) >= 0 and float(x.max()) < 1
    edges = torch.histc(x, 20, 0, 1) / x.numel()
    assert torch.allclose(edges, torch.full((20,), 0.05), atol=0.002)


@pytest.mark.parametrize("draw", [normal, uniform])
def test_a_seed_gives_the_same_and_another_seed_does_not(draw):
    assert torch.equal(draw(SHAPE, rng(5), "cpu"), draw(SHAPE, rng(5), "cpu"))
    assert not torch.equal(draw(SHAPE, rng(5), "cpu"), draw(SHAPE, rng(6), "cpu"))
    assert draw((3, 5), rng(5), "cpu").shape == (3, 5)


def test_more_than_the_pool_is_drawn_in_blocks():
    x = normal((5 * 2**20,), rng(2), "cpu")
    assert abs(float(x.mean())) < 0.01 and not torch.equal(x[: 2**21], x[2**21 : 2**22])


def test_place_sets_one_element():
    x = torch.zeros(7, 9)
    place(x, 4.0, rng())
    assert float(x.sum()) == 4.0
