"""Scores are pure functions: what must hold for any rows, and figures worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.bench.results import Result, Task
from kernelwright.bench.scores import EXPERT, STRONGEST, THRESHOLDS, Row, best_of, by, mean_pass_at_k, own_work, pass_at_k, score
from kernelwright.bench.tasks import domain_of, only
from kernelwright.problems import ProblemError
from kernelwright.records import Comparison


def compared(ratio: float, rival: str = "eager", noise: float = 0.02) -> Comparison:
    return Comparison(
        rival=rival,
        mode="device-warm",
        ratio=ratio,
        low=ratio * 0.99,
        high=ratio * 1.01,
        rival_us=10.0,
        noise_low=1 - noise,
        noise_high=1 + noise,
        rounds=9,
    )


def correct(task: str, *ratios: float, **fields) -> Row:
    names = ("eager", "compile", "graph")
    return Row(task, "correct", {n: compared(r, n) for n, r in zip(names, ratios, strict=False)}, **fields)


@st.composite
def rows(draw) -> list[Row]:
    found = []
    for i in range(draw(st.integers(0, 8))):
        status = draw(st.sampled_from(["correct", "wrong", "not compiled", "no answer", "skipped"]))
        ratios = draw(st.lists(st.floats(0.05, 40), min_size=0, max_size=3))
        work = draw(st.sampled_from(["", "flags only", "own kernels"]))
        row = correct(str(i), *ratios, work=work, level=draw(st.sampled_from("12")))
        # comparisons of what is not correct must count for nothing, should there be any
        found.append(Row(row.task, status, row.ratios, level=row.level, work=work, skipped="memory" if status == "skipped" else ""))
    return found


@given(rows())
def test_what_holds_for_any_rows(found):
    s = score(found)
    counted = [r for r in found if r.status != "skipped"]
    assert s.tasks == len(counted) and sum(s.skipped.values()) == len(found) - len(counted)
    assert s.correct <= s.compiled <= s.answered <= s.tasks and s.compared <= s.correct
    assert s.wins + s.ties + s.losses == s.compared
    if s.tasks:
        assert s.fast[0.0] == s.correct / s.tasks
        assert all(s.fast[a] >= s.fast[b] for a, b in itertools.pairwise(THRESHOLDS))
        assert s.wins / s.tasks <= s.fast[1.0], "a win is a ratio above 1, and more"
    if s.compared:
        assert s.worst - 1e-9 <= s.geomean <= s.best + 1e-9
        assert 0 < s.share <= 1 + 1e-12 and s.share <= s.geomean + 1e-12


@given(rows())
def test_the_strongest_rival_is_never_easier_than_another(found):
    for rival in ("eager", "compile", "graph"):
        for row in found:
            strongest, other = row.versus(STRONGEST), row.versus(rival)
            assert other is None or (strongest is not None and strongest.ratio <= other.ratio)


@given(rows(), st.sampled_from(["wrong", "not compiled", "no answer"]))
def test_a_wrong_answer_more_never_raises_a_share(found, status):
    before, after = score(found), score([*found, Row("more", status, correct("x", 9.0).ratios)])
    for p in THRESHOLDS:
        assert math.isnan(before.fast[p]) or after.fast[p] <= before.fast[p]
    assert after.geomean == before.geomean or math.isnan(before.geomean)


@given(rows())
def test_what_was_skipped_changes_no_figure(found):
    more = score([*found, Row("more", "skipped", correct("x", 9.0).ratios, skipped="architecture")])
    before = score(found)
    assert (more.tasks, more.correct, more.compared, str(more.fast), str(more.geomean)) == (
        before.tasks,
        before.correct,
        before.compared,
        str(before.fast),
        str(before.geomean),
    )


@given(rows())
def test_flags_alone_count_as_no_answer(found):
    aside = score(own_work(found))
    flags = sum(r.status == "correct" and r.work == "flags only" for r in found)
    assert aside.correct == score(found).correct - flags and aside.tasks == score(found).tasks
    assert sum(len(v) for v in by(found, lambda r: r.level).values()) == len(found)


def test_figures_by_hand():
    found = [correct("a", 2.0, 4.0), correct("b", 1.0, 8.0), correct("c", 0.5), Row("d", "wrong"), Row("e", "skipped", skipped="memory")]
    s = score(found)
    assert s.fast == {0.0: 0.75, 1.0: 0.25, 2.0: 0.0, 5.0: 0.0}, "strict: 1.0 is not above 1, nor 2.0 above 2"
    assert s.geomean == pytest.approx(1.0) and (s.wins, s.ties, s.losses) == (1, 1, 1)
    assert score(found, "compile").fast[5.0] == 0.25 and score(found, "compile").compared == 2
    assert s.share == pytest.approx(0.5 ** (1 / 3)) and s.skipped == {"memory": 1}
    with pytest.raises(ValueError, match="two rows"):
        score([correct("a", 1.0), correct("a", 2.0)])
    assert math.isnan(score([]).fast[1.0]) and score([]).tasks == 0


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_what_drawing_gives(numbers):
    n, right, k = numbers
    draws = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_the_expert_is_the_fastest_library():
    ratios = {name: compared(r, name) for name, r in (("eager", 0.5), ("cublas", 0.9), ("cublaslt-auto", 0.8), ("compile", 3.0))}
    row = Row("a", "correct", ratios)
    assert row.versus(EXPERT).rival == "cublaslt-auto" and row.versus(STRONGEST).rival == "eager"
    s = score([row, Row("b", "wrong")], EXPERT)
    assert s.share == pytest.approx(0.8) and s.compared == 1 and s.fast[0.0] == 0.5
    assert score([correct("a", 2.0)], EXPERT).compared == 0, "PyTorch alone is no expert"


def test_pass_at_k_over_tasks():
    mean, tasks = mean_pass_at_k({"a": [True, False], "b": [False, False], "c": [True]}, 2)
    assert (mean, tasks) == (0.5, 2)
    assert math.isnan(mean_pass_at_k({"a": [True]}, 2)[0])
    with pytest.raises(ValueError):
        pass_at_k(2, 3, 1)


def test_the_best_of_several_samples():
    def made(sample, status, ratio=None):
        found = (compared(ratio),) if ratio else ()
        return Result(suite="s", task="t", workload="w", entrant="e", sample=sample, status=status, mode="device-warm", comparisons=found)

    assert best_of([made(0, "wrong"), made(1, "correct", 0.9), made(2, "correct", 1.2), made(3, "skipped")])[0].sample == 2


def test_domains_and_choosing_tasks():
    assert domain_of(["convolution", "relu", "mean"]) == "convolution"
    assert domain_of(["mm", "add", "_softmax"]) == "matrix product" and domain_of(["_softmax"]) == "softmax"
    assert domain_of(["native_layer_norm"]) == "normalisation" and domain_of(["mul", "tanh"]) == "element-wise" and domain_of([]) == ""
    tasks = [
        Task(suite="kernelbench:1", key=f"1/{i}", number=i, name=n) for i, n in ((1, "Matrix product"), (4, "Convolution"), (12, "Sum"))
    ]
    assert [t.number for t in only(tasks, ["2-12"])] == [4, 12] and [t.number for t in only(tasks, ["1,conv"])] == [1, 4]
    with pytest.raises(ProblemError, match="names no problem"):
        only(tasks, ["7"])
