from __future__ import annotations

import math
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.records import (
    DTYPES,
    MODES,
    Build,
    Candidate,
    Check,
    Comparison,
    Environment,
    KernelResources,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    Timing,
    Trial,
    Verdict,
    Workload,
    WorkspaceArg,
)

names = st.text("abcdefgXYZ_0123", min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
exprs = st.one_of(st.integers(0, 2**40), st.sampled_from(["M", "cdiv(M, 128)", "8", "ld_a * 2"]))
positive = st.floats(1e-3, 1e9)
workloads = st.builds(
    Workload,
    problem=names,
    axes=st.dictionaries(names, st.integers(0, 2**40), max_size=4),
    dtype=st.sampled_from(list(DTYPES)),
    accumulate=st.sampled_from(["fp16", "fp32"]),
    layout=st.sampled_from(["", "nn", "tt"]),
    source=texts,
)
args = st.one_of(
    st.builds(TensorArg, name=names),
    st.builds(ScalarArg, ctype=st.sampled_from(["i32", "i64", "f32"]), value=st.one_of(exprs, st.floats(-1e6, 1e6))),
    st.builds(WorkspaceArg, offset=exprs),
    st.builds(TensorMapArg, name=names, dims=st.tuples(exprs, exprs), strides=st.tuples(exprs), box=st.tuples(exprs, exprs)),
)
launches = st.builds(
    Launch,
    kernel=names,
    args=st.lists(args, max_size=4).map(tuple),
    grid=st.tuples(exprs, exprs, exprs),
    cluster=st.tuples(*[st.integers(1, 4)] * 3),
    smem=exprs,
    pdl=st.booleans(),
)
plans = st.builds(LaunchPlan, launches=st.lists(launches, min_size=1, max_size=3).map(tuple), workspace=exprs)
origins = st.builds(
    Origin,
    kind=st.sampled_from(["family", "file", "llm", "rival"]),
    name=texts,
    config=st.dictionaries(names, st.one_of(st.integers(-9, 9), texts, st.booleans(), st.floats(-9, 9)), max_size=3),
    parents=st.lists(names, max_size=2).map(tuple),
)
candidates = st.builds(
    Candidate, kind=st.sampled_from(["cuda", "cpu", "python", "rival", "fake"]), source=texts, plan=plans, origin=origins
)
checks = st.builds(Check, rung=names, case=names, passed=st.booleans(), error=st.floats(), bound=st.floats())
timings = st.builds(
    Timing, mode=st.sampled_from(MODES), samples=st.lists(positive, min_size=1, max_size=5).map(tuple),
    median=positive, low=positive, high=positive,
)  # fmt: skip
comparisons = st.builds(
    Comparison, rival=names, mode=st.sampled_from(MODES), ratio=positive, low=positive, high=positive, rival_us=positive,
    noise_low=positive, noise_high=positive, rounds=st.integers(1, 99),
)  # fmt: skip
environments = st.builds(
    Environment, target=names, device=texts,
    facts=st.dictionaries(names, st.one_of(texts, st.integers(-9, 9), st.floats(-9, 9)), max_size=3),
)  # fmt: skip
builds = st.builds(
    Build, key=names, artifact=texts, compiler=texts, arch=names, resources=st.dictionaries(names, st.builds(KernelResources), max_size=2)
)  # fmt: skip


@st.composite
def trials(draw) -> Trial:
    outcome = draw(st.sampled_from(list(Outcome)))
    ok = outcome is Outcome.OK
    return Trial(
        workload=draw(workloads),
        candidate=draw(candidates),
        verdict=Verdict(outcome=outcome, evidence=draw(texts), checks=draw(st.lists(checks, max_size=2).map(tuple))),
        environment=draw(environments),
        build=draw(st.none() | builds),
        timings=tuple(draw(st.lists(timings, min_size=1, max_size=2))) if ok else (),
        comparisons=tuple(draw(st.lists(comparisons, max_size=2))) if ok else (),
        sensors=draw(st.dictionaries(names, st.floats(-1e3, 1e3), max_size=2)),
        stage=draw(st.sampled_from(["screen", "confirm", "verify", "replay"])),
        session=draw(texts),
    )


def fails(outcome=Outcome.CRASH, **fields) -> Trial:
    return Trial(
        **{
            "workload": Workload(problem="p", axes={}),
            "candidate": Candidate(kind="fake", source="", origin=Origin(kind="script")),
            "verdict": Verdict(outcome=outcome),
            "environment": Environment(target="fake", device=""),
            **fields,
        }
    )


TIMING = Timing(mode="device-cold", samples=(1.0,), median=1.0, low=1.0, high=1.0)


@given(trials())
def test_every_record_comes_back_from_json_with_the_same_identity(trial):
    back = Trial.from_json(trial.to_json())
    assert back == trial and back.id == trial.id and hash(back) == hash(trial)
    assert back.workload.name == trial.workload.name
    assert "\n" not in trial.to_json()
    assert len(trial.id) == 16 and int(trial.id, 16) >= 0


@given(workloads)
def test_identity_is_the_content(w):
    assert w.id == w.replace().id == Workload.from_json(w.to_json()).id
    assert w.replace(axes=dict(reversed(w.axes.items()))).id == w.id, "the order of axes is no content"
    assert w.replace(source=w.source + "x").id != w.id
    assert w.replace(axes={**w.axes, "more": 1}).id != w.id


@given(candidates, origins)
def test_a_candidate_is_the_same_from_any_origin(candidate, origin):
    assert candidate.replace(origin=origin).id == candidate.id
    assert candidate.replace(flags=("-O1",)).id != candidate.id
    assert candidate.replace(source=candidate.source + " ").id != candidate.id
    assert candidate.replace(plan=candidate.plan.replace(workspace="M * 7")).id != candidate.id


def test_identities_never_change():
    """The archive's keys: a change here loses every user's history."""
    assert Workload(problem="gemm", axes={"M": 1, "N": 2, "K": 3}, dtype="fp16", layout="nn").id == "c5913aeeeda40f21"
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"), ScalarArg(ctype="f32", value=1.5))),))
    assert Candidate(kind="cpu", source="int x;", plan=plan, origin=Origin(kind="file")).id == "b717f2064c7390cc"


def test_different_records_of_the_same_content_differ():
    assert TensorArg(name="a").id != TensorMapArg(name="a", dims=(), strides=(), box=()).id


def test_names():
    assert Workload(problem="gemm", axes={"M": 1, "N": 2, "K": 3}, dtype="fp16", layout="nn").name == "gemm:1x2x3:fp16:nn"
    assert Workload(problem="gemm", axes={"M": 1}, dtype="fp16", accumulate="fp16").name == "gemm:1:fp16:acc=fp16"
    assert Workload(problem="kernelbench:x", axes={}).name == "kernelbench:x:fp32"
    candidate = Candidate(kind="rival", source="eager", origin=Origin(kind="rival", name="eager"))
    assert candidate.label == "eager"
    assert candidate.replace(kind="fake").label == f"eager/{candidate.replace(kind='fake').id[:8]}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Workload(problem="p", axes={}, dtype="fp12"), "unknown dtype 'fp12'; choose one of fp8"),
        (lambda: Workload(problem="p", axes={"M": -1, "N": 2}), "must not be negative: M=-1"),
        (lambda: LaunchPlan(launches=()), "at least one launch"),
        (lambda: Candidate(kind="cuda", source="", origin=Origin(kind="file")), "a cuda candidate needs a launch plan"),
        (lambda: Timing(mode="fast", samples=(1.0,), median=1, low=1, high=1), "unknown timing mode 'fast'"),
        (lambda: TIMING.replace(samples=()), "needs samples"),
        (lambda: TIMING.replace(samples=(1.0, 0.0)), "above zero"),
        (lambda: TIMING.replace(samples=(1.0, math.nan)), "finite"),
        (lambda: TIMING.replace(median=math.inf), "finite"),
        (lambda: fails(timings=(TIMING,)), "whose verdict is CRASH must not carry a time"),
        (lambda: fails(Outcome.NOISY, timings=(TIMING,)), "must not carry a time"),
        (lambda: fails(Outcome.OK), "verified Trial of stage 'screen' must carry a time"),
        (lambda: fails(sensors={"power": math.nan, "clock": 1.0}), "leave out those that were not read: power"),
    ],
)
def test_states_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_verified_trial_of_the_verify_stage_needs_no_time():
    assert fails(Outcome.OK, stage="verify").verdict.ok


def test_the_same_holds_for_what_json_says():
    text = fails(Outcome.OK, timings=(TIMING,)).to_json()
    with pytest.raises(ValueError, match="must not carry a time"):
        Trial.from_json(text.replace('"OK"', '"CHEAT"'))
    with pytest.raises(msgspec.ValidationError):
        Trial.from_json(text.replace('"session"', '"sesion"'))
    with pytest.raises(msgspec.ValidationError):
        Trial.from_json(text.replace('"OK"', '"FINE"'))


@pytest.mark.parametrize("error", [math.inf, -math.inf, math.nan])
def test_an_error_that_is_no_number_survives_json(error):
    check = Check(rung="normal", case="nan", passed=False, error=error, vendor_ratio=error)
    assert check.error == check.vendor_ratio == sys.float_info.max and Check.from_json(check.to_json()) == check


def test_records_are_frozen():
    with pytest.raises(AttributeError):
        TIMING.median = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.03, 1.1, "win"), (1.01, 1.1, "tie"), (0.9, 1.1, "tie"), (0.9, 0.99, "tie"), (0.8, 0.97, "loss")],
)
def test_a_difference_inside_the_noise_is_a_tie(low, high, outcome):
    made = Comparison(rival="r", mode=MODES[0], ratio=low, low=low, high=high, rival_us=1, noise_low=0.98, noise_high=1.02, rounds=9)
    assert made.outcome == outcome


def test_timing_and_comparison_are_found_by_name():
    trial = fails(Outcome.OK, timings=(TIMING, TIMING.replace(mode="device-warm", median=2.0)))
    assert trial.timing("device-warm") == trial.timings[1] and trial.timing("host-server") is None
    assert trial.comparison("eager", "device-warm") is None
