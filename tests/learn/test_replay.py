"""Searches replayed on a table: the proposers themselves meet measured ratios, and the figures say what happened."""

from __future__ import annotations

import math

import pytest
from made_up_tables import DEVICE, TRAINING, rows_of

from kernelwright.learn import replay
from kernelwright.learn.policy_data import split
from kernelwright.learn.policy_evaluate import evaluate
from kernelwright.learn.replay import Run, curve, figures, gain
from kernelwright.learn.table import tables_of, write
from kernelwright.propose.neighbours import Neighbours

(TABLE,) = tables_of(rows_of("gemm:96x256x96:fp16:nn"), DEVICE)


@pytest.mark.parametrize("name", ["random", "evolve", "heuristics", "heuristics+evolve"])
def test_a_search_meets_every_config_once_and_ends_with_the_table(name):
    run = replay.replay(TABLE, replay.SEARCHES[name], name, 3, 1000, stop=math.inf)
    assert len(run.shares) == len(TABLE.rows) and sorted(run.shares) == sorted(TABLE.share(r) for r in TABLE.rows)
    assert run == replay.replay(TABLE, replay.SEARCHES[name], name, 3, 1000, stop=math.inf), "the same seed, the same search"
    assert max(replay.replay(TABLE, replay.SEARCHES[name], name, 3, 1000).shares[:-1]) <= 1, "the best ends it"


def test_a_search_that_learns_beats_random_draws():
    counts = {n: sum(replay.replay(TABLE, replay.SEARCHES[n], n, s, 68).candidates_to() for s in range(20)) for n in ("random", "evolve")}
    assert counts["evolve"] < 0.8 * counts["random"]


def test_seeds_come_first_in_the_product_s_searches_alone():
    (family,) = TABLE.families()
    seed = TABLE.by_key["scripted", tuple(family.completed(family.seeds(TABLE.workload, DEVICE)[0]).items())]
    first = {n: {replay.replay(TABLE, replay.SEARCHES[n], n, s, 1).shares[0] for s in range(8)} for n in ("random", "heuristics")}
    assert first["heuristics"] == {TABLE.share(seed)} and len(first["random"]) > 1


def test_neighbours_know_training_shapes_only():
    knowledge = replay.knowledge_of(tables_of([r for name in TRAINING for r in rows_of(name)], DEVICE), replay.families_of(TABLE))
    run = replay.replay(TABLE, Neighbours, "neighbours", 0, 8, knowledge)
    assert run.shares[0] == 1.0


def test_an_evaluation_that_was_cut_off_goes_on_where_it_stopped(tmp_path):
    held, kept, told = tmp_path / "held.jsonl", tmp_path / "kept.jsonl", []
    write(held, DEVICE, [r for w in split().held_out[:3] for r in rows_of(w.name)])

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise TimeoutError

    given = {"searches": ("random",), "seeds": 2, "budget": 6, "jobs": 1}
    with pytest.raises(TimeoutError):
        evaluate(held, {}, kept=kept, told=stop, **given)
    kept.write_text(kept.read_text() + '\n{"search": ["random", "g')
    runs = evaluate(held, {}, kept=kept, told=lambda done, total: told.append((done, total)), **given)
    assert told == [(3, 3)] and runs == evaluate(held, {}, **given)
    assert evaluate(held, {}, kept=kept, told=lambda *_: pytest.fail("all are there"), **given) == runs


def made(name: str, workload: str, seed: int, *shares: float) -> Run:
    return Run(name, workload, seed, shares)


def test_figures_are_medians_over_shapes_of_medians_over_seeds():
    runs = [made("x", "a", 0, 0.5, 0.98), made("x", "a", 1, 1.0), made("x", "a", 2, 0.2, 0.97), made("x", "b", 0, *[0.5] * 9, 1.0)]
    found = figures(runs, resamples=200)
    assert found["candidates_to_97pct"] == (2 + 10) / 2 and found["shapes"] == 2 and found["reached_97pct"] == 1.0
    assert found["first_share"] == pytest.approx(((0.5 + 1.0 + 0.2) / 3 + 0.5) / 2)
    assert found["first_within_10pct"] == pytest.approx(1 / 6)
    assert 1 <= found["candidates_to_97pct_low"] <= 6 <= found["candidates_to_97pct_high"] <= 10
    assert made("x", "a", 0, 0.5, 0.9).candidates_to() == math.inf


def test_the_gain_is_of_the_same_shapes_and_seeds():
    before = [made("b", w, s, 0.5, 0.6, 0.9) for w in "abcd" for s in range(3)]
    after = [made("a", w, s, 0.7, 0.8, 0.9) for w in "abcd" for s in range(3)]
    assert gain(before, after, 2, resamples=100) == pytest.approx({"gain": 0.2, "low": 0.2, "high": 0.2})
    assert gain(after, after, 3, resamples=100)["gain"] == 0
    y, low, high = curve(after, 5)
    assert y == pytest.approx([0.7, 0.8, 0.9, 0.9, 0.9]) == low == high
