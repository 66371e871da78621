"""What is right in form may hold anything: expressions, plans and Workloads drawn by hypothesis."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.plan import Names, PlanError, evaluate, unmet
from kernelwright.problems import FLOATS, LAYOUTS, ProblemError, problem_of, resolve
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorArg, Workload

NAMES = Names({"M": 64, "N": 0, "K": 7, "ld_a": 64, "align_a": 16, "sms": 4})

leaves = st.sampled_from(["M", "N", "K", "sms", "unknown", "0", "1", "-3", "4096", str(2**70), "1.5", "'x'", "()"])
expressions = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.tuples(
            part,
            st.sampled_from(["+", "-", "*", "//", "%", "<<", ">>", "==", "!=", "<", "<=", "and", "or", "/", "**", "&", "@", "if"]),
            part,
        ).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["cdiv", "min", "max", "abs", "exec"]), part, part).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        part.map(lambda p: f"not {p}"),
    ),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(expressions)
def test_an_expression_is_a_whole_number_or_a_plan_error(text):
    with contextlib.suppress(PlanError):
        value = evaluate(text, NAMES)
        assert type(value) is int
        assert evaluate(text, dict(NAMES)) == value  # the remembered value is the one that is worked out


plans = st.builds(
    LaunchPlan,
    launches=st.lists(
        st.builds(
            Launch,
            kernel=st.text(max_size=5),
            args=st.lists(
                st.one_of(st.builds(TensorArg, name=st.text(max_size=3)), st.builds(ScalarArg, ctype=st.just("i64"), value=expressions)),
                max_size=3,
            ).map(tuple),
            grid=st.tuples(expressions, expressions, expressions),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    requires=st.lists(expressions, max_size=2).map(tuple),
)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(plans)
def test_a_plan_survives_its_text_and_names_what_it_lacks(plan):
    assert LaunchPlan.from_json(plan.to_json()) == plan
    with contextlib.suppress(PlanError):
        found = unmet(plan, NAMES)
        assert found is None or found.startswith("it requires")


workloads = st.builds(
    Workload,
    problem=st.sampled_from(["gemm", "linear", "chain:softmax", "chain:rotary", "chain:none", "", "kernelbench:x"]),
    axes=st.dictionaries(st.sampled_from(["M", "N", "K", "rows", "cols", ""]), st.integers(0, 2**40), max_size=4),
    dtype=st.sampled_from([*FLOATS, "int32", "int64"]),
    accumulate=st.sampled_from(["fp32", "fp16", "", "fp64"]),
    layout=st.sampled_from([*LAYOUTS, "", "n", "xx"]),
    epilogue=st.sampled_from(["", "bias+gelu", "gelu+gelu", "alpha=nan", "none", "alpha=2"]),
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(workloads)
def test_a_workload_from_a_file_has_a_problem_or_is_named(w):
    with contextlib.suppress(ProblemError):
        problem = problem_of(w)
        assert all(n >= 0 for spec in problem.tensors(w) for n in spec.shape)
        assert problem.bound(w) >= 0 and problem.cost(w).bytes >= 0
        assert problem.cases(w)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                "gemm",
                "linear",
                "chain",
                "softmax",
                "8x8x8",
                "0x1x2",
                "8x8",
                "fp16",
                "int32",
                "nn",
                "acc=fp16",
                "bias+gelu",
                "",
                "²x3x4",
                "x",
            ]
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_name_leads_back_to_its_workload(tokens):
    with contextlib.suppress(ProblemError):
        w = resolve(":".join(tokens))
        assert resolve(w.name) == w
