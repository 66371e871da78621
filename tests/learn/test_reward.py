"""The reward is a pure function of Trials; a jump counts once a fresh process has shown it."""

from __future__ import annotations

import math

import pytest

from kernelwright.archive import Archive
from kernelwright.learn.reward import ALPHA, BETA, CHEATED, CLIP, FAILED, ceiling, counted, length, reward, settle, smoothed, speed
from kernelwright.records import (
    Candidate,
    Check,
    Comparison,
    Environment,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    Timing,
    Trial,
    Verdict,
    Workload,
)

W = Workload(problem="toy", axes={"M": 64})
PLAN = LaunchPlan(launches=(Launch(kernel="kernel", args=()),))


def compared(ratio: float, spread: float = 0.001, rival: str = "eager", mode: str = "device-warm", noise: float = 0.0) -> Comparison:
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    return Comparison(
        rival=rival, mode=mode, ratio=ratio, low=low, high=high, rival_us=10, noise_low=1 - noise, noise_high=1 + noise, rounds=5
    )


def trial(ratio: float = 0.0, outcome: Outcome = Outcome.OK, stage: str = "screen", name: str = "k", **fields) -> Trial:
    ok = outcome is Outcome.OK
    us = 10 / (ratio or 1)
    return Trial(
        **{
            "workload": W,
            "candidate": Candidate(kind="cpu", source=name, plan=PLAN, origin=Origin(kind="llm", name="m")),
            "verdict": Verdict(outcome=outcome),
            "environment": Environment(target="cpu", device="x"),
            "timings": (Timing(mode="device-warm", samples=(us,), median=us, low=us, high=us),) if ok else (),
            "comparisons": (compared(ratio),) if ok else (),
            "stage": stage,
            **fields,
        }
    )


def test_speed_is_rounded_towards_one_and_an_unproved_gain_is_one():
    assert speed(compared(1.118)) == 1.11 and speed(compared(0.985)) == 0.99 and speed(compared(0.992)) == 1.0
    assert speed(compared(1.15)) == 1.15, "what is exact stays"
    assert speed(compared(1.05, spread=0.06)) == 1.0, "the interval holds 1"
    assert speed(compared(1.05, noise=0.1)) == 1.0, "inside the noise"
    assert speed(compared(0.5, noise=0.6)) == 0.5, "three uneven rounds are no proof that a slow kernel is as fast"


def test_every_outcome_has_its_reward():
    for outcome in Outcome:
        found = reward(trial(2.0, outcome))
        if outcome is Outcome.OK:
            assert found == pytest.approx(2.0 - BETA)
        elif outcome is Outcome.NOISY:
            assert found is None
        else:
            assert found == (CHEATED if outcome is Outcome.CHEAT else FAILED)
    assert CHEATED < FAILED < reward(trial(0.001)), "a slow kernel that is right is worth more than a wrong one"
    untimed = trial(2.0, stage="verify", timings=(), comparisons=())
    assert reward(untimed) is None


def test_accuracy_and_length_decide_between_equals():
    def with_error(share: float) -> Trial:
        checks = (Check(rung="normal", case="normal", passed=True, error=16 * share, bound=16), Check(rung="repeat", case="x", passed=True))
        return trial(2.0, verdict=Verdict(outcome=Outcome.OK, checks=checks))

    assert reward(with_error(0)) - reward(with_error(0.5)) == pytest.approx(ALPHA / 2)
    assert reward(trial(2.0, name="x" * 10_000)) == pytest.approx(2.0 - BETA * 10_000)
    assert reward(trial(2.04, name="x" * 30_000)) > reward(trial(2.0)), "a measurable gain outweighs 30,000 characters"


def test_length_is_without_comments_but_quotes_hide_nothing():
    assert length("int a; // why\n/* a\n b */ int  b;") == len("inta;intb;")
    assert length('"//" /*x*/ "/*"') == 4 + 4, "no comment begins in a string"
    assert length("'\"' // y\n'x'") == 3 + 3


def test_the_reference_is_the_first_rival_in_the_first_mode():
    one = trial(2.0, comparisons=(compared(9, mode="device-cold"), compared(2.0), compared(1.1, rival="compile")))
    assert reward(one) == pytest.approx(2.0 - BETA)


# --------------------------------------------------------------------------------------------------------- sudden jumps


def test_what_a_screen_may_claim():
    assert ceiling([]) == 3.0 and ceiling([trial(50.0)]) == 3.0, "a screen proves nothing"
    assert ceiling([trial(4.0, stage="confirm")]) == 8.0
    rival = trial(9.0, stage="confirm", candidate=Candidate(kind="rival", source="eager", origin=Origin(kind="rival")))
    assert ceiling([rival]) == 3.0


def test_a_jump_counts_once_it_is_reproduced():
    modest, claim = trial(2.9, name="a"), trial(6.0, name="b")
    assert counted([modest, claim]) == [modest], "not yet"
    assert counted([modest, claim, trial(5.5, stage="replay", name="b")]) == [modest, claim]
    slower = trial(5.0, stage="replay", name="b")
    assert counted([modest, claim, slower]) == [modest, slower], "what the fresh process measured counts"
    cheat = trial(outcome=Outcome.CHEAT, stage="replay", name="b")
    assert counted([claim, cheat]) == [cheat] and reward(counted([claim, cheat])[0]) == CHEATED
    noisy = trial(outcome=Outcome.NOISY, stage="replay", name="b")
    assert counted([claim, noisy]) == [], "noise reproduces nothing"


def test_one_proof_lets_others_claim_as_much():
    proved, others = trial(6.0, stage="confirm", name="a"), [trial(6.0, name="a"), trial(11.0, name="b"), trial(13.0, name="c")]
    assert counted([*others, proved]) == others[:2], "twice what was proved, whatever the order"


def test_the_same_rival_and_mode_must_show_it():
    other = trial(9.0, stage="replay", comparisons=(compared(9.0, rival="compile"),))
    assert settle(trial(8.0), other) is other


def test_rewards_come_from_the_archive_again(tmp_path):
    made = [trial(2.0, name="a"), trial(outcome=Outcome.CHEAT, name="b"), trial(7.0, name="c"), trial(6.9, stage="replay", name="c")]
    with Archive(tmp_path / "a.db") as archive:
        for one in made:
            archive.append(one)
        again = list(archive.trials(workload=W))
    assert [reward(t) for t in counted(again)] == [reward(t) for t in counted(made)] == [pytest.approx(r) for r in (2, -1, 7)]


# ------------------------------------------------------------------------------------------------------------- training


def test_smoothing_centres_scales_and_clips():
    assert smoothed([1, 2, 3]) == pytest.approx([-math.sqrt(1.5), 0, math.sqrt(1.5)])
    assert smoothed([0, 0, 0, 0, 50.0])[-1] == CLIP, "one lucky run does not dominate"
    assert smoothed([2.0, 2.0]) == [0.0, 0.0] and smoothed([7.0]) == [0.0] and smoothed([]) == []
