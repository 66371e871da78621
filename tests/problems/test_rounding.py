"""The error scale measures what rounding can do: nothing for exact steps, much where digits cancel."""

from __future__ import annotations

import pytest
import torch

from kernelwright.problems.rounding import error_scale

U = 2.0**-24


def scale(function, x: torch.Tensor, dtype: str = "fp32") -> torch.Tensor:
    reference = {"y": function(x.double())}
    return error_scale(lambda i: {"y": function(i["x"])}, {"x": x}, reference, dtype, "fp32")["y"]


def test_a_well_conditioned_step_costs_a_few_roundings():
    x = 1 + torch.rand(64, 64)
    roundings = scale(lambda x: 3 * x, x) / (3 * x.double() * U)
    assert float(roundings.min()) > 1.5
    assert float(roundings.max()) < 9  # output, its rms, two steps, their rms


def test_cancellation_widens_the_scale():
    x = torch.rand(64, 64)
    s = scale(lambda x: (x + 1000.0) - 1000.0, x)
    assert float(s.median()) > 900 * U


def test_the_output_type_counts():
    x = torch.rand(8, 64)
    assert float((scale(lambda x: x, x, "bf16") / scale(lambda x: x, x, "fp32")).min()) > 2**14


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_leave_the_other_elements_their_scale(value):
    x = torch.rand(4, 16)
    plain = scale(torch.tanh, x)
    x[2, 3] = value
    special = scale(torch.log, x.abs() + 1)
    assert bool(torch.isfinite(special).all()) and bool((special > 0).all())
    assert float(special.max()) < 100 * float(plain.max())


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (1,), ()])
def test_any_shape(shape):
    assert scale(torch.exp, torch.rand(shape)).shape == shape


def test_the_scale_of_given_inputs_is_always_the_same():
    x = torch.rand(5, 5)
    assert torch.equal(scale(torch.exp, x), scale(torch.exp, x))


def test_more_elements_than_the_pool_of_factors():
    x = torch.rand(2**20 + 3)
    assert bool((scale(lambda x: x * x, x) > 0).all())
