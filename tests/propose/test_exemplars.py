from __future__ import annotations

import itertools
import random
from collections import Counter

from toy_family import judged

from kernelwright.propose.exemplars import ISLANDS, RESET, WAYS, buckets, choose, draw, failures, islands
from kernelwright.records import Candidate, Origin, Outcome, Trial, Verdict


def made(ratio: float, name: str = "", **config) -> Trial:
    source = name or f"kernel at {ratio}"
    return judged(Candidate(kind="fake", source=source, origin=Origin(kind="llm", config=config)), ratio)


def failed(outcome: Outcome, name: str) -> Trial:
    return made(0.0, name).replace(verdict=Verdict(outcome=outcome, evidence=name))


def test_buckets_hold_kernels_of_nearly_the_same_speed():
    trials = [made(r) for r in (1.0, 4.0, 1.02, 2.0, 4.1)] + [made(0.0, "wrong")]
    found = [[round(t.comparisons[0].ratio, 2) for t in bucket] for bucket in buckets(trials)]
    flat = [r for bucket in found for r in bucket]
    assert len(flat) == 5 and all(max(a) < min(b) for a, b in itertools.pairwise(found)), "slowest bucket first"
    assert all(max(b) <= min(b) * 1.11 for b in found)


def test_a_kernel_measured_twice_is_one_and_its_newest_trial_counts():
    assert [[t.comparisons[0].ratio for t in b] for b in buckets([made(4.0, "k"), made(2.0, "k")])] == [[2.0]]


def test_drawn_are_distinct_buckets_the_faster_ones_more_often():
    trials = [made(1 + i / 100, f"slow {i}") for i in range(3)] + [made(2.0, "mid"), made(4.0, "fast")]
    rng, seen = random.Random(0), Counter()
    for _ in range(500):
        pair = draw(trials, rng)
        assert len(pair) == 2 and pair[0].comparisons[0].ratio < pair[1].comparisons[0].ratio * 0.91, "contrasting, slowest first"
        seen.update(t.candidate.source.split()[0] for t in pair)
    assert seen["fast"] > seen["mid"] > seen["slow"] > 50, "and the slow ones sometimes"


def test_few_buckets_give_few_exemplars():
    assert draw([], random.Random(0)) == [] and draw([made(0.0, "wrong")], random.Random(0)) == []
    assert len(draw([made(2.0)], random.Random(0))) == 1
    assert len(draw([made(1.0), made(2.0), made(4.0)], random.Random(0), 3)) == 3


def test_islands_are_apart_and_the_weaker_half_begins_anew():
    ours = [made(2.0 + i / 100, f"k{i}", island=i % ISLANDS) for i in range(RESET - 1)]
    before = islands(ours)
    assert [t.candidate.origin.config["island"] for t in before[1]] == [1] * len(before[1]) and all(before)
    best = made(9.0, "best", island=2)
    after = islands([*ours, best])
    assert sum(len(island) == 1 for island in after) == ISLANDS // 2, "reset to one founder each"
    assert best in after[2] and len(after[2]) > 1 and sum(best in island for island in after) == 2
    assert islands([*ours, best]) == after, "worked out from the Trials alone"
    strangers = islands([made(2.0 + i, f"s{i}") for i in range(8)])
    assert [len(island) for island in strangers] == [2] * ISLANDS


def test_failures_newest_of_each_outcome():
    trials = [failed(Outcome.CRASH, "a"), failed(Outcome.WRONG_RESULT, "b"), made(2.0), failed(Outcome.CRASH, "c")]
    assert [t.verdict.evidence for t in failures(trials)] == ["b", "c"]


def test_the_ways_of_choosing():
    trials = [made(1.05 + i / 1000, f"slow {i}", island=0) for i in range(20)] + [made(4.0, "fast", island=1), made(0.0, "wrong")]

    def fast(way: str, island: int = 0) -> float:
        """Share of choices that show the fast kernel."""
        rng = random.Random(0)
        return sum(any(t.candidate.source == "fast" for t in choose(trials, rng, way, island)) for _ in range(200)) / 200

    assert fast("buckets") == 1.0 and fast("islands", 0) == 0.0 and fast("islands", 1) == 1.0 and fast("none") == 0.0
    assert 0.02 < fast("random") < 0.25, "2 of 21, whatever their speeds"
    for way in WAYS:
        shown = choose(trials, random.Random(1), way)
        assert [t.comparisons[0].ratio for t in shown] == sorted(t.comparisons[0].ratio for t in shown), "slowest first"
    assert choose(trials, random.Random(0), "buckets", count=1) != [] == choose([], random.Random(0), "random")
