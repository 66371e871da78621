"""The twelve chains: reference, error scale and row program agree with each other on every kind of input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.chains import CHAINS, PROBLEMS, ChainProblem
from kernelwright.problems.lower import run
from kernelwright.problems.problem import TORCH_DTYPES, Case, Tensors
from kernelwright.records import Workload

by_name = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)


def workload(problem: ChainProblem, rows: int, cols: int, dtype: str = "fp32") -> Workload:
    return Workload(problem=problem.name, axes={"rows": rows, "cols": cols}, dtype=dtype)


def worst(problem: ChainProblem, w: Workload, inputs: Tensors, output: torch.Tensor) -> float:
    """Normalised error over the finite elements; NaN and infinity must stand where the reference has them."""
    reference = problem.reference(w, inputs)
    scale = problem.scale(w, inputs, reference)["y"]
    assert bool(torch.isfinite(scale).all()) and bool((scale > 0).all())
    want = reference["y"].to(output.dtype)
    finite = torch.isfinite(want)
    torch.testing.assert_close(torch.where(finite, 0.0, output), torch.where(finite, 0.0, want), equal_nan=True)
    error = ((output.double() - reference["y"]).abs() / scale)[finite]
    return float(error.max()) if error.numel() else 0.0


@st.composite
def shaped(draw):
    problem = draw(st.sampled_from(PROBLEMS))
    cols = draw(st.integers(1, 70))
    w = workload(
        problem, draw(st.integers(0, 9)), 2 * cols if problem.chain.even_cols else cols, draw(st.sampled_from(["fp16", "bf16", "fp32"]))
    )
    return problem, w, draw(st.sampled_from(problem.cases(w))), draw(st.integers(0, 2**31))


@settings(deadline=None, max_examples=150)
@given(shaped())
def test_the_program_is_the_function_in_float64(drawn):
    problem, w, case, seed = drawn
    inputs = problem.generate(w, case, torch.Generator().manual_seed(seed), "cpu")
    doubles = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    mine, want = run(problem.program(w), doubles, torch.float64)["y"], problem.reference(w, inputs)["y"]
    torch.testing.assert_close(mine, want, rtol=1e-11, atol=1e-12, equal_nan=True)


@settings(deadline=None, max_examples=150)
@given(shaped())
def test_float32_arithmetic_rounded_once_passes(drawn):
    problem, w, case, seed = drawn
    inputs = problem.generate(w, case, torch.Generator().manual_seed(seed), "cpu")
    output = run(problem.program(w), inputs)["y"].to(TORCH_DTYPES[w.dtype])
    assert worst(problem, w, inputs, output) <= problem.bound(w) / 2


@by_name
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_eager_passes_its_own_ladder(problem, dtype):
    w = workload(problem, 9, 258, dtype)
    rng = torch.Generator().manual_seed(1)
    for case in problem.cases(w):
        inputs = problem.generate(w, case, rng, "cpu")
        output = problem.eager(w, inputs)["y"]
        assert output.dtype == TORCH_DTYPES[dtype]
        if dtype == "fp32":
            assert worst(problem, w, inputs, output) <= problem.bound(w), case.name


@by_name
def test_a_wrong_kernel_fails(problem):
    """Errors that kernels really have: a lost last column, a neighbouring row, an approximation good to three digits."""
    w = workload(problem, 6, 130)
    inputs = problem.generate(w, Case("addressing", "normal"), torch.Generator().manual_seed(2), "cpu")
    right = problem.reference(w, inputs)["y"].float()
    shifted, stale = right.roll(1, 0), right.clone()
    stale.view(-1)[-1] = 0.7
    for wrong in (shifted, stale, right * 1.001, torch.zeros_like(right)):
        assert worst(problem, w, inputs, wrong) > problem.bound(w)


@by_name
def test_buffers_cases_and_variants_are_consistent(problem):
    w = workload(problem, 4, 32, "bf16")
    for variant in (w, *problem.variants(w)):
        specs = {s.name: s for s in problem.tensors(variant)}
        rng = torch.Generator().manual_seed(3)
        for case in problem.cases(variant):
            inputs = problem.generate(variant, case, rng, "cpu")
            assert list(inputs) == [s.name for s in specs.values() if s.role == "in"]
            for name, tensor in inputs.items():
                assert (tuple(tensor.shape), tensor.dtype) == (specs[name].shape, TORCH_DTYPES[specs[name].dtype])
                assert tensor.is_contiguous()
        outputs = problem.eager(variant, inputs)
        assert {k: tuple(v.shape) for k, v in outputs.items()} == {"y": specs["y"].shape}
        reference = problem.reference(variant, inputs)
        assert problem.scale(variant, inputs, reference)["y"].shape == reference["y"].shape
        assert problem.bound(variant) >= 16


@by_name
def test_every_call_draws_anew_and_seeds_repeat(problem):
    w = workload(problem, 3, 16)
    case, rng = Case("normal", "normal"), torch.Generator().manual_seed(4)
    first, second = problem.generate(w, case, rng, "cpu"), problem.generate(w, case, rng, "cpu")
    again = problem.generate(w, case, torch.Generator().manual_seed(4), "cpu")
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first[next(iter(first))], second[next(iter(first))])


@by_name
def test_sampled_rows_are_a_smaller_workload_with_the_same_answers(problem):
    w = workload(problem, 700, 1024)
    inputs = problem.generate(w, Case("normal", "normal"), torch.Generator().manual_seed(5), "cpu")
    outputs = problem.eager(w, inputs)
    of_inputs, pick = problem.sample_rows(w, outputs)
    some_inputs = of_inputs(inputs)
    some = pick(outputs)
    small = problem.rows_workload(w, some)
    assert 0 < small.axes["rows"] < 700 and small.axes["cols"] == 1024
    assert worst(problem, small, some_inputs, some["y"]) <= problem.bound(small)


@settings(deadline=None)
@given(cols=st.integers(1, 6000), dtype=st.sampled_from(["fp16", "bf16", "fp32"]), seed=st.integers(0, 2**31))
def test_integer_sums_stay_exact_in_any_order(cols, dtype, seed):
    w = resolve(f"chain:cumsum:2x{cols}:{dtype}")
    x = problem_of(w).generate(w, Case("integer", "exact"), torch.Generator().manual_seed(seed), "cpu")["x"]
    most = int(x.abs().double().sum(-1).max())
    assert torch.tensor(float(most)).to(x.dtype) == most
    assert most <= {"fp16": 2**11, "bf16": 2**8, "fp32": 2**24}[dtype]


def test_single_nan_and_infinity_are_placed():
    w = resolve("chain:softmax:8x64")
    rng = torch.Generator().manual_seed(6)
    assert int(torch.isnan(problem_of(w).generate(w, Case("nan", "adversarial"), rng, "cpu")["x"]).sum()) == 1
    assert int(torch.isinf(problem_of(w).generate(w, Case("inf", "adversarial"), rng, "cpu")["x"]).sum()) == 1


def test_the_formulas_are_those_of_the_table():
    x, g = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    functions = {c.name: c.function for c in CHAINS}
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    torch.testing.assert_close(functions["new-gelu"](x), 0.5 * x * (1 + tanh))
    torch.testing.assert_close(functions["silu-mul"](x, g), x / (1 + torch.exp(-x)) * g)
    torch.testing.assert_close(functions["rotary"](x, g, 0 * g), x * g)
    torch.testing.assert_close(functions["rotary"](x, 0 * g, torch.ones_like(g)), torch.cat((-x[:, 4:], x[:, :4]), 1))
    torch.testing.assert_close(functions["rmsnorm"](x, g[0]), x / (x.square().mean(1, True) + 1e-6).sqrt() * g[0])
    torch.testing.assert_close(functions["l2-normalise"](x).square().sum(1), torch.ones(3, dtype=torch.float64))


def test_cost_counts_each_tensor_once():
    w = resolve("chain:rmsnorm:10x20:fp16")
    cost = problem_of(w).cost(w)
    assert cost.bytes == 2 * (200 + 20 + 200)
    assert cost.unit == "vector" and 200 * 3 < cost.flops < 200 * 6


@settings(deadline=None, max_examples=40)
@given(cols=st.integers(1, 5000), seed=st.integers(0, 2**31))
def test_the_plainest_sum_of_a_row_is_no_cheat(cols, seed):
    """torch.cumsum adds up in float64 on a CPU: a kernel that does so in float32, term by term, has many times its error."""
    w = resolve(f"chain:cumsum:2x{cols}")
    problem = problem_of(w)
    inputs = problem.generate(w, Case("normal", "normal"), torch.Generator().manual_seed(seed), "cpu")
    plain = torch.from_numpy(np.add.accumulate(inputs["x"].numpy(), axis=1, dtype=np.float32))
    judged = compare(problem, w, expect(problem, w, inputs, vendor=True), {"y": plain})
    assert judged.passed, judged.note
