"""A tiny model is trained through every stage on made-up measurements, and shows on held-out shapes that it learnt."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import replace

import pytest
import torch
from made_up_tables import DEVICE, TRAINING, rows

from kernelwright.learn import policy_data, policy_evaluate, policy_train
from kernelwright.learn.policy_data import Corpus, is_held_out, load_corpus, make_corpus, pools, split
from kernelwright.learn.policy_device import FromDevice
from kernelwright.learn.policy_legal import Listed
from kernelwright.learn.policy_model import Policy, PolicyError, Size
from kernelwright.learn.policy_rl import Contrastive, FromTables, reinforce
from kernelwright.learn.policy_run import trained
from kernelwright.learn.policy_sample import likelihoods
from kernelwright.learn.policy_train import Imitation, imitate, taught
from kernelwright.learn.table import TableError, read

SIZE = Size(32, 1, 1)
PRETRAIN, SFT, RL = (
    Imitation(120, prompts=8, rate=5e-3),
    Imitation(60, prompts=8, rate=3e-3),
    Contrastive(20, prompts=6, group=8, rate=1e-3),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder, corpus) after pretraining and fine-tuning."""
    folder = tmp_path_factory.mktemp("run")
    make_corpus(folder, DEVICE, rows(), workloads=12)
    corpus = load_corpus(folder)
    imitate("pretrain", folder, corpus, PRETRAIN, SIZE)
    imitate("sft", folder, corpus, SFT, SIZE)
    return folder, corpus


def same(a: Policy, b: Policy) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_the_split_is_always_the_same_and_keeps_shapes_apart():
    parts = split()
    assert parts == split() and [len(p) for p in parts] == [24, 8, 40]
    shapes = [{tuple(w.axes.values()) for w in p} for p in parts]
    assert sum(map(len, shapes)) == 72 and not (shapes[0] & shapes[1] or shapes[0] & shapes[2] or shapes[1] & shapes[2])
    assert all(is_held_out(w.replace(layout="tt", dtype="bf16")) for w in (*parts.held_out, *parts.sparse))
    assert not any(map(is_held_out, parts.train))


def test_nothing_of_a_held_out_shape_is_learnt_from(run):
    folder, corpus = run
    assert {t.workload.name for t in corpus.tables} == set(TRAINING)
    assert not any(is_held_out(t.workload) for t in (*corpus.tables, *corpus.designs))
    held = {r.workload for r in read(folder / policy_data.HELD)[1]}
    assert held == {w.name for w in split().held_out[:4]}


def test_without_training_shapes_there_is_one_sentence(tmp_path):
    only_held = [r for r in rows() if r.workload == split().held_out[0].name]
    with pytest.raises(TableError, match="nothing was measured on training shapes"):
        make_corpus(tmp_path, DEVICE, only_held, workloads=1)


def test_screens_of_held_out_shapes_are_left_out(tmp_path):
    """A table of what a search chose is none to be evaluated on; a measured table stands where there is one."""
    training, held = TRAINING[0], split().held_out[0].name
    measured = [r for r in rows() if r.workload == training]
    screens = [r for r in rows() if r.workload in (training, TRAINING[1], held)]
    make_corpus(tmp_path, DEVICE, measured, workloads=1, screens=screens[::2])
    corpus = load_corpus(tmp_path)
    assert [t.workload.name for t in corpus.tables] == sorted(TRAINING[:2]) and not read(tmp_path / policy_data.HELD)[1]
    assert {t.workload.name: len(t.rows) for t in corpus.tables}[training] == len(measured)


@pytest.mark.parametrize("content", [b"", b"no checkpoint\n", b"PK\x03\x04 cut off"])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(tmp_path, content):
    (tmp_path / "sft.pt").write_bytes(content)
    with pytest.raises(PolicyError, match=r"sft\.pt cannot be read .*run its stage again") as error:
        trained(tmp_path, "sft")
    assert "\n" not in str(error.value)


def test_without_a_corpus_it_says_how_to_make_one(tmp_path):
    with pytest.raises(TableError, match="kernelwright train corpus --out"):
        load_corpus(tmp_path)


def test_complete_tables_count_as_much_as_all_others(run, monkeypatch):
    _, corpus = run
    found = taught(corpus, Policy(policy_train.Vocabulary(corpus.spaces), SIZE).vocabulary)[0]
    assert pools(found) == [found], "of one kind"
    few = replace(found[0], rows=found[0].rows[:4], designs=found[0].designs[:4])
    monkeypatch.setattr(policy_data, "COMPLETE", 5)
    assert pools([few, *found]) == [found, [few]] and FromTables([few, *found]).lessons == found


def test_training_goes_on_where_it_stopped_and_comes_to_the_same_model(run, tmp_path, monkeypatch):
    _, corpus = run
    monkeypatch.setattr(policy_train, "EVERY", 4)
    settings = Imitation(12, prompts=4)
    whole = imitate("pretrain", tmp_path / "a", _in(tmp_path / "a", corpus), settings, SIZE)

    class Stop(Exception):
        pass

    def stop(done, total, numbers):
        if done == 8:
            raise Stop

    with pytest.raises(Stop):
        imitate("pretrain", tmp_path / "b", _in(tmp_path / "b", corpus), settings, SIZE, stop)
    with pytest.raises(PolicyError, match="stopped after 8 of 12 steps"):
        trained(tmp_path / "b", "pretrain")
    with pytest.raises(PolicyError, match="of another size"):
        imitate("pretrain", tmp_path / "b", corpus, settings, replace(SIZE, layers=2))
    seen: list[int] = []
    again = imitate("pretrain", tmp_path / "b", corpus, settings, SIZE, lambda done, *_: seen.append(done))
    assert seen == [12] and same(whole, again)
    with (tmp_path / "b" / "pretrain.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["4", "8", "12"]
    assert "<svg" in (tmp_path / "b" / "pretrain-loss.svg").read_text()
    with pytest.raises(PolicyError, match="begun with another rate"):
        imitate("pretrain", tmp_path / "b", corpus, Imitation(12, prompts=4, rate=0.5), SIZE)
    with pytest.raises(PolicyError, match="kernelwright train pretrain"):
        trained(tmp_path, "pretrain")


def _in(folder, corpus: Corpus) -> Corpus:
    folder.mkdir()
    return corpus


def expected(policy: Policy, corpus: Corpus) -> float:
    """Mean reward of what it writes before anything was measured, exactly: all designs by their likelihoods."""
    found = []
    for lesson in taught(corpus, policy.vocabulary)[0]:
        asked = policy_data.prompt(lesson, policy.vocabulary, [], random.Random(0), "none")
        likely = likelihoods(policy, asked, Listed(lesson.designs), lesson.designs)
        found.append(sum(math.exp(likely[d]) * r.reward for d, r in zip(lesson.designs, lesson.rows, strict=True)))
    return sum(found) / len(found)


def test_reinforcement_learning_raises_the_reward_and_resumes(run):
    """From the pretrained model, which fine-tuning has not brought near the best yet."""
    folder, corpus = run
    settings, numbers = Contrastive(30, prompts=6, group=8, rate=3e-3), list[dict]()
    policy = reinforce(folder, corpus, settings, lambda done, total, n: numbers.append(n), start="pretrain", stage="rl-early")
    assert expected(policy, corpus) > expected(trained(folder, "pretrain"), corpus) + 0.05
    assert numbers[-1]["cheats"] == 0 and numbers[-1]["divergence"] > 0
    again: list[int] = []
    resumed = reinforce(folder, corpus, settings, lambda done, *_: again.append(done), start="pretrain", stage="rl-early")
    assert same(policy, resumed) and not again


def test_after_training_the_first_proposal_on_held_out_shapes_is_good(run):
    """Random search needs 3 of 68 configs that are within 3 % of the best; the model has learnt where they are on other shapes."""
    folder, corpus = run
    reinforce(folder, corpus, RL)
    before = policy_evaluate.write_weights(folder, "sft", {}, folder / "before.safetensors")
    after = policy_evaluate.write_weights(folder, "rl", {"device": "made up"}, folder / "after.safetensors")
    told: list[int] = []
    runs = policy_evaluate.evaluate(
        folder / policy_data.HELD,
        {policy_evaluate.BEFORE: (before, "buckets"), policy_evaluate.AFTER: (after, "buckets")},
        training=folder / policy_data.MEASURED,
        searches=("random", "evolve"),
        seeds=6,
        budget=40,
        jobs=1,
        told=lambda done, total: told.append(done),
    )
    assert told[-1] == 4 * 5 and all(len(found) == 24 for found in runs.values())
    figures = policy_evaluate.summary(runs, 40)
    mine, uniform = figures["searches"][policy_evaluate.AFTER], figures["searches"]["random"]
    assert mine["first_share"] > uniform["first_share"] + 0.1 and mine["candidates_to_97pct"] < uniform["candidates_to_97pct"]
    assert figures["policy_candidates_to_97pct"] == mine["candidates_to_97pct"] and figures["rl_gain"]["low"] <= figures["rl_gain"]["gain"]
    assert "policy after RL" in policy_evaluate.picture(runs, 20, "curves")


def test_rewards_from_the_device_are_measured_once_each(run, tmp_path):
    folder, corpus = run
    vocabulary = trained(folder, "sft").vocabulary
    path = tmp_path / "measured.jsonl"
    with FromDevice(Corpus(DEVICE, (), corpus.designs[:2], corpus.guessed, corpus.spaces), vocabulary, "fake", path) as judge:
        lesson = min(taught(corpus, vocabulary)[0], key=lambda one: math.prod(one.table.workload.axes.values()))
        right = vocabulary.design("scripted", {"tile": 32, "unroll": 4, "order": "rows"})
        wrong = vocabulary.design("scripted", {"tile": 256, "unroll": 4, "order": "rows"})
        assert right and wrong
        first = judge.of(lesson, [tuple(right), tuple(wrong), tuple(right)])
        again = judge.of(lesson, [tuple(wrong), tuple(right)])
        assert judge.measured == 2
        assert judge.constraint(lesson, []).allowed(tuple(right[:-1]))
    assert first[0] == first[2] == again[1] and first[0] and first[0].ratio > 1.5
    assert first[1] and (first[1].outcome, first[1].reward) == ("WRONG_RESULT", 0.0)
    assert len(read(path)[1]) == 2


def test_lessons_of_one_config_have_nothing_to_compare(run):
    _, corpus = run
    vocabulary = Policy(policy_train.Vocabulary(corpus.spaces), SIZE).vocabulary
    (lesson, *_), _ = taught(corpus, vocabulary)
    assert not FromTables([type(lesson)(lesson.table, [], lesson.rows[:1], lesson.designs[:1])]).lessons
