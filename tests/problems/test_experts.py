"""The form of the suite's problems. What they compute is checked in tests/evaluate/test_suite_check.py."""

from __future__ import annotations

import pytest
import torch

from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.problems.experts import EXPERTS
from kernelwright.problems.lint import lint
from kernelwright.problems.suites import suite
from kernelwright.records import Workload

by_title = {p.title: p for p in EXPERTS}
each = pytest.mark.parametrize("problem", EXPERTS, ids=by_title)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors of a few hundred elements: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_suite_has_what_it_promises():
    kinds = [p.kind for p in EXPERTS]
    assert len(by_title) == len(EXPERTS) and kinds.count("kernel") >= 24 and kinds.count("module") >= 20
    assert {w.problem for w in suite("experts-kernels") + suite("experts-modules")} == {p.name for p in EXPERTS}
    assert len(suite("experts-tiny")) == len(EXPERTS)


@each
def test_it_declares_all_that_a_reader_of_results_needs(problem):
    for text in (problem.domain, problem.formula, problem.tolerance):
        assert text.strip() and "\n" not in text
    assert len(problem.full) >= 1 and len(problem.tiny) >= 3
    for sizes in (*problem.full, *problem.tiny):
        w = problem.workload(sizes)
        assert resolve(w.name) == w and problem_of(w) is problem
        cost = problem.cost(w)
        assert cost.bytes >= 0 and cost.flops >= 0
    largest = max(problem.memory(problem.workload(sizes)) for sizes in problem.full)
    assert largest < 100 * 2**30, "float64 copies fit on an H200"


@each
def test_lint_is_clean(problem):
    assert [f for f in lint(problem.workload(problem.full[0])) if f.severity != "note"] == []


@each
def test_a_part_of_the_outputs_is_the_outputs_of_a_part(problem):
    """What a screen looks at instead of everything."""
    w = problem.workload(problem.tiny[0])
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    inputs = problem.generate(w, case, torch.Generator().manual_seed(0), "cpu")
    whole = problem.reference(w, inputs)
    of_inputs, of_outputs = problem.sample_rows(w, whole, fewer=10**9)
    wanted = of_outputs(whole)
    part = problem.reference(problem.rows_workload(w, wanted), of_inputs(inputs))
    for name, value in wanted.items():
        torch.testing.assert_close(part[name], value, rtol=1e-12, atol=1e-12)
    cut = [axis for axis in problem.independent if w.axes[axis] > 1]
    assert not cut or sum(x.numel() for x in wanted.values()) < sum(x.numel() for x in whole.values())


@each
def test_inputs_are_drawn_anew_or_may_change_places(problem):
    """Whatever `Buffers.alter` does between launches, the results must not stay what they were."""
    w = problem.workload(problem.tiny[0])
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    inputs = problem.generate(w, case, torch.Generator().manual_seed(0), "cpu")
    before = problem.reference(w, inputs)
    altered = dict(inputs)
    for name in problem.alterable(w):
        x = inputs[name].clone()
        rows = x.view(-1, x.shape[-1])
        if len(rows) > 1:
            rows[:, 0] = rows[:, 0].roll(1)
        else:
            rows.copy_(rows.roll(1, -1))
        altered[name] = x
    after = problem.reference(w, altered)
    assert not problem.alterable(w) or any(not torch.equal(before[k], after[k]) for k in before)


def test_part_of_a_long_sum_left_out_is_seen_without_a_vendors_error():
    """As after a timed launch, where the bound is all there is."""
    problem = by_title["mlp-swiglu"]
    w = problem.workload((32, 256, 1024))
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    inputs = problem.generate(w, case, torch.Generator().manual_seed(0), "cpu")
    expected, n = expect(problem, w, inputs), problem.sizes(w)
    most = 15 * n.F // 16
    short = problem.define(n, inputs["x"], inputs["gate"][:most], inputs["up"][:most], inputs["down"][:, :most])
    assert compare(problem, w, expected, problem.eager(w, inputs)).passed
    assert not compare(problem, w, expected, problem.in_type(w, {"y": short})).passed


def test_no_bin_of_a_histogram_outgrows_counts_in_float32():
    """torch.histc has no others."""
    problem = by_title["histogram"]
    for n, bins in problem.full:
        w = problem.workload((2**16, bins))
        for case in problem.cases(w):
            counts = problem.reference(w, problem.generate(w, case, torch.Generator().manual_seed(0), "cpu"))["counts"]
            assert float(counts.max()) / 2**16 * n < 0.9 * 2**24


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expert:softmaxx", "did you mean expert:softmax"),
        ("expert:softmax:4x4x4", "3 sizes"),
        ("expert:softmax:4x0", "at least one column"),
        ("expert:fft:4x16:bf16", "fp32 only"),
        ("expert:top-k:4x8x9", "at most cols"),
        ("expert:gemm-int8:32x32x32:fp16", "int8 only"),
        ("expert:softmax:4x4:nt", "no layout"),
        ("expert:softmax:4x4:fp16:bf16", "sets dtype to bf16|names a dtype"),
    ],
)
def test_what_is_none_of_them_gets_one_sentence(text, says):
    with pytest.raises(ProblemError, match=says):
        resolve(text)


def test_a_name_alone_is_its_first_shape():
    assert resolve("expert:softmax") == suite("experts")[[w.problem for w in suite("experts")].index("expert:softmax")]
    assert resolve("expert:gemm-int8:32x32x32").dtype == "int8"
    assert resolve("expert:softmax:4x4", dtype="fp32").name == "expert:softmax:4x4:fp32"


def test_a_device_that_cannot_judge_it_is_told_why():
    problem = by_title["gemm-fp8"]
    w = problem.workload((8192, 8192, 8192))
    assert problem.unfit(w, 80, 80e9) == "expert:gemm-fp8 needs compute capability 8.9, and this GPU has 8.0"
    assert (problem.unfit(w, 0, 1e9) or "").startswith("verifying expert:gemm-fp8:8192x8192x8192:bf16 takes about ")
    assert problem.unfit(w, 90, 140e9) is None and problem.unfit(problem.workload((32, 48, 64)), 0, 1e9) is None


def test_an_edited_workload_is_refused():
    with pytest.raises(ProblemError, match="at least one column"):
        problem_of(Workload(problem="expert:softmax", axes={"rows": 4, "cols": 0}, dtype="bf16"))
