"""The names by which users ask for Workloads, and what they read when the name is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problems import ProblemError, known, problem_of, register, resolve
from kernelwright.problems.chains import PROBLEMS
from kernelwright.problems.gemm import Gemm
from kernelwright.records import Workload

sizes = st.integers(0, 100_000)
floats = st.sampled_from(["fp16", "bf16", "fp32"])


@given(m=sizes, n=sizes, k=sizes, dtype=floats, layout=st.sampled_from(["nn", "nt", "tn", "tt"]), half=st.booleans())
def test_every_gemm_is_found_again_by_its_name(m, n, k, dtype, layout, half):
    accumulate = "fp16" if half and dtype == "fp16" else "fp32"
    w = Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout, accumulate=accumulate)
    assert resolve(w.name) == w


@given(problem=st.sampled_from(PROBLEMS), rows=sizes, cols=st.integers(1, 50_000), dtype=floats)
def test_every_chain_is_found_again_by_its_name(problem, rows, cols, dtype):
    w = Workload(problem=problem.name, axes={"rows": rows, "cols": 2 * cols}, dtype=dtype)
    assert resolve(w.name) == w
    assert problem_of(w).name == w.problem


def test_what_is_left_out_has_defaults():
    assert resolve("gemm:512x512x512").name == "gemm:512x512x512:fp16:nn"
    assert resolve("chain:softmax").name == "chain:softmax:1024x1024:fp32"
    assert resolve("chain:softmax:bf16").name == "chain:softmax:1024x1024:bf16"


def test_tokens_stand_in_any_order_and_arguments_fill_gaps():
    assert resolve("gemm:8x9x10:nt:acc=fp16:fp16") == resolve("gemm:8x9x10:fp16:nt:acc=fp16")
    assert resolve("gemm:8x9x10", dtype="bf16", layout="tt") == resolve("gemm:8x9x10:bf16:tt")
    assert resolve("gemm:8x9x10:fp16", dtype="fp16").dtype == "fp16"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown problem ''"),
        ("hgemm-1000-tiny", "did you mean hgemm-1000"),
        ("gem:512x512x512", "did you mean gemm?"),
        ("softmax", "did you mean chain:softmax?"),
        ("chain", "known are gemm, linear, spmm, unpack, chain:new-gelu"),
        ("chain:sofmax", "did you mean chain:softmax?"),
        ("chains", "is a suite"),
        ("gemm", "needs a shape"),
        ("gemm:", "needs a shape"),
        ("gemm:512x512", "has 2 sizes and needs 3, M x N x K"),
        ("gemm:512xfoox512", "is not a shape"),
        ("gemm:512x-1x512", "N = -1"),
        ("gemm:512x512x4294967296", "at most 2147483648"),
        ("gemm:٣x٣x٣", "is not a shape"),
        ("gemm:8x8x8:fp8", "'fp8' in 'gemm:8x8x8:fp8' is neither a dtype nor a layout; use fp16, bf16"),
        ("gemm:8x8x8:nm", "use fp16, bf16, fp32, nn, nt, tn, tt"),
        ("gemm:8x8x8:fp16:bf16", "sets dtype to bf16, but fp16 was given"),
        ("gemm:8x8x8:bf16:acc=fp16", "acc=fp16 needs fp16 inputs, not bf16"),
        ("gemm:8x8x8:acc=bf16", "unknown acc 'bf16'"),
        ("chain:softmax:8", "has 1 sizes and needs 2, rows x cols"),
        ("chain:softmax:8x8:nt", "has no layout"),
        ("chain:softmax:8x8:fp16:acc=fp16", "accumulates in fp32 only"),
        ("chain:rotary:8x7", "cols = 7 must be even"),
        ("chain:log-softmax-nll:8x0", "cols must be at least 1"),
        ("kernelbench:act:fp32", "give the path of the .py file"),
        ("nowhere/act.py", "does not exist"),
    ],
)
def test_a_wrong_name_gets_one_sentence_with_the_fix(text, says):
    with pytest.raises(ProblemError) as caught:
        resolve(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_are_checked_like_tokens():
    with pytest.raises(ProblemError, match="unknown dtype 'fp64'"):
        resolve("gemm:8x8x8", dtype="fp64")
    with pytest.raises(ProblemError, match="sets layout to nn, but nt was given"):
        resolve("gemm:8x8x8:nn", layout="nt")


def test_a_workload_of_an_unknown_problem_is_refused():
    with pytest.raises(ProblemError, match="unknown problem 'conv'"):
        problem_of(Workload(problem="conv", axes={}))


def test_a_name_is_registered_once():
    known()
    with pytest.raises(ProblemError, match="'gemm' is registered already"):
        register(Gemm())


def test_known_problems_have_examples_that_work():
    lines = known()
    assert len(lines) >= 14
    for line in lines:
        assert line.description and "\n" not in line.description
        if line.name != "FILE.py":
            assert resolve(line.example).problem == line.name


def test_importing_the_names_does_not_import_torch():
    code = "import sys, kernelwright.problems, kernelwright.problems.suites as s; s.suite('hgemm-1000'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
