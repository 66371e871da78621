"""Stages `pretrain` and `sft` of the kernel model: next words of designs. Pretraining takes legal designs of random shapes and all measured
configs, good ones oftener; fine-tuning the verified best of each training shape, after prompts that show some of the others, and off the
measured shapes what the Families' models would start with."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kernelwright.learn.policy_data import Corpus, Lesson, best_of, guessed_designs, history, lessons, pools, prompt, to_imitate
from kernelwright.learn.policy_model import Policy, Prompts, Size
from kernelwright.learn.policy_run import Checkpoint, Curves, trained
from kernelwright.learn.policy_sample import Written, log_likelihood
from kernelwright.learn.policy_vocabulary import Vocabulary

EACH = 4
"""Designs of a prompt in one step: they share its keys and values."""
FREE = {"pretrain": 0.5, "sft": 0.35}
"""Share of prompts of random products. Their designs are any legal ones while pretraining, and then what the Families' models would start
with: off the measured grid, the model is to be no worse than they are."""
WARM_UP, LAST = 0.05, 0.1
"""Share of the steps in which the rate rises; what it falls to, along a cosine."""
CLIP_NORM = 1.0
EVERY = 50
"""Steps between two lines of the curves, and between two checkpoints."""
WATCHED = 25
"""Every so manieth training shape is only watched: what a curve shows of it was not learnt."""

Told = Callable[[int, int, dict[str, float]], None]
"""Told (steps done, steps in all, newest numbers)."""


@dataclass(frozen=True)
class Imitation:
    """Settings of either stage."""

    steps: int
    prompts: int = 32
    """Of one step."""
    rate: float = 1e-3
    seed: int = 0
    contrast: str = "buckets"


def imitate(
    stage: str, folder: Path, corpus: Corpus, settings: Imitation, size: Size, told: Told = lambda *_: None, device: str = "cpu"
) -> Policy:
    """Runs or resumes a stage; the model is in the folder's checkpoint. The same settings give the same model, interrupted or not, on one
    kind of device."""
    if stage == "pretrain":
        torch.manual_seed(settings.seed)
        policy = Policy(Vocabulary(corpus.spaces), size).to(device)
    else:
        policy = trained(folder, "pretrain", device)
    vocabulary = policy.vocabulary
    learnt, watched = taught(corpus, vocabulary)
    measured, free = pools(learnt), lessons(corpus.designs, corpus.guessed, vocabulary)
    optimizer = torch.optim.AdamW(policy.parameters(), settings.rate, betas=(0.9, 0.98), weight_decay=0.01)
    checkpoint = Checkpoint(folder, stage, asdict(settings))
    done = checkpoint.resume(policy, optimizer)
    curves, started, total = Curves(folder, stage, done), time.monotonic(), 0.0
    for step in range(done, settings.steps):
        rng = random.Random(f"{settings.seed} {stage} {step}")
        prompts, designs = [], []
        for _ in range(settings.prompts):
            lesson = rng.choice(free if free and rng.random() < FREE[stage] else rng.choice(measured))
            seen = history(lesson, rng) if lesson.table.best else []
            prompts.append(prompt(lesson, vocabulary, seen, rng, settings.contrast, blur=bool(lesson.table.best)))
            if stage == "pretrain":
                designs += to_imitate(lesson, rng, EACH)
            else:
                best = lesson.table.best
                designs += best_of(lesson, rng, EACH, seen) if best else guessed_designs(lesson, vocabulary, rng, EACH)
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * schedule(step, settings.steps)
        policy.train()
        written = Written.of(designs, vocabulary, device)
        loss = -log_likelihood(policy, Prompts.of(prompts, device), written).sum() / written.weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP_NORM)
        optimizer.step()
        total += float(loss.detach())
        if (step + 1) % EVERY == 0 or step + 1 == settings.steps:
            numbers = {"loss": total / (step % EVERY + 1), **first_shares(policy, watched), "seconds": time.monotonic() - started}
            total = 0.0
            curves.add(step + 1, **numbers)
            checkpoint.save(policy, optimizer, step + 1)
            told(step + 1, settings.steps, numbers)
    curves.draw()
    return policy.eval()


def taught(corpus: Corpus, vocabulary: Vocabulary) -> tuple[list[Lesson], list[Lesson]]:
    """Training shapes that are learnt from, and those that are only watched: all layouts and types of a shape are on one side."""
    found = lessons(corpus.tables, corpus.guessed, vocabulary)
    shapes = sorted({tuple(lesson.table.workload.axes.values()) for lesson in found})
    kept = set(shapes[WATCHED // 2 :: WATCHED])
    if len(kept) == len(shapes):
        kept = set()
    sides: tuple[list[Lesson], list[Lesson]] = ([], [])
    for lesson in found:
        sides[tuple(lesson.table.workload.axes.values()) in kept].append(lesson)
    return sides


@torch.no_grad()
def first_shares(policy: Policy, watched: Sequence[Lesson], most: int = 48) -> dict[str, float]:
    """Of shapes that are not learnt from: how fast the measured config is that the model finds likeliest before anything was measured, as a
    share of the best, on average."""
    if not watched:
        return {}
    policy.eval()
    shares = []
    for lesson in watched[:most]:
        asked = Prompts.of([prompt(lesson, policy.vocabulary, [], random.Random(0), "none")], policy.where)
        likely = log_likelihood(policy, asked, Written.of(lesson.designs, policy.vocabulary, policy.where)).sum(1)
        shares.append(float(lesson.shares[int(likely.argmax())]))
    return {"first proposal": sum(shares) / len(shares)}


def schedule(step: int, steps: int) -> float:
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2
