"""The evaluation pool as a reward function, the corpus, and prompts with their answers: real kernels on the CPU target, no trainer."""

from __future__ import annotations

import json
import math

import pytest
from hf_tiny import ANSWERS, BROKEN, FAST, PLAIN, answer

from kernelwright.archive import Archive
from kernelwright.families import families_for
from kernelwright.learn import hf_corpus, hf_text
from kernelwright.learn.compact import compact
from kernelwright.learn.hf_pool import BEFORE, Judged, Pool, counts, filled
from kernelwright.learn.reward import FAILED, reward
from kernelwright.problems import resolve
from kernelwright.propose.exemplars import score
from kernelwright.propose.llm_answer import languages, read
from kernelwright.propose.llm_prompt import as_file
from kernelwright.records import Origin, Outcome, Verdict
from kernelwright.targets import target

W = resolve("chain:hardswish:16x64")
OTHER = resolve("chain:silu-mul:16x64")
CPU = target("cpu")


@pytest.fixture
def pool(tmp_path):
    with Archive(tmp_path / "a.db") as archive, Pool(CPU, archive, "run", "tiny") as made:
        yield made


def test_answers_become_rewards(pool):
    names = ("FAST", "WRONG", "BROKEN", "CHAT", "FAST", "SLOW")
    judged = pool.judge([(W, ANSWERS[name]) for name in names], step=3)
    found = dict(zip(names, judged, strict=True))
    assert [j.outcome for j in judged] == ["OK", "WRONG_RESULT", "COMPILE_ERROR", "UNREADABLE", "OK", "OK"]
    assert found["WRONG"].reward == found["BROKEN"].reward == found["CHAT"].reward == FAILED
    assert all(found[name].reward == reward(found[name].trial) > 0 for name in ("FAST", "SLOW")) and "headings" in found["CHAT"].evidence
    assert judged[0].trial == judged[4].trial, "equal kernels are measured once"
    trials = list(pool.archive.trials())
    assert len([t for t in trials if t.stage == "screen"]) == 4 and {t.session for t in trials} == {"run"}
    assert all(t.candidate.origin.config == {"step": 3} and t.candidate.origin.kind == "policy" for t in trials)
    # what was measured once is not measured again, and has the same reward
    again = pool.judge([(W, ANSWERS[name]) for name in names], step=7)
    assert [j.reward for j in again] == [j.reward for j in judged] and len(list(pool.archive.trials())) == len(trials)
    shows_fast, shows_none = [{"role": "user", "content": compact(FAST)}], [{"role": "user", "content": "write"}]
    summary = counts([shows_fast, *[shows_none] * 5], judged)
    assert (
        summary["right"] == 0.5
        and summary["new_right"] == pytest.approx(1 / 3)
        and summary["unreadable"] == 1 / 6
        and summary["cheats"] == 0
    )
    assert summary["best_speed"] == pytest.approx(max(t.comparisons[0].ratio for t in trials if t.verdict.ok), rel=0.2)


def test_a_step_sees_what_earlier_steps_measured(pool):
    pool.judge([(W, ANSWERS["PLAIN"])], step=1)
    pool.judge([(W, ANSWERS["FAST"])], step=2)
    seen = [{t.candidate.source for t in pool.history(W, step)} for step in (BEFORE, 1, 2, 3)]
    assert seen == [set(), set(), {PLAIN}, {PLAIN, FAST}]
    assert {t.candidate.source for t in pool.history(W)} == {PLAIN, FAST} and pool.history(OTHER) == []
    with Pool(CPU, pool.archive, "another run", "tiny") as later:
        assert {t.candidate.source for t in later.history(W, BEFORE)} == {PLAIN, FAST}, "earlier runs are known from the start"


def test_a_noisy_time_teaches_nothing():
    assert filled([2.0, None, 0.0]) == [2.0, 1.0, 0.0] and filled([None]) == [FAILED]
    judged = [Judged(None, "NOISY"), Judged(-1.0, str(Outcome.CHEAT)), Judged(0.0, "UNREADABLE")]
    assert counts([[]] * 3, judged) == {
        "right": 0,
        "new_right": 0,
        "cheats": 1 / 3,
        "unreadable": 1 / 3,
        "mean_reward": -0.5,
        "best_speed": 0.0,
    }


def test_a_corpus_of_verified_kernels(pool, tmp_path):
    pool.judge([(W, ANSWERS["PLAIN"]), (W, ANSWERS["BROKEN"])], step=0)
    folder = tmp_path / "corpus"
    made = hf_corpus.build(folder, [W, OTHER], CPU, pool.archive, pool.device, pool=pool, render=3, held_out=1, seed=0)
    train, held = hf_corpus.workloads_in(folder, "train"), hf_corpus.workloads_in(folder, "held_out")
    assert {train[0].name, held[0].name} == {W.name, OTHER.name} and made["train"] == made["held_out"] == 1
    texts = (folder / "texts.jsonl").read_text() + (folder / "pairs.jsonl").read_text()
    assert held[0].problem not in texts.replace(train[0].problem, ""), "nothing of a held-out workload is written"
    assert pool.history(held[0]), "but it is measured: its kernels are exemplars in an evaluation"
    pairs = hf_corpus.lines(folder / "pairs.jsonl")
    assert 1 <= len(pairs) <= hf_corpus.BESIDE * made["kernels"] and "=== " not in texts and BROKEN not in texts
    for pair in pairs:
        assert [m["role"] for m in pair["prompt"]] == ["system", "user"] and train[0].name in pair["prompt"][1]["content"]
        candidate = read(pair["completion"][0]["content"], languages(train[0], CPU.facts()), train[0], Origin(kind="policy"))
        (trial,) = (t for t in pool.archive.trials(workload=train[0]) if t.candidate.id == pair["candidate"])
        assert candidate.plan == trial.candidate.plan and pair["reward"] == score(trial)
    # the shortened kernels are right too
    text = pairs[0]["completion"][0]["content"]
    assert pool.judge([(train[0], text)], step=0)[0].outcome == "OK"
    with pytest.raises(ValueError, match="no verified kernel for cpu"):
        hf_corpus.build(tmp_path / "none", [resolve("chain:softmax:8x8")], CPU, pool.archive, pool.device)


def test_answers_say_what_was_measured(pool):
    pool.judge([(W, ANSWERS[name]) for name in ("SLOW", "PLAIN", "FAST")], step=0)
    by_source = {t.candidate.source: t for t in pool.history(W)}
    fast = max(by_source.values(), key=lambda t: score(t) or 0)
    slower = sorted(hf_text.better_than(fast, list(by_source.values())), key=lambda t: score(t) or 0)
    assert len(slower) == 2 and fast not in slower
    text = hf_text.answer(fast, pool.device, slower)
    us = [t.timings[0].median for t in slower]
    assert f"Kernel 1 takes {us[0]:.2f} µs" in text and f"Kernel 2 is {us[0] / us[1]:.2f} times as fast as kernel 1." in text
    assert read(text, languages(W, CPU.facts()), W, Origin(kind="policy")).plan == fast.candidate.plan
    (rules, task) = hf_text.prompt(W, pool.device, slower)
    assert "extern" in rules["content"] and f"{score(slower[0]):.2f} (its reward" in task["content"]
    assert "instructions in the machine code" not in task["content"] and not math.isnan(score(fast) or math.nan)
    first = hf_text.answer(fast, pool.device, [])
    assert "No kernel has been measured yet." in first and json.dumps(first)


def test_a_plan_keeps_its_meaning_without_defaults():
    w = resolve("chain:softmax:16x64")
    (family,) = families_for(w, CPU.facts())[0]
    candidate = family.render(family.seeds(w, CPU.facts())[0], w, CPU.facts())
    text = answer(as_file(candidate, w, brief=True))
    assert read(text, languages(w, CPU.facts()), w, Origin(kind="policy")).plan == candidate.plan


def test_a_kernel_that_was_too_noisy_once_has_the_reward_of_its_second_screen(pool):
    (first,) = pool.judge([(W, ANSWERS["PLAIN"])], step=0)
    trial = first.trial
    noisy = trial.replace(verdict=Verdict(outcome=Outcome.NOISY, evidence="disturbed"), timings=(), comparisons=(), created="2026-01-01")
    with Archive(pool.archive.path.with_name("b.db")) as archive, Pool(CPU, archive, "run", "tiny") as other:
        archive.append(noisy)
        assert other.judge([(W, ANSWERS["PLAIN"])], step=1)[0].reward is None, "not measured a third time in this training"
        archive.append(trial)
        assert other.judge([(W, ANSWERS["PLAIN"])], step=1)[0].reward == first.reward and len(list(archive.trials())) == 2
        archive.append(noisy.replace(session="earlier", created="2026-01-02"))
        assert other.judge([(W, ANSWERS["PLAIN"])], step=1)[0].reward == first.reward
