"""The kernel model itself: likelihoods, batches, its file."""

from __future__ import annotations

import json

import pytest
import torch
from made_up_tables import DEVICE, rows_of

from kernelwright.families.scripted import Scripted
from kernelwright.learn.policy_legal import Legal
from kernelwright.learn.policy_model import Policy, PolicyError, Prompts, Size, load, save
from kernelwright.learn.policy_sample import Written, log_likelihood, sample
from kernelwright.learn.policy_vocabulary import Choice, Vocabulary, spaces_of
from kernelwright.problems import resolve

W = resolve("gemm:64x256x96:fp16:nn")
VOCABULARY = Vocabulary(spaces_of([Scripted()], W, DEVICE))
ROWS = rows_of(W.name)
SHOWN = [Choice("scripted", dict(ROWS[i].config), -0.3 * i) for i in range(2)]


def policy() -> Policy:
    torch.manual_seed(0)
    return Policy(VOCABULARY, Size(32, 2, 2)).eval()


def test_a_design_has_the_same_likelihood_sampled_scored_alone_and_in_a_batch():
    model, long, short = policy(), VOCABULARY.prompt(W, DEVICE, SHOWN, SHOWN, 5, 2.0), VOCABULARY.prompt(W, DEVICE)
    legal = Legal(VOCABULARY, [Scripted()], W, DEVICE)
    groups = sample(model, [long, short], [legal, legal], 4, torch.Generator().manual_seed(1))
    assert [len(g) for g in groups] == [4, 4]
    flat = [s for g in groups for s in g]
    written = Written.of([s.words for s in flat], VOCABULARY, allowed=[s.allowed for s in flat])
    together = log_likelihood(model, Prompts.of([long, short]), written).sum(1).tolist()
    assert together == pytest.approx([s.logp for s in flat], abs=1e-4)
    alone = log_likelihood(model, Prompts.of([short]), Written.of([flat[-1].words], VOCABULARY, allowed=[flat[-1].allowed]))
    assert float(alone.detach().sum()) == pytest.approx(flat[-1].logp, abs=1e-4)
    differs = log_likelihood(model, Prompts.of([long]), Written.of([flat[-1].words], VOCABULARY, allowed=[flat[-1].allowed]))
    assert abs(float(differs.detach().sum()) - flat[-1].logp) > 1e-5, "the prompt is read"


def test_the_order_of_a_prompt_means_nothing_and_its_numbers_do():
    model = policy()
    prompt = VOCABULARY.prompt(W, DEVICE, SHOWN)
    turned = type(prompt)(prompt.bags[::-1], prompt.numbers[::-1])
    other = type(prompt)(prompt.bags, [n + (0.06 if i == len(prompt.bags) - 1 else 0.0) for i, n in enumerate(prompt.numbers)])
    design = VOCABULARY.design("scripted", dict(ROWS[3].config))
    assert design is not None
    found = [
        float(log_likelihood(model, Prompts.of([p]), Written.of([design], VOCABULARY)).detach().sum()) for p in (prompt, turned, other)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-4) and abs(found[0] - found[2]) > 1e-5


def test_all_likelihoods_of_a_space_add_up_to_one():
    model, legal = policy(), Legal(VOCABULARY, [Scripted()], W, DEVICE)
    designs = [tuple(VOCABULARY.design("scripted", dict(r.config)) or ()) for r in ROWS]
    allowed = [[legal.allowed(d[:i]) for i in range(len(d))] for d in designs]
    likely = log_likelihood(model, Prompts.of([VOCABULARY.prompt(W, DEVICE)]), Written.of(designs, VOCABULARY, allowed=allowed))
    assert float(likely.detach().sum(1).exp().sum()) == pytest.approx(1.0, abs=1e-4)


def test_a_file_gives_the_model_back(tmp_path):
    model, path = policy(), tmp_path / "weights" / "p.safetensors"
    save(path, model, {"figures": {"x": 1}})
    again, about = load(path)
    assert about == {"figures": {"x": 1}} and again.vocabulary.words == VOCABULARY.words
    design = VOCABULARY.design("scripted", dict(ROWS[3].config))
    assert design is not None
    prompts, written = Prompts.of([VOCABULARY.prompt(W, DEVICE)]), Written.of([design], VOCABULARY)
    before, after = (float(log_likelihood(m, prompts, written).detach().sum()) for m in (model, again))
    assert before == pytest.approx(after, abs=2e-2), "weights are kept in fp16"


def test_files_that_cannot_be_used_are_one_sentence(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "p.safetensors"
    with pytest.raises(PolicyError, match="train one with"):
        load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(PolicyError, match="train one with"):
        load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(PolicyError, match="no kernel model in format"):
        load(path)
    save_file({"x": torch.zeros(1)}, path, {"format": "kernelwright-policy-1", "size": json.dumps({}), "spaces": "{}", "about": "{}"})
    with pytest.raises(PolicyError, match="that can be read"):
        load(path)
    with pytest.raises(PolicyError, match="train a smaller model"):
        save(path, Policy(VOCABULARY, Size(768, 4, 4)), {})


def test_a_value_that_came_later_has_no_words():
    assert VOCABULARY.design("scripted", {"tile": 3, "unroll": 1, "order": "rows"}) is None
    assert VOCABULARY.design("other", {"tile": 4}) is None and VOCABULARY.design("scripted", {"tile": 4}) is None
