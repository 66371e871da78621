"""Dispatch with a pack whose kernels are real (plans, requirements, models) and whose times are invented: the models' own, skewed."""

from __future__ import annotations

import json
import math
import tempfile
from itertools import product as grid_of
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluate.verification import FILE, Verification, keep, verification
from kernelwright.families import family
from kernelwright.plan import unmet
from kernelwright.records import Candidate, Comparison, Origin, Outcome, Verdict, Workload
from kernelwright.runtime import pack, times
from kernelwright.runtime.dispatch import LONG_US, Choice, Dispatcher, Pinned, contiguous
from kernelwright.runtime.pack import Pack
from kernelwright.runtime.predictor import Predictor
from made_up_kernels import GRID, H200, gain, made, trials
from made_up_products import confirmed, product, timing


@pytest.fixture(scope="module")
def one() -> Dispatcher:
    return Dispatcher(made())


def test_what_was_measured_is_looked_up(one):
    shipped = one.pack.kernels()
    for w in GRID:
        choice, entry = one.choose(w), one.pack.entry(w)
        ours = {t.candidate.id: t.median("device-cold") for t in trials(w) if t.candidate.id in shipped}
        assert choice.source == "measured" and choice.vendor_us == pytest.approx(trials(w)[0].median("device-cold") * gain(w))
        assert choice.own_us == pytest.approx(min(ours.values()), abs=1e-3) if ours else choice.own_us is None
        if gain(w) > 1:
            assert choice.entry == entry and entry.candidate == trials(w)[0].candidate.id and not choice.library
        else:
            assert choice.library and choice.rival == entry.rival == "cublaslt-auto"
    assert "kernel" in one.choose(product(64, 64, 64)).explain() and "1.40 x" in one.choose(product(64, 64, 64)).explain()
    assert "cublaslt-auto was the fastest" in one.choose(product(1024, 1024, 1024)).explain()


SIZE = st.one_of(
    st.integers(0, 70), st.sampled_from((128, 256, 520, 4096, 65536)), st.integers(1, 2500).map(lambda n: 8 * n), st.integers(0, 2**32)
)


DTYPE, LAYOUT = st.sampled_from(("fp16", "fp16", "bf16", "fp32")), st.sampled_from(("nn", "nn", "nt", "tn", ""))


@settings(max_examples=200, deadline=None)
@given(m=SIZE, n=SIZE, k=SIZE, dtype=DTYPE, layout=LAYOUT, pad=st.sampled_from((0, 0, 1, 8)), align=st.sampled_from((256, 256, 16, 2)))
def test_every_product_gets_a_decision_that_can_run(one, m, n, k, dtype, layout, pad, align):
    w = Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)
    names = {f"align_{x}": align for x in "abc"}
    if layout:
        names |= {f"ld_{x}": contiguous(w, 132)[f"ld_{x}"] + pad for x in "abc"}
    choice = one.choose(w, names)
    assert choice == one.choose(w, names) and choice.explain().startswith(w.name)
    if choice.entry is None:
        assert choice.library and choice.source in ("measured", "fallback")
    else:
        assert unmet(choice.entry.plan, contiguous(w, 132) | names) is None
        assert (choice.entry.workload.dtype, choice.entry.workload.layout) == (dtype, layout)
        assert choice.own_us and choice.own_us < choice.vendor_us < math.inf


def test_choices_do_not_depend_on_the_order_in_which_they_are_made(one):
    asked = [product(8 * m, 8 * n, 8 * k) for m, n, k in grid_of((5, 40, 300), (7, 90, 500), (3, 30, 400))]
    other = Dispatcher(one.pack)
    assert [one.choose(w) for w in asked] == [other.choose(w) for w in reversed(asked)][::-1]


def inside() -> Workload:
    """A product inside the grid whose fastest kernel beats the rival and is that of others too: a pack made without it has it."""
    fastest = {w: trials(w)[0].candidate.id for w in GRID if gain(w) > 1}
    able = (w for w in fastest if all(128 <= n <= 512 for n in w.axes.values()))
    return next(w for w in able if list(fastest.values()).count(fastest[w]) > 2)


def test_gains_are_expected_where_the_neighbours_have_them():
    small, large = inside(), product(1024, 512, 1024)
    d = Dispatcher(made([w for w in GRID if w not in (small, large)]))
    won, lost = d.choose(small), d.choose(large)
    assert won.source == "predicted" and won.ratio == pytest.approx(gain(small), rel=0.15) and 0 < won.spread < 0.15
    assert won.entry.candidate == trials(small)[0].candidate.id and won.own_us == pytest.approx(
        trials(small)[0].median("device-cold"), rel=0.1
    )
    assert "predicted" in won.explain() and "give or take" in won.explain()
    assert lost.library and lost.source == "fallback" and lost.ratio < 1
    assert "expected" in lost.explain()


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 40), st.integers(8, 40), st.integers(8, 40))
def test_larger_products_are_expected_to_take_longer(one, m, n, k):
    small, large = (one.choose(product(*(8 * scale * s for s in (m, n, k)))) for scale in (1, 16))
    assert large.vendor_us > small.vendor_us and large.own_us > small.own_us


def test_the_further_from_what_was_measured_the_less_is_known(one):
    spreads = [one.choose(product(512, 512, k)).spread for k in (512, 6000, 12000, 64000)]
    assert spreads == sorted(spreads) and spreads[-1] > 1.5 * spreads[0]
    assert one.choose(product(2**20, 64, 2**20)).library, "however much the model promises"


def _with_rival(one: Pack, factor: float) -> Dispatcher:
    def slower(c: Comparison) -> Comparison:
        return c.replace(ratio=c.ratio * factor, low=c.low * factor, high=c.high * factor, rival_us=c.rival_us * factor)

    entries = [e.replace(evidence=e.evidence.replace(comparisons=tuple(map(slower, e.evidence.comparisons)))) for e in one.entries]
    return Dispatcher(Pack(one.path, one.manifest.replace(entries=tuple(entries))))


def test_a_slower_library_never_loses_us_a_choice(one):
    asked = [product(8 * m, 8 * n, 8 * k) for m, n, k in grid_of((5, 40, 300), (7, 90, 500), (3, 30, 400))]
    before = [one.choose(w) for w in asked]
    for factor in (1.1, 2.0):
        after = [_with_rival(one.pack, factor).choose(w) for w in asked]
        for a, b in zip(before, after, strict=True):
            assert b.vendor_us == pytest.approx(a.vendor_us * factor)
            assert a.library or b.entry.candidate == a.entry.candidate
        assert sum(c.library for c in after) < sum(c.library for c in before)


def test_what_a_kernel_showed_near_by_decides_between_kernels():
    """A family is found to be slow everywhere: the others are called instead, although the models have not changed."""
    w = inside()
    others = [x for x in GRID if x != w]
    chosen = Dispatcher(made(others)).choose(w).entry.origin.name
    slow = Dispatcher(made(others, skew={chosen: 2.5})).choose(w)
    assert slow.source == "predicted" and slow.entry.origin.name != chosen


def test_a_kernel_unrolled_for_a_long_k_is_not_expected_to_be_fast_on_a_short_one():
    one, config = family("gemm_sm90_whole_k"), {"load": "tma", "swap": False, "block_p": 64, "block_q": 16, "block_k": 128, "split_k": 2}
    long = product(256, 256, 2048)
    assert one.illegal(config, long, H200) is None
    t = confirmed(long, one.estimate(config, long, H200), {"cublaslt-auto": 1.5}, candidate=one.render(config, long, H200))
    made_of = Predictor([pack.entry_of(t, [t])], [(0, t.candidate.id, t.median("device-cold"))], H200)
    for k in (2048, 264):
        p = made_of.predict(w := product(256, 256, k), contiguous(w, 132))
        assert p.entry and p.own_us == pytest.approx(t.median("device-cold"), rel=0.01)


def test_bf16_is_served_with_what_fp16_showed_if_there_are_kernels_for_it(one):
    wanted = product(192, 384, 320)
    assert "no kernel for gemm bf16 nn" in one.choose(wanted.replace(dtype="bf16")).explain()
    first = trials(product(256, 256, 256).replace(dtype="bf16"), "bf16")[0]
    both = Dispatcher(made(more=[first]))
    choice = both.choose(product(384, 256, 256).replace(dtype="bf16"))
    assert choice.source == "predicted" and choice.entry.candidate == first.candidate.id
    alone = Dispatcher(made([], more=[first])).choose(product(384, 256, 256).replace(dtype="bf16"))
    assert choice.spread < alone.spread, "fp16's evidence counts"


def test_pins_come_first_unless_they_cannot_run(one):
    d = Dispatcher(one.pack)
    small, kernel = product(64, 64, 64), one.pack.entry(product(64, 64, 64))
    unmeasured = product(72, 72, 64)
    d.pinned = {small: Pinned(None), unmeasured: Pinned(kernel)}
    assert d.choose(small).library and d.choose(small).source == "pinned"
    assert d.choose(unmeasured).entry == kernel
    d.pinned = {product(72, 77, 64): Pinned(kernel)}
    refused = d.choose(product(72, 77, 64))
    assert refused.library and refused.source == "fallback" and "it requires" in refused.reason
    assert d.choose(product(72, 72, 64)) == one.choose(product(72, 72, 64))


def test_a_measured_kernel_that_these_strides_forbid_is_not_called(one):
    w = product(64, 256, 256)
    assert one.choose(w).entry is not None
    choice = one.choose(w, {"ld_a": 257})
    assert choice.library and choice.source == "fallback" and "it requires ld_a % 8 == 0 (ld_a = 257)" in choice.explain()


@pytest.mark.parametrize(
    ("w", "why"),
    [
        (Workload(problem="chain:softmax", axes={"rows": 8, "cols": 8}, dtype="fp16"), "only products are predicted"),
        (product(0, 64, 64), "it is empty"),
        (product(2**31, 64, 64), "32 bits"),
        (product(64, 64, 72, "tt"), "no kernel for gemm fp16 tt"),
        (product(72, 64, 64).replace(accumulate="fp16"), "no kernel for gemm fp16 nn"),
        (product(7, 7, 7), "can do these sizes"),
    ],
)
def test_the_library_is_called_with_a_reason(one, w, why):
    choice = one.choose(w)
    assert choice.library and choice.source == "fallback" and why in choice.explain()


def test_nothing_is_predicted_without_a_rival_or_a_model():
    alone = [t.replace(comparisons=()) for t in trials(product(64, 64, 64))[:1]]
    assert "no rival was measured" in Dispatcher(made([], more=alone)).choose(product(64, 64, 128)).explain()
    written = Origin(kind="file", name="product.cu")
    mine = [t.replace(candidate=t.candidate.replace(origin=written)) for t in trials(product(64, 64, 64))[:1]]
    by_hand = Dispatcher(made([], more=mine))
    assert by_hand.choose(product(64, 64, 64)).entry is not None, "where it was measured it is called"
    assert by_hand.choose(product(64, 64, 128)).library


# ------------------------------------------------------------------------------------------------------------------ times


def test_a_pack_ships_what_its_kernels_showed_where_they_do_not_serve(one):
    shipped = one.pack.times()
    assert times.FILE in one.pack.manifest.files and set(shipped.kernels) == set(one.pack.kernels())
    pairs = sum(map(len, shipped.kernels.values()))
    assert pairs > 2 * len(GRID), "more than each kernel where it serves"
    for kernel, seen in shipped.kernels.items():
        for at, us in seen:
            w = one.pack.entries[at].workload
            assert us == pytest.approx(next(t.median("device-cold") for t in trials(w) if t.candidate.id == kernel), rel=1e-3)


def test_of_a_pack_without_times_the_entries_speak():
    w = inside()
    full = made([x for x in GRID if x != w])
    files = {name: digest for name, digest in full.manifest.files.items() if name != times.FILE}
    older = Pack(full.path, full.manifest.replace(files=files))
    assert sum(map(len, older.times().kernels.values())) == sum(not e.rival for e in full.entries)
    choice = Dispatcher(older).choose(w)
    assert choice.source == "predicted" and choice.ratio == pytest.approx(gain(w), rel=0.15)
    assert choice.spread > Dispatcher(full).choose(w).spread, "less is known of the kernel"


def test_screens_count_in_the_clock_of_the_confirmation():
    w, elsewhere = product(64, 64, 64), product(64, 64, 128)
    slow, best = trials(w)[1], trials(w)[0]
    later = slow.replace(
        stage="screen",
        timings=(timing("device-cold", 20.0),),
        comparisons=tuple(c.replace(rival_us=30.0, ratio=1.5) for c in slow.comparisons),
    )
    rival = best.comparisons[0].rival_us
    found = times.gather([w], [slow.candidate.id, best.candidate.id], "device-cold", [best], [later, best.replace(stage="screen")])
    assert dict(found.kernels[slow.candidate.id]) == {0: pytest.approx(rival / 1.5, rel=1e-4)}
    assert dict(found.kernels[best.candidate.id]) == {0: pytest.approx(best.median("device-cold"), rel=1e-4)}
    alone = times.gather([w], [slow.candidate.id], "device-cold", [], [later])
    assert dict(alone.kernels[slow.candidate.id]) == {0: 20.0}, "no rival in common"
    wrong = later.replace(verdict=Verdict(outcome=Outcome.WRONG_RESULT), timings=(), comparisons=())
    nothing = times.gather([elsewhere], [slow.candidate.id, "other"], "device-cold", [best], [later, wrong])
    assert nothing.kernels == {slow.candidate.id: (), "other": ()}
    assert times.Times.from_json(json.dumps(json.loads(found.to_json()))) == found


def test_the_spread_of_a_prediction_is_asked_for_before_a_kernel_is_called(one):
    """A gain that the prediction cannot tell from none is left to the library, and said."""
    choices = [one.choose(product(8 * m, 8 * n, 8 * k)) for m, n, k in grid_of((9, 30, 70), repeat=3)]
    called = {c.source: [] for c in choices}
    for c in choices:
        called[c.source].append(math.log(c.ratio) > c.spread)
    assert set(called) == {"predicted", "fallback"} and all(called["predicted"]) and not any(called["fallback"])


def with_rivals(own_us: float, heuristic_us: float | None, fastest: str = "cublaslt-auto") -> Choice:
    """What serves a product on which a rival won in 9.9 us, with these times of ours and of the library's first choice."""
    w = product(256, 256, 256)
    ours = trials(w)[0]
    beside = [(fastest, 9.9), *([("cublaslt", heuristic_us)] if heuristic_us else [])]
    comparisons = tuple(ours.comparisons[0].replace(rival=name, rival_us=us, ratio=us / own_us) for name, us in beside)
    ours = ours.replace(timings=(timing("device-cold", own_us),), comparisons=comparisons)
    rival = Candidate(kind="rival", source=fastest, origin=Origin(kind="rival", name=fastest))
    won = ours.replace(candidate=rival, build="", timings=(timing("device-cold", 9.9),), comparisons=())
    elsewhere = [trials(product(64, 64, 64))[0].replace(candidate=ours.candidate)]
    with tempfile.TemporaryDirectory() as folder:
        pack.save(Path(folder) / "p", [won, ours, *elsewhere])
        return Dispatcher(pack.load(Path(folder) / "p")).choose(w)


def test_where_an_algorithm_won_that_no_program_calls_ours_serves_if_it_beats_what_can_be_called():
    ours = with_rivals(10.0, 12.0)
    assert not ours.library and ours.source == "measured" and "cublaslt-auto was the fastest" in ours.reason
    assert (ours.own_us, ours.vendor_us) == (10.0, 12.0)
    assert with_rivals(10.0, 10.02).library, "no more than the noise"
    assert with_rivals(10.0, 9.95).library
    assert with_rivals(10.0, None).library, "nothing is known of what can be called"
    assert with_rivals(10.0, 12.0, fastest="cublas").library, "that is what is called"


def test_a_product_that_takes_long_is_the_librarys(one):
    """Who is faster there depends on the clock that the power limit leaves."""
    w = product(256, 256, 256)
    kept = with_rivals(0.9 * LONG_US, 1.2 * LONG_US)
    long = with_rivals(1.1 * LONG_US, 1.4 * LONG_US)
    assert not kept.library and long.library and "idle" in long.reason and long.own_us == pytest.approx(1.1 * LONG_US)
    d = Dispatcher(one.pack)
    d.pinned[w] = Pinned(one.pack.entry(w), own_us=1.1 * LONG_US, vendor_us=1.4 * LONG_US)
    assert d.choose(w).library and d.choose(w).source == "pinned", "kw.warmup does not measure it again"


def test_times_are_added_to_a_pack_that_has_none(tmp_path):
    best, screens = trials(product(256, 256, 256))[:1], [t.replace(stage="screen") for w in GRID[:40] for t in trials(w)]
    pack.save(tmp_path / "p", best + [trials(w)[0] for w in GRID[:40]])
    before = pack.load(tmp_path / "p")
    confirmed_only = sum(map(len, before.times().kernels.values()))
    there = [t.replace(environment=t.environment.replace(device="NVIDIA H100")) for t in screens]
    assert pack.add_times(tmp_path / "p", [*best, *there]).times().kernels[best[0].candidate.id]
    pack.add_times(tmp_path / "p", [*best, *(trials(w)[0] for w in GRID[:40]), *screens])
    after = pack.load(tmp_path / "p")
    assert after.entries == before.entries and after.manifest.created == before.manifest.created
    assert after.manifest.earlier[0] == before.manifest.checksum and len(after.manifest.earlier) == 2
    proved = SimpleNamespace(path=tmp_path / "p", manifest=after.manifest.replace(earlier=()))
    asked = {"created": "", "environment": before.manifest.environment, "random": 0, "seed": 0, "limit": None, "tools": {}}
    found = Verification(manifest=before.manifest.checksum, rivals=0, kernels=(), **asked)
    keep(after, found, whole=True)
    assert verification(after) == found, "the kernels and what they serve are the same"
    assert verification(proved) is None
    (tmp_path / "p" / FILE).unlink()

    assert sum(map(len, after.times().kernels.values())) > confirmed_only > 20
    assert {p.name for p in (tmp_path / "p").iterdir()} == {"manifest.json", "sources", "builds", times.FILE}
