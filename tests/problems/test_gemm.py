"""GEMM's inputs are what their names promise, and its tolerance separates rounding from faults."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.problems import problem_of, resolve
from kernelwright.problems.problem import TORCH_DTYPES, Case
from kernelwright.records import Workload

LIMIT = {"fp16": 2**11, "fp32": 2**24}
types = st.sampled_from(["fp16", "fp16:acc=fp16", "bf16", "fp32"])
layouts = st.sampled_from(["nn", "nt", "tn", "tt"])


def draw(w: Workload, case: str, seed: int):
    problem = problem_of(w)
    chosen = next(c for c in problem.cases(w) if c.name == case)
    return problem, problem.generate(w, chosen, torch.Generator().manual_seed(seed), "cpu")


@settings(deadline=None, max_examples=80)
@given(
    k=st.one_of(st.integers(0, 300), st.integers(2000, 20_000)),
    types=types, layout=layouts, case=st.sampled_from(["binary", "ternary", "integer"]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_partial_sums_of_exact_cases_are_exact_in_any_order(k, types, layout, case, seed):
    w = resolve(f"gemm:2x3x{k}:{layout}:{types}")
    problem, inputs = draw(w, case, seed)
    a = inputs["a"] if layout[0] == "n" else inputs["a"].t()
    b = inputs["b"] if layout[1] == "n" else inputs["b"].t()
    largest = float((a.double().abs() @ b.double().abs()).max())
    assert largest <= LIMIT[w.accumulate]
    reference = problem.reference(w, inputs)["c"]
    assert torch.equal(reference, reference.round())
    assert bool(torch.isfinite(reference.to(TORCH_DTYPES[w.dtype])).all())
    if k >= 32:  # fewer may all be zero
        assert bool(a.double().abs().sum() > 0)


@settings(deadline=None, max_examples=60)
@given(m=st.integers(0, 40), n=st.integers(0, 40), k=st.integers(0, 70), types=types, layout=layouts, seed=st.integers(0, 2**31))
def test_correct_rounding_passes_and_a_lost_product_fails(m, n, k, types, layout, seed):
    w = resolve(f"gemm:{m}x{n}x{k}:{layout}:{types}")
    problem, inputs = draw(w, "normal", seed)
    reference = problem.reference(w, inputs)
    scale = problem.scale(w, inputs, reference)["c"]
    assert scale.shape == reference["c"].shape == (m, n)
    rounded = reference["c"].to(TORCH_DTYPES[w.dtype]).double()
    assert bool(((rounded - reference["c"]).abs() <= problem.bound(w) * scale).all())
    if m and n and k and w.accumulate == "fp32":
        a = inputs["a"] if layout[0] == "n" else inputs["a"].t()
        b = inputs["b"] if layout[1] == "n" else inputs["b"].t()
        lost = reference["c"] - torch.outer(a[:, -1].double(), b[-1].double())
        assert bool(((lost - reference["c"]).abs() > problem.bound(w) * scale).any())


@pytest.mark.parametrize("k", [1, 64, 4096, 32768])
def test_wide_fp16_products_stay_in_range(k):
    w = resolve(f"gemm:128x128x{k}")
    problem, inputs = draw(w, "wide", 0)
    c = problem.reference(w, inputs)["c"]
    assert float(c.abs().max()) < 65504
    size = inputs["a"].double().abs()
    assert float(size.max() / size[size > 0].min()) > 2**12


@settings(deadline=None, max_examples=40)
@given(layout=layouts, k=st.integers(1, 50), dtype=st.sampled_from(["fp16", "bf16", "fp32"]), seed=st.integers(0, 2**31))
def test_adversarial_cases(layout, k, dtype, seed):
    w = resolve(f"gemm:5x6x{k}:{layout}:{dtype}")
    for case, wanted in (("nan", torch.isnan), ("inf", torch.isinf)):
        _, inputs = draw(w, case, seed)
        assert [int(wanted(t).sum()) for t in inputs.values()] == [1, 1]
    problem, inputs = draw(w, "one-hot", seed)
    b = (inputs["b"] if layout[1] == "n" else inputs["b"].t()).double()
    rows = problem.reference(w, inputs)["c"]
    assert all(any(torch.equal(row, r) for r in b) for row in rows)
    _, inputs = draw(w, "denormal", seed)
    assert all(float(t.double().abs().max()) < 2**-8 for t in inputs.values())


def test_cancelling_halves_leave_the_odd_term():
    w = resolve("gemm:4x5x9:tt:fp32")
    problem, inputs = draw(w, "cancel", 1)
    a, b = inputs["a"].t().double(), inputs["b"].t().double()
    torch.testing.assert_close(problem.reference(w, inputs)["c"], torch.outer(a[:, 8], b[8]), rtol=0, atol=1e-12)
    assert float(problem.eager(w, inputs)["c"].abs().max()) < math.inf


@pytest.mark.parametrize("text", ["gemm:600x8x16:tn:fp32", "gemm:7x1500x16:nt:fp32", "gemm:600x1500x16:nn:fp32"])
def test_sampled_rows_and_columns_and_variants(text: str):
    w = resolve(text)
    problem, inputs = draw(w, "normal", 2)
    everything = problem.eager(w, inputs)
    of_inputs, pick = problem.sample_rows(w, everything)
    some = of_inputs(inputs)
    outputs = pick(everything)
    small = problem.rows_workload(w, outputs)
    assert tuple(outputs["c"].shape) == (min(w.axes["M"], 256), min(w.axes["N"], 1024))
    torch.testing.assert_close(outputs["c"].double(), problem.reference(small, some)["c"], rtol=1e-4, atol=1e-4)
    for variant in problem.variants(w):
        generated = problem.generate(variant, Case("normal", "normal"), torch.Generator().manual_seed(0), "cpu")
        assert problem.eager(variant, generated)["c"].shape == (variant.axes["M"], variant.axes["N"])


@pytest.mark.parametrize("step", [1, 16])
@pytest.mark.parametrize("k", [64, 512, 8192])
def test_half_precision_sums_of_denormals_are_right(k: int, step: int):
    """Partial sums in fp16 are rounded to multiples of 2^-24 there, however small they are; wgmma adds 16 products before each rounding."""
    w = resolve(f"gemm:16x64x{k}:nn:fp16:acc=fp16")
    problem, inputs = draw(w, "denormal", 3)
    a, b = inputs["a"].double(), inputs["b"].double()
    sums = torch.zeros(16, 64, dtype=torch.float16)
    for first in range(0, k, step):
        sums = (sums.double() + a[:, first : first + step] @ b[first : first + step]).half()
    reference = problem.reference(w, inputs)
    scale = problem.scale(w, inputs, reference)["c"]
    error = ((sums.double() - reference["c"]).abs() / scale).max()
    assert error <= problem.bound(w)
    if k <= 512:  # a longer sum is lost in its own rounding, and only the vendor's error tells a wrong one
        assert bool((reference["c"].abs() > problem.bound(w) * scale).any()), "zeros are wrong"
