"""linear: its grammar, its inputs, and a tolerance that what PyTorch does passes and a wrong epilogue does not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.problems.epilogue import ACTIVATIONS, Epilogue, parse
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.propose.neighbours import distance
from kernelwright.records import Workload
from kernelwright.report.wording import workload_name

numbers = st.floats(-1e30, 1e30, allow_nan=False).filter(lambda x: abs(x) > 1e-30)


@st.composite
def epilogues(draw: st.DrawFn) -> Epilogue:
    added = draw(st.sampled_from(["", "before", "after"]))
    activation = draw(st.sampled_from(["", *ACTIVATIONS])) if added != "after" else draw(st.sampled_from(ACTIVATIONS))
    beta = draw(st.one_of(st.none(), numbers)) if added == "before" else None
    return Epilogue(draw(st.one_of(st.just(1.0), numbers)), beta, draw(st.booleans()), added, activation)


@given(epilogues(), st.integers(0, 10**5), st.sampled_from(["fp16", "bf16"]), st.sampled_from(["nn", "nt", "tn", "tt"]))
def test_every_epilogue_is_found_again_by_its_text(e: Epilogue, n: int, dtype: str, layout: str) -> None:
    if not e.text:
        return
    assert parse(e.text) == e
    w = Workload(problem="linear", axes={"M": n, "N": 3, "K": 7}, dtype=dtype, layout=layout, epilogue=e.text)
    assert resolve(w.name) == w
    assert Workload.from_json(w.to_json()) == w


def test_what_is_left_out_is_a_torch_linear() -> None:
    assert resolve("linear:8x9x10").name == "linear:8x9x10:fp16:nt:bias"
    assert resolve("linear:8x9x10:beta=1:bf16").epilogue == "beta=1"
    assert resolve("linear:8x9x10:alpha=1e3+silu:nn").name == "linear:8x9x10:fp16:nn:alpha=1000+silu"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linear", "needs a shape"),
        ("linear:8x8x8:relu", "'relu' is no step of an epilogue; use alpha=NUMBER"),
        ("linear:8x8x8:fp61", "other parts may be fp16"),
        ("linear:8x8x8:gelu+bias", "'bias' comes too late"),
        ("linear:8x8x8:bias+bias", "'bias' comes too late"),
        ("linear:8x8x8:gelu+silu", "'silu' comes too late"),
        ("linear:8x8x8:beta=2+residual", "leave one of them out"),
        ("linear:8x8x8:residual+gelu+residual", "leave one of them out"),
        ("linear:8x8x8:alpha=1", "leave it out"),
        ("linear:8x8x8:alpha=0", "decimal number other than 0"),
        ("linear:8x8x8:beta=1e300", "decimal number other than 0"),
        ("linear:8x8x8:alpha=nan", "decimal number other than 0"),
        ("linear:8x8x8:alpha", "decimal number other than 0"),
        ("linear:8x8x8:bias=2", "'bias=2' is no step"),
        ("linear:8x8x8:bias+", "'' is no step"),
        ("linear:8x8x8:bias:gelu", "two epilogues"),
        ("linear:8x8x8:fp32", "fp16 and bf16 only"),
        ("linear:8x8x8:acc=fp16", "accumulates in fp32 only"),
        ("gemm:8x8x8:bias", "neither a dtype nor a layout"),
    ],
)
def test_a_wrong_epilogue_gets_one_sentence_with_the_fix(text: str, says: str) -> None:
    with pytest.raises(ProblemError) as caught:
        resolve(text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_plain_gemm_keeps_its_identity_and_an_epilogue_has_its_own() -> None:
    assert resolve("gemm:512x512x512:fp16:nt").id == "345e44a3b582df3a"
    assert len({resolve(f"linear:8x8x8:{e}").id for e in ("bias", "gelu", "bias+gelu")}) == 3


def draw(text: str, case: str, seed: int):
    w = resolve(text)
    problem = problem_of(w)
    chosen = next(c for c in problem.cases(w) if c.name == case)
    return w, problem, problem.generate(w, chosen, torch.Generator().manual_seed(seed), "cpu")


EXACT = ("bias", "residual", "bias+residual", "alpha=0.5+beta=2", "alpha=-3+bias", "beta=0.25+bias")


@settings(deadline=None, max_examples=40)
@given(
    k=st.one_of(st.integers(0, 300), st.integers(2000, 20_000)), text=st.sampled_from(EXACT), dtype=st.sampled_from(["fp16", "bf16"]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]), case=st.sampled_from(["binary", "ternary", "integer"]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_exact_cases_are_exact_after_every_step(k: int, text: str, dtype: str, layout: str, case: str, seed: int) -> None:
    """So that PyTorch, which may round after each, is bit-equal too."""
    w, problem, inputs = draw(f"linear:5x6x{k}:{dtype}:{layout}:{text}", case, seed)
    for step, x in problem._steps(w, inputs):
        assert torch.equal(x, x.to(TORCH_DTYPES[dtype]).double()), step
    assert compare(problem, w, expect(problem, w, inputs, exact=True), problem.eager(w, inputs)).passed
    assert all(bool(inputs[name].any()) for name in ("addend",) if name in inputs)


@pytest.mark.parametrize("text", ["bias+gelu", "silu", "gelu-tanh+residual", "alpha=0.3+beta=2"])
def test_no_exact_cases_where_a_step_is_inexact(text: str) -> None:
    w = resolve(f"linear:8x8x8:{text}")
    assert [c.rung for c in problem_of(w).cases(w)].count("exact") == 0


WRONG = {
    "bias+gelu": ("bias", "bias+gelu-tanh", "bias+silu", "gelu"),
    "bias+gelu-tanh": ("bias+gelu",),
    "silu": ("gelu", "alpha=2"),
    "bias+residual": ("bias", "residual"),
    "bias+residual+silu": ("bias+silu+residual", "bias+silu"),
    "bias+gelu+residual": ("bias+gelu", "gelu+residual"),
    "alpha=0.5+beta=2": ("alpha=0.5+beta=1", "beta=2", "alpha=0.5+beta=-2"),
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_pytorch_and_one_rounding_pass_and_another_epilogue_fails(text: str, dtype: str) -> None:
    for case in ("normal", "wide", "one-hot", "cancel"):
        w, problem, inputs = draw(f"linear:90x64x200:{dtype}:{text}", case, 3)
        expected = expect(problem, w, inputs, vendor=case == "normal")
        once = {"c": expected.reference["c"].to(TORCH_DTYPES[dtype])}
        assert compare(problem, w, expected, once).passed
        assert compare(problem, w, expected, problem.eager(w, inputs)).passed
        if case == "normal":
            for other in WRONG[text]:
                if dtype == "bf16" and {text, other} == {"bias+gelu", "bias+gelu-tanh"}:
                    continue  # they differ by 5e-4, less than what PyTorch's rounding before the activation costs in bf16
                wrong = problem.reference(w.replace(epilogue=other), inputs)["c"].to(TORCH_DTYPES[dtype])
                assert not compare(problem, w, expected, {"c": wrong}).passed, other


@pytest.mark.parametrize("size", ["600x24x40:tn", "24x1100x40:nt", "600x1100x40:nn"])
def test_sampled_rows_and_columns_and_variants(size: str) -> None:
    w, problem, inputs = draw(f"linear:{size}:bf16:bias+gelu+residual", "normal", 2)
    everything = problem.eager(w, inputs)
    of_inputs, pick = problem.sample_rows(w, everything)
    some = of_inputs(inputs)
    part = pick(everything)
    assert compare(problem, problem.rows_workload(w, part), expect(problem, problem.rows_workload(w, part), some), part).passed
    for variant in problem.variants(w):
        case = next(c for c in problem.cases(variant) if c.rung == "normal")
        generated = problem.generate(variant, case, torch.Generator().manual_seed(0), "cpu")
        assert [t.shape for t in generated.values()] == [s.shape for s in problem.tensors(variant)[:-1]]
        assert compare(problem, variant, expect(problem, variant, generated), problem.eager(variant, generated)).passed


def test_cost_counts_what_the_epilogue_reads() -> None:
    plain, full = (problem_of(w).cost(w) for w in map(resolve, ("gemm:64x32x16:fp16", "linear:64x32x16:fp16:bias+residual")))
    assert (full.flops, full.bytes - plain.bytes) == (plain.flops, 2 * (32 + 64 * 32))


def test_an_epilogue_is_part_of_the_kind_and_of_the_wording() -> None:
    gelu, silu, larger = (resolve(f"linear:64x{n}x64:{e}") for n, e in ((64, "bias+gelu"), (64, "bias+silu"), (128, "bias+gelu")))
    assert distance(gelu, larger) == 1 and distance(gelu, silu) == math.inf
    assert workload_name(gelu) == "linear 64x64x64 fp16 nt bias+gelu"
