"""Training through TRL, with real steps and real evaluations: a tiny random Llama learns on the CPU which of its answers are kernels."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import msgspec
import pytest

pytest.importorskip("trl", reason='the extra "train" is not installed')

import hf_tiny
import torch
from hf_tiny import ANSWERS

from kernelwright.archive import Archive
from kernelwright.learn import hf_model, hf_sample, hf_train
from kernelwright.learn.hf_grpo import Grpo, grpo
from kernelwright.learn.hf_pool import Pool
from kernelwright.learn.hf_sample import Prompts, Sampling
from kernelwright.learn.hf_train import Options
from kernelwright.problems import resolve
from kernelwright.propose.llm_answer import languages, read
from kernelwright.records import Comparison, Origin, Outcome, Timing, Trial, Verdict
from kernelwright.targets import target

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about each other

W = resolve("chain:hardswish:16x64")
HELD = resolve("chain:hardswish:8x64")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Threads of OpenMP that wait for each other are most of such a small model's time on a busy machine."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path):
    """A run's folder with a corpus and a model."""
    folder = tmp_path / "run"
    (folder / "corpus").mkdir(parents=True)
    (folder / "corpus" / "workloads.json").write_bytes(msgspec.json.encode({"train": [W], "held_out": [HELD]}))
    texts = [{"text": f"{name} {text}"} for name, text in ANSWERS.items()]
    (folder / "corpus" / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    prompt = [{"role": "user", "content": "write"}]
    pairs = [{"prompt": prompt, "completion": [{"role": "assistant", "content": ANSWERS["FAST"]}]}]
    pairs.append({"prompt": prompt, "completion": [{"role": "assistant", "content": "word " * 3000}]})
    (folder / "corpus" / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    hf_tiny.write(tmp_path / "tiny")
    return folder


@pytest.fixture
def pool(tmp_path):
    with Archive(tmp_path / "a.db") as archive, Pool(target("cpu"), archive, "run", "tiny") as made:
        yield made


def options(run, **changes) -> Options:
    given = {"steps": 4, "batch": 8, "micro": 8, "learning_rate": 0.02, "answer_tokens": 1, "save_steps": 2, "lora": 4}
    return Options(run=run, model=str(run.parent / "tiny"), **(given | changes))


def curve(run, stage: str) -> list[dict]:
    return [line for line in map(json.loads, (run / stage / "curve.jsonl").read_text().splitlines()) if "loss" in line]


def test_grpo_learns_from_measured_speed_and_goes_on_from_a_checkpoint(run, pool):
    o, s = options(run, steps=16, batch=16, micro=16, save_steps=8), Sampling(answers=16)
    done = grpo(o, s, Grpo(kl=0.01), pool)
    assert done["steps"] == 16 and done["resumed_at"] == 0 and done["workloads"] == 1
    first = curve(run, "grpo")
    assert [line["step"] for line in first] == list(range(1, 17)) and any(line["loss"] for line in first)
    trials = list(pool.archive.trials())
    assert {str(t.verdict.outcome) for t in trials} > {"OK"}, "real kernels, right ones and others, were evaluated"
    assert list((run / "grpo" / "checkpoints").rglob("events.out.tfevents*")), "curves for TensorBoard"
    # right answers have become likelier, all others less
    asked = Prompts(pool, hf_model.load(o.model)[1], "buckets", 10**6, 0).ask(W, 16)
    before, after = hf_tiny.chances(run.parent / "tiny", asked), hf_tiny.chances(run / "grpo" / "model", asked)
    right = ("PLAIN", "FAST", "SLOW")  # on a busy machine their times may tie
    assert sum(after[n] for n in right) > 1.5 * sum(before[n] for n in right)
    assert after["WRONG"] + after["BROKEN"] + after["CHAT"] < before["WRONG"] + before["BROKEN"] + before["CHAT"]

    # killed while it wrote its second checkpoint: the same command gives the same losses and measures nothing again
    (run / "grpo" / "checkpoints" / "checkpoint-16" / "trainer_state.json").write_text('{"epoch": ')
    again = grpo(o, s, Grpo(kl=0.01), pool)
    assert again["resumed_at"] == 8 and again["steps"] == 16
    assert [line["loss"] for line in curve(run, "grpo")] == pytest.approx([line["loss"] for line in first], rel=1e-4, abs=1e-7)
    assert [line["mean_reward"] for line in curve(run, "grpo")] == [line["mean_reward"] for line in first]
    assert list(pool.archive.trials()) == trials


def _measured(pool, name: str, ratio: float) -> Trial:
    """Made up: on a busy machine kernels tie that are 60 times apart."""
    candidate = read(ANSWERS[name], languages(W, pool.device.facts), W, Origin(kind="policy", name="tiny", config={"step": 0}))
    mode, us = "device-cold", 10.0
    return Trial(
        workload=W,
        candidate=candidate,
        verdict=Verdict(outcome=Outcome.OK),
        environment=pool._evaluator.environment,
        timings=(Timing(mode=mode, samples=(us,), median=us, low=us, high=us),),
        comparisons=(
            Comparison(
                rival="eager", mode=mode, ratio=ratio, low=ratio, high=ratio, rival_us=us * ratio, noise_low=1, noise_high=1, rounds=1
            ),
        ),
        stage="screen",
        session=pool.session,
    )


def test_prompts_show_kernels_of_earlier_steps(run, pool):
    for name, ratio in (("SLOW", 0.5), ("FAST", 2.0)):
        pool.archive.append(_measured(pool, name, ratio))
    tokenizer = hf_model.load(str(run.parent / "tiny"))[1]

    def kernels(way: str, step: int, room: int = 10**6, number: int = 0) -> int:
        return Prompts(pool, tokenizer, way, room, 0).ask(W, step, number)[1]["content"].count("its reward")

    assert kernels("buckets", 0) == 0 and kernels("buckets", 1) == kernels("random", 1) == 2 and kernels("none", 1) == 0
    assert kernels("islands", 1) == 1, "the two live on islands of their own"
    made = Prompts(pool, tokenizer, "buckets", 10**6, 0)
    assert made.ask(W, 1, 5) == made.ask(W, 1, 5), "the same on every process"
    least, most = (hf_model.tokens(tokenizer, made.ask(W, step)) for step in (0, 1))
    assert kernels("buckets", 1, room=most - 1) == 1, "fewer where they leave no room for the answer"
    with pytest.raises(ValueError, match="does not fit"):
        kernels("buckets", 0, room=least // 2)


def test_what_works_is_kept_and_trained_on(run, pool):
    o = options(run, steps=30, batch=4, micro=4, learning_rate=0.01, lora=0)
    s = Sampling(answers=24, batch=24, way="none")
    before = hf_sample.evaluate(o, s, pool, "before", "held_out")
    kept = hf_sample.keep(o, s, pool, rounds=1)
    (one,) = kept["rounds"]
    assert 1 <= one["kept"] <= 3 and one["kept"] <= one["right"] < one["answers"] == 24
    after = hf_sample.evaluate(replace(o, model=kept["model"]), s, pool, "after", "held_out")
    assert after["right"] > before["right"] and after["right"] > 0.9
    lines = [json.loads(line) for line in (run / "evaluate" / "after.jsonl").read_text().splitlines()]
    assert len(lines) == 24 and {line["workload"] for line in lines} == {HELD.name}
    assert json.loads((run / "evaluate" / "after.json").read_text())["right"] == after["right"]
    with pytest.raises(ValueError, match="none of 24 answers"):
        hf_sample.keep(replace(o, run=_chatting(run)), s, pool)


def _chatting(run):
    """A run whose first round was nothing but talk."""
    other = run.parent / "talk"
    (other / "keep" / "round-0").mkdir(parents=True)
    shutil.copytree(run / "corpus", other / "corpus")
    line = json.dumps({"outcome": "UNREADABLE", "candidate": "", "answer": "Hello!"})
    (other / "keep" / "round-0" / "answers.jsonl").write_text(f"{line}\n" * 24)
    return other


def test_pretraining_and_sft(run):
    o = options(run, steps=3, batch=2, micro=2, context=64, lora=0)
    done = hf_train.pretrain(o)
    assert done["last_loss"] < done["first_loss"] and (run / "pretrain" / "model" / "model.safetensors").exists()
    assert hf_train.done(run, "pretrain") == done and hf_train.done(run, "sft") is None
    done = hf_train.sft(replace(o, model=str(run / "pretrain" / "model")))
    assert done["pairs"] == done["too_long"] == 1, "a pair that is longer than the context is left out"
    assert done["last_loss"] < done["first_loss"]
    with pytest.raises(ValueError, match="none of the 2 pairs fits the context of 1 tokens"):
        hf_train.sft(replace(o, context=1))


def test_a_deadline_ends_a_stage_in_order(run):
    done = hf_train.sft(options(run, steps=50, batch=1, micro=1, seconds=0.0, lora=0))
    assert done["steps"] == 1 and hf_model.load(str(run / "sft" / "model"))


def test_requests_that_do_not_fit_are_refused(run, pool):
    with pytest.raises(ValueError, match="whole groups of 3"):
        grpo(options(run), Sampling(answers=3), Grpo(), pool)
    with pytest.raises(ValueError, match="no task of 1 fits"):
        grpo(options(run, context=80), Sampling(answers=4), Grpo(), pool)
    with pytest.raises(ValueError, match="cannot be shared"):
        hf_train.sft(options(run, batch=5, micro=2))
    with pytest.raises(ValueError, match="is no model that transformers can load"):
        hf_model.load(str(run / "nothing"))


def test_the_model_says_which_token_ends_an_answer(run, tmp_path):
    """transformers 5.17 reads a GGUF file's tokenizer without it."""
    model, tokenizer = hf_model.load(str(run.parent / "tiny"))
    tokenizer.eos_token = tokenizer.pad_token = "<unk>"
    model.save_pretrained(tmp_path / "lost")
    tokenizer.save_pretrained(tmp_path / "lost")
    _, mended = hf_model.load(str(tmp_path / "lost"))
    assert (mended.eos_token, mended.pad_token) == ("<eos>", "<pad>")
