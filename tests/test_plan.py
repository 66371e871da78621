from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.plan import PlanError, cdiv, evaluate, unmet
from kernelwright.records import Launch, LaunchPlan

NAMES = {"M": 100, "N": 64, "K": 7, "ld_a": 104, "align_a": 16, "sms": 132}

leaves = st.one_of(st.integers(0, 2**40).map(str), st.sampled_from(list(NAMES)))
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda x: f"(-{x})"),
        inner.map(lambda x: f"(not {x})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=12,
)


@given(expressions)
def test_values_are_python_s(text):
    try:
        expected = eval(text, {"min": min, "max": max}, NAMES)  # the test's own text
    except ZeroDivisionError:
        with pytest.raises(PlanError, match=r"cannot evaluate|at most 500"):
            evaluate(text, NAMES)
        return
    if len(text) <= 500 and " and " not in text and " or " not in text:
        assert evaluate(text, NAMES) == expected
    elif len(text) <= 500:
        assert isinstance(evaluate(text, NAMES), int), "and / or give a condition, not an operand"


@given(st.text(max_size=40) | st.text("M()[]{}+-*/%<>=!&|^~.,:;'\"\\ 019abfdeinlmorx_@#\n\t\0", max_size=60))
def test_any_text_is_a_number_or_a_plan_error(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            assert isinstance(evaluate(text, NAMES), int)
        except PlanError as error:
            assert repr(text)[1:-1] in str(error) or "characters" in str(error)


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_cdiv(a, b):
    assert cdiv(a, b) == evaluate("cdiv(a, b)", {"a": a, "b": b}) == (a + b - 1) // b


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("cdiv(M, 16) * cdiv(N, 16)", 28),
        ("1 << 4", 16),
        ("ld_a >> 2", 26),
        ("K % 8 == 0", 0),
        ("1 < K < 8", 1),
        ("M > 50 and not N % 64", 1),
        ("max(1, min(sms, M), K)", 100),
        ("-K // 2", -4),
    ],
)
def test_examples(text, value):
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Q + 1", "unknown name 'Q'; known are M, N"),
        ("M / 2", "'M / 2' is not allowed"),
        ("M ** 2", "is not allowed"),
        ("1.5", "is not allowed"),
        ("__import__('os')", "is not allowed"),
        ("M.real", "is not allowed"),
        ("[M for _ in M]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("(x := 1)", "is not allowed|cannot parse"),
        ("min(M)", "is not allowed"),
        ("min(*M)", "is not allowed"),
        ("cdiv(1)", "is not allowed"),
        ("cdiv(1, 2, 3)", "is not allowed"),
        ("max(1, 2, key=3)", "is not allowed"),
        ("pow(2, 99)", "is not allowed"),
        ("M //", "cannot parse"),
        ("", "cannot parse"),
        ("M // (N - 64)", "zero"),
        ("M % 0", "zero"),
        ("cdiv(M, 0)", "zero"),
        ("1 << 63", "shift by 63"),
        ("1 << -1", "shift by -1"),
        ("1 >> -1", "shift by -1"),
        ("1 + " * 200 + "1", "at most 500"),
        ("(" * 240 + "1" + ")" * 240, "cannot"),
    ],
)
def test_what_is_refused_is_named(text, words):
    with pytest.raises(PlanError, match=words) as error:
        evaluate(text, NAMES)
    assert "\n" not in str(error.value)


def test_unmet_says_which_requirement_and_the_values():
    plan = LaunchPlan(launches=(Launch(kernel="k", args=()),), requires=("M % 4 == 0", "K % 8 == 0 and N > K"))
    assert unmet(plan, NAMES) == "it requires K % 8 == 0 and N > K (K = 7, N = 64)"
    assert unmet(plan, {**NAMES, "K": 8}) is None
    with pytest.raises(PlanError, match="unknown name 'K'"):
        unmet(plan, {"M": 4, "N": 1})
