"""`policy`: configs that our kernel model writes."""

from __future__ import annotations

import pytest
import torch
from toy_family import DEVICE, Toy, W, judged

from kernelwright.learn.policy_model import Policy, PolicyError, Size, save
from kernelwright.learn.policy_vocabulary import Vocabulary, spaces_of
from kernelwright.propose import make
from kernelwright.propose.policy import PolicyProposer, contrasting, weights


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Weights of an untrained model that knows the toy Family."""
    torch.manual_seed(0)
    path = tmp_path / "policy.safetensors"
    save(path, Policy(Vocabulary(spaces_of([Toy()], W, DEVICE)), Size(32, 1, 1)), {})
    monkeypatch.setenv("KERNELWRIGHT_POLICY", str(path))
    return path


def test_it_proposes_new_legal_configs_and_says_who_they_descend_from(shipped):
    toy = Toy()
    proposer = make("policy", W, [toy], DEVICE, seed=3)
    seen: list[str] = []
    for _ in range(4):
        for candidate in proposer.propose(6):
            assert candidate.origin.proposer == "policy" and toy.illegal(dict(candidate.origin.config), W, DEVICE) is None
            assert candidate.id not in seen and set(candidate.origin.parents) <= set(seen)
            seen.append(candidate.id)
            proposer.learn(judged(candidate, toy.ratio(candidate.origin.config)))
    assert len(seen) == 24 and proposer.summary()["policy"]["prompts"] >= 4
    assert candidate.origin.parents, "measured configs are in the prompt"
    again = make("policy", W, [toy], DEVICE, seed=3)
    assert [c.id for c in again.propose(6)] == seen[:6], "the same seed and history, the same proposals"


def test_it_goes_on_to_the_end_of_the_space(shipped):
    proposer, count = make("policy", W, [Toy(small=True)], DEVICE), 0
    while batch := proposer.propose(10):
        count += len(batch)
    assert count == 36


def test_a_model_that_is_sure_of_one_config_goes_on_to_others_at_once(shipped, monkeypatch):
    """Each prompt costs as much as a batch may take: it must not be spent on what was tried before."""
    from kernelwright.learn.policy_model import Policy

    write = Policy.write

    def sure(self, *given):
        logits, past = write(self, *given)
        return logits * 1000, past

    monkeypatch.setattr(Policy, "write", sure)
    proposer, count = make("policy", W, [Toy(small=True)], DEVICE), 0
    for _ in range(12):
        count += len(proposer.propose(1))
    assert count == 12 and proposer.summary()["policy"]["prompts"] == 12


def test_families_that_the_model_does_not_know_are_searched_uniformly(shipped):
    later = Toy("later")
    assert not PolicyProposer.writes([later]) and PolicyProposer.writes([Toy()])
    found = make("policy", W, [later], DEVICE).propose(5)
    assert {c.origin.name for c in found} == {"later"} and len(found) == 5


def test_mix_has_it_as_an_arm(shipped):
    mix = make("mix", W, [Toy()], DEVICE)
    origins = set()
    for _ in range(6):
        for candidate in mix.propose(2):
            origins.add(candidate.origin.proposer)
            mix.learn(judged(candidate, 1.0))
    assert origins == {"policy", "evolve"}


def test_weights_that_are_not_there_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_POLICY", str(tmp_path / "none.safetensors"))
    with pytest.raises(PolicyError, match=r"none\.safetensors holds no kernel model .*kernelwright train all"):
        make("policy", W, [Toy()], DEVICE)
    assert not PolicyProposer.writes([Toy()])
    with pytest.raises(PolicyError):
        weights(tmp_path / "none.safetensors")


def test_contrasts():
    import random

    items = [(f"k{i}", 1.0 + 0.3 * i) for i in range(40)]

    def ratio(item: tuple[str, float]) -> float:
        return item[1]

    for contrast in ("buckets", "random", "islands"):
        shown = contrasting(items, ratio, random.Random(0), contrast, 1)
        assert len(shown) == 2 and shown == sorted(shown, key=ratio)
    assert contrasting(items, ratio, random.Random(0), "none") == [] == contrasting([], ratio, random.Random(0), "buckets")
    slow_and_fast = [("a", 1.0), ("b", 1.01), ("c", 5.0)]
    for seed in range(10):
        assert ("c", 5.0) in contrasting(slow_and_fast, ratio, random.Random(seed), "buckets"), "one of each bucket"
