"""A suite of products against its rivals: layouts, dispatch, means, and the pictures of them."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright import records
from kernelwright.problems.suites import SIZE_CLASSES
from kernelwright.records import Outcome, Verdict
from kernelwright.report import heatmap, shapes_page
from kernelwright.report.shapes import Outside, Result, mean_of, shapes_of
from made_up_products import ENVIRONMENT, confirmed, product, suite_trials

COLD = "device-cold"


def one(*trials):
    (shape,) = shapes_of(trials)
    return shape


def test_ours_stands_against_the_rivals_faster_layout():
    shape = one(confirmed(product(64, 64, 64), 10.0, {"cublaslt-auto": 2.0, "cublaslt-auto-nt": 1.5, "cublas-nt": 0.5}))
    found = shape.headline("cublaslt-auto", COLD)
    assert found is not None and found.same_rounds
    assert (found.c.rival, found.c.ratio, found.c.outcome) == ("cublaslt-auto-nt", 1.5, "win")
    assert shape.within("nn", "cublaslt-auto", COLD).c.ratio == 2.0
    assert shape.within("nt", "cublaslt-auto", COLD) is None and shape.headline("cublaslt-all", COLD) is None


def test_best_layout_against_best_layout_across_rounds():
    nn = confirmed(product(64, 64, 64, "nn"), 8.0, {"cublaslt-auto": 0.5})  # the rival takes 4 us
    nt = confirmed(product(64, 64, 64, "nt"), 5.0, {"cublaslt-auto": 1.2})  # 6 us
    shape = one(nn, nt)
    found = shape.headline("cublaslt-auto", COLD)
    assert found is not None and found.trial is nt and not found.same_rounds
    assert found.c.ratio == pytest.approx(4 / 5) and found.c.rival == "cublaslt-auto-nn" and found.c.rival_us == 4.0
    assert found.c.low == pytest.approx(0.8 * 0.99), "its interval is as wide as that of its own rounds"
    served = shape.dispatched("cublaslt-auto", COLD)
    assert served is not None and served.serves == "cublaslt-auto"
    assert (served.c.ratio, served.c.outcome) == (1.0, "tie"), "what is dispatched to the rival itself is a tie with it"


def test_layouts_are_compared_in_units_of_the_rivals_that_both_met():
    """The second layout was measured on a GPU with a faster clock: it takes fewer microseconds, but so do the rivals beside it."""
    nn = confirmed(product(64, 64, 64, "nn"), 10.0, {"cublaslt-auto": 1.2, "cublaslt-auto-nt": 1.3})
    nt = confirmed(product(64, 64, 64, "nt"), 9.0, {"cublaslt-auto": 1.1, "cublaslt-auto-nn": 1.02, "eager": 2.0})
    shape = one(nn, nt)
    assert shape.own(COLD) is nn and shape.headline("cublaslt-auto", COLD).c.ratio == 1.2
    assert shape.dispatched("cublaslt-auto", COLD).trial is nn
    assert shape.headline("eager", COLD).trial is nt, "only there it was measured"


def test_a_dispatcher_calls_the_rival_in_whichever_layout_is_faster():
    """Each layout's rounds see the other layout's rival ahead; what is dispatched is compared with it in the same rounds."""
    nn = confirmed(product(64, 64, 64, "nn"), 10.0, {"cublaslt-auto": 0.9, "cublaslt-auto-nt": 0.88})
    nt = confirmed(product(64, 64, 64, "nt"), 10.0, {"cublaslt-auto": 0.9, "cublaslt-auto-nn": 0.88})
    served = one(nn, nt).dispatched("cublaslt-auto", COLD)
    assert served.c.ratio == 1.0 and served.serves in ("cublaslt-auto-nt", "cublaslt-auto-nn")


def test_a_figure_counts_the_trials_that_met_its_rival():
    """Confirmed twice; the second time, the faster one, without PyTorch and launched dependently as well."""
    w = product(64, 64, 64)
    first = confirmed(w, 10.0, {"cublaslt-auto": 1.2, "eager": 1.5})
    again = confirmed(w, 9.0, {"cublaslt-auto": 1.25}, scheme="ring")
    result = Result([one(first, again)], COLD)
    assert result.means["own_over_tuned"].mean == pytest.approx(1.25) and result.means["own_over_torch"].mean == pytest.approx(1.5)


def test_a_rival_in_a_layout_that_nobody_tuned_cannot_be_dispatched_to():
    shape = one(confirmed(product(64, 64, 64), 10.0, {"cublaslt-auto": 1.1, "cublaslt-auto-nt": 0.8}))
    result = Result([shape], COLD)
    assert result.losses(result.headline) and [v.c.ratio for _, v in result.losses(result.dispatched)] == [pytest.approx(0.8)]
    assert result.figures()["dispatched_losses"] == 1


def test_a_packs_choice_is_what_is_judged():
    w = product(64, 64, 64)
    best = confirmed(w, 10.0, {"cublaslt-auto": 1.2, "cublas": 1.5})
    slower = confirmed(w, 15.0, {"cublaslt-auto": 0.8, "cublas": 1.0}, scheme="persistent")
    shape = one(best, slower)
    assert shape.dispatched("cublaslt-auto", COLD).c.ratio == 1.2
    assert shape.dispatched("cublaslt-auto", COLD, {w: slower.candidate.id}).c.ratio == pytest.approx(0.8)
    by_rival = shape.dispatched("cublaslt-auto", COLD, {w: "cublas"})
    assert by_rival.serves == "cublas" and by_rival.c.ratio == pytest.approx(0.8)
    assert shape.dispatched("cublaslt-auto", COLD, {}) is None, "the pack has nothing for it"


def test_a_kernel_that_failed_is_not_published():
    w = product(64, 64, 64)
    wrong = confirmed(w, 1.0, {"cublaslt-auto": 9.0})
    failed = wrong.replace(verdict=Verdict(outcome=Outcome.WRONG_RESULT), timings=(), comparisons=(), stage="replay")
    right = confirmed(w, 10.0, {"cublaslt-auto": 1.1}, scheme="tiny")
    assert one(wrong, failed, right).own(COLD) is right
    figures = Result(shapes_of([wrong, failed]), COLD).figures()
    assert figures["shapes"] == 0 and figures["shapes_without_a_verified_kernel"] == 1 and "own_over_tuned" not in figures


@given(st.integers(0, 10**6), st.sampled_from([("nn",), ("nn", "nt")]))
def test_dispatch_never_loses_where_every_layout_was_tuned(seed: int, layouts):
    rng = random.Random(seed)
    rivals = ("cublas", "cublaslt-auto", "cublaslt-all")
    draw = {layout: {r: rng.lognormvariate(0, 0.3) for r in rivals} for layout in layouts}
    shape = one(*(confirmed(product(64, 64, 64, layout), rng.uniform(5, 15), draw[layout]) for layout in layouts))
    for rival in ("cublaslt-auto", "cublaslt-all"):
        own, served = shape.headline(rival, COLD), shape.dispatched(rival, COLD)
        assert served.c.ratio >= 1 - 1e-9 and served.c.ratio >= own.c.ratio - 1e-9 and served.c.outcome != "loss"


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40))
def test_the_mean_is_geometric_and_inside_its_interval(ratios):
    found = mean_of(ratios)
    assert found.mean == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)))
    assert min(ratios) * (1 - 1e-9) <= found.low <= found.mean * (1 + 1e-9) and found.mean <= found.high * (1 + 1e-9)
    assert found.shapes == len(ratios)


def test_classes_by_work():
    names = [one(confirmed(product(m, n, k), 1.0, {})).size_class for m, n, k in
             ((64, 64, 64), (512, 256, 512), (2048, 1024, 1024), (4096, 4096, 4096), (16384, 16384, 16384))]  # fmt: skip
    assert names == ["small", "mid", "large", "huge", "huge"]
    assert SIZE_CLASSES["small"] == 2 * 512 * 256 * 512, "the limit belongs to the class above"


def test_every_figure_has_its_name_its_interval_and_its_shapes():
    sizes = (64, 512, 4096, 16384)
    outside = {(64, 64, 64): Outside(0.5), (1, 1, 1): Outside(9.0), (64, 64, 512): Outside(2.0), (64, 512, 64): Outside(0.1, "fp16")}
    result = Result(shapes_of(suite_trials(sizes=sizes)), COLD, outside=outside)
    figures = result.figures()
    headline = {s.name: v for s, v in result.headline.items()}
    over = [0.5 * headline["64x64x64"].c.ratio, 2.0 * headline["64x64x512"].c.ratio]
    assert figures["own_over_cuda_l2"] == pytest.approx(math.sqrt(over[0] * over[1])) and figures["cuda_l2_slower"] == sum(
        x > 1 for x in over
    )
    assert figures["intervals"]["own_over_cuda_l2_all"]["shapes"] == 3
    classes = [f"own_over_tuned_{c}" for c in SIZE_CLASSES]
    names = ["own_over_tuned", *classes, "dispatched_over_tuned", "own_over_tuned_nn", "own_over_tuned_nt"]
    names += ["own_over_exhaustive", "dispatched_over_exhaustive", "own_over_torch", "own_over_cuda_l2"]
    for name in names:
        interval = figures["intervals"][name]
        assert interval["low"] <= figures[name] <= interval["high"] and interval["shapes"] > 0, name
    assert sum(figures["intervals"][name]["shapes"] for name in classes) == figures["shapes"] == 64
    assert figures["own_wins"] + figures["own_ties"] + figures["own_losses"] == 64
    assert figures["largest_error_over_vendor"] == 1.01 and figures["dispatched_losses"] == 0
    assert not any(name.startswith("chain") for name in figures), "nothing was measured back to back"


def test_launches_back_to_back_have_figures_of_their_own(monkeypatch):
    monkeypatch.setattr(records, "MODES", tuple(dict.fromkeys((*records.MODES, "device-chain"))))
    trials = [
        confirmed(product(64, 64, 64), 10.0, {"cublaslt-auto": 1.5}, modes=(COLD,)),
        confirmed(product(64, 64, 64), 8.0, {"cublaslt-auto": 2.0}, modes=("device-chain",), scheme="tiny"),
    ]
    result = Result(shapes_of(trials), COLD)
    assert result.figures()["own_over_tuned"] == pytest.approx(1.5)
    assert result.figures()["chain_own_over_tuned"] == result.figures()["chain_own_over_tuned_small"] == pytest.approx(2.0)
    assert [key for key, *_ in shapes_page.charts(result)] == ["own-over-tuned", "dispatched-over-tuned", "chain-own-over-tuned"]


def test_the_pictures_show_every_shape_and_what_is_missing():
    trials = suite_trials(sizes=(64, 128, 4096), share=0.7)
    result = Result(shapes_of(trials), COLD)
    root = ET.fromstring(heatmap.picture(result.headline, COLD, "Ours & theirs"))
    text = "".join(root.itertext())
    assert "Ours & theirs" in text and text.count("not measured") == 27 - len(result.shapes)
    numbers = [e for e in root.iter() if e.tag.endswith("text") and e.get("class", "").split(" ")[0] in ("cell", "on")]
    assert len(numbers) == len(result.shapes)
    beyond = sum("beyond" in e.get("class", "") for e in numbers)
    assert beyond == len(result.losses(result.headline))
    assert [k for k, _ in heatmap.panels(result.headline, COLD, "x")] == sorted({s.sizes[2] for s in result.shapes})


@pytest.mark.parametrize("value", [1e-3, 0.5, 0.99, 1.0, 1.01, 2.0, 1e3])
def test_colour_is_as_strong_for_twice_as_for_half(value):
    assert heatmap._opacity(value) == pytest.approx(heatmap._opacity(1 / value)) and 0 <= heatmap._opacity(value) < 1
    assert heatmap._opacity(1.0) == 0


def test_the_page_names_losses_with_their_cause_and_escapes_what_it_is_given():
    trials = suite_trials(sizes=(64, 4096, 16384))
    result = Result(shapes_of(trials), COLD)
    page = shapes_page.render(
        result, title="<b>t</b>", command="python x <y>", environment=ENVIRONMENT, raw="r.xz", left_out="Left out: 3 & more."
    )
    losses = result.losses(result.headline)
    assert losses and all(f"<code>{v.trial.id[:12]}</code>" in page for _, v in losses)
    assert "gemm_sm90_persistent block_p=128" in page and "archive import r.xz\nkernelwright replay TRIAL" in page
    assert "<b>t" not in page and "&lt;y&gt;" in page and "Left out: 3 &amp; more." in page
    assert page.index(losses[0][1].trial.id[:12]) < page.index(losses[-1][1].trial.id[:12]), "the slowest first"


def test_a_page_of_nothing_compared_says_so():
    result = Result(shapes_of([confirmed(product(64, 64, 64), 10.0, {})]), COLD)
    page = shapes_page.render(result, title="t", command="c", environment=ENVIRONMENT, raw="r.xz")
    assert "No shape has both" in page
