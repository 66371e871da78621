"""Stage `rl`: contrastive reinforcement learning of the kernel model. Prompts hold measured configs of different score buckets; the model
writes a group of designs after each; their measured rewards, as advantages within the group, say which it should have written.

Group-relative policy optimisation (Shao et al., DeepSeekMath, 2024) with CUDA-L1's contrastive prompts and smoothed, clipped rewards. The
divergence from the model that the stage began with is held down. Rewards are looked up in tables, or measured by the evaluator's pool.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

from kernelwright.learn.policy_data import Corpus, Lesson, guessed_designs, history, lessons, pools, prompt
from kernelwright.learn.policy_legal import Constraint, Listed
from kernelwright.learn.policy_model import Policy, Prompts
from kernelwright.learn.policy_run import Checkpoint, Curves, trained
from kernelwright.learn.policy_sample import Sample, Written, chosen, log_likelihood, logits_of, sample
from kernelwright.learn.policy_train import CLIP_NORM, Told, first_shares, taught
from kernelwright.learn.reward import smoothed
from kernelwright.learn.table import Row
from kernelwright.records import Outcome

EVERY = 10


@dataclass(frozen=True)
class Contrastive:
    """Settings."""

    steps: int
    prompts: int = 16
    group: int = 16
    """Designs of a prompt. CUDA-L1's is not published."""
    epochs: int = 2
    """Updates with the designs of one step."""
    rate: float = 1e-4
    clip: float = 0.2
    """Of the likelihoods' ratio, as in PPO."""
    divergence: float = 0.02
    """Weight of the divergence from the start. Ours; DeepSeekMath's is 0.04."""
    kept: float = 0.3
    """Weight of the next words of random products, of which nothing is measured, as in fine-tuning: a policy that is rewarded on measured
    shapes alone forgets the others. As in InstructGPT (Ouyang et al. 2022); the number is ours."""
    seed: int = 0
    contrast: str = "buckets"


class Rewards(Protocol):
    """Where designs are judged."""

    @property
    def lessons(self) -> Sequence[Lesson]:
        """What prompts are made of."""
        ...

    def constraint(self, lesson: Lesson, seen: Sequence[Row]) -> Constraint:
        """What may be written after a prompt that saw these rows."""
        ...

    def soon(self, asked: Sequence[tuple[Lesson, Sequence[tuple[int, ...]]]]) -> None:
        """All that a step is about to ask for, so that it is compiled side by side."""
        ...

    def of(self, lesson: Lesson, designs: Sequence[tuple[int, ...]]) -> list[Row | None]:
        """None: it says nothing (too noisy to time)."""
        ...


class FromTables:
    """Rewards of measured configs; nothing else may be written, and nothing that the prompt's search has seen. Of complete tables, where
    there are any: among what a search chose there is little to tell apart."""

    def __init__(self, lessons: Sequence[Lesson]):
        self.lessons: Sequence[Lesson] = next(iter(pools([x for x in lessons if len(x.rows) > 1])), [])
        self._rows = {id(lesson): dict(zip(lesson.designs, lesson.rows, strict=True)) for lesson in self.lessons}

    def constraint(self, lesson: Lesson, seen: Sequence[Row]) -> Constraint:
        known = {id(r) for r in seen}
        left = [d for r, d in zip(lesson.rows, lesson.designs, strict=True) if id(r) not in known]
        return Listed(left if len(left) > 1 else lesson.designs)

    def soon(self, asked: Sequence[tuple[Lesson, Sequence[tuple[int, ...]]]]) -> None:
        pass

    def of(self, lesson: Lesson, designs: Sequence[tuple[int, ...]]) -> list[Row | None]:
        rows = self._rows[id(lesson)]
        return [rows[d] for d in designs]


def reinforce(
    folder: Path,
    corpus: Corpus,
    settings: Contrastive,
    told: Told = lambda *_: None,
    device: str = "cpu",
    rewards: Rewards | None = None,
    start: str = "sft",
    stage: str = "rl",
) -> Policy:
    """Runs or resumes the stage; the model is in the folder's checkpoint. Without `rewards` those of the corpus' tables."""
    policy, reference = trained(folder, start, device), trained(folder, start, device).eval()
    vocabulary = policy.vocabulary
    learnt, watched = taught(corpus, vocabulary)
    free = lessons(corpus.designs, corpus.guessed, vocabulary)
    judge: Rewards = FromTables(learnt) if rewards is None else rewards
    optimizer = torch.optim.AdamW(policy.parameters(), settings.rate, betas=(0.9, 0.95), weight_decay=0.0)
    checkpoint = Checkpoint(folder, stage, asdict(settings))
    done = checkpoint.resume(policy, optimizer)
    curves, started, window = Curves(folder, stage, done), time.monotonic(), Window()
    for step in range(done, settings.steps):
        rng = random.Random(f"{settings.seed} {stage} {step}")
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        chosen = [rng.choice(judge.lessons) for _ in range(settings.prompts)]
        seen = [history(lesson, rng) for lesson in chosen]
        prompts = [prompt(lesson, vocabulary, rows, rng, settings.contrast) for lesson, rows in zip(chosen, seen, strict=True)]
        constraints = [judge.constraint(lesson, rows) for lesson, rows in zip(chosen, seen, strict=True)]
        policy.eval()  # there is no dropout; likelihoods are those that were sampled by
        groups = sample(policy, prompts, constraints, settings.group, generator)
        window.dead += sum(settings.group - len(g) for g in groups)
        judge.soon([(chosen[i], [s.words for s in group]) for i, group in enumerate(groups)])
        kept: list[tuple[int, list[Sample], list[float]]] = []
        for i, group in enumerate(groups):
            rows = judge.of(chosen[i], [s.words for s in group]) if group else []
            window.take(chosen[i], rows)
            told_of = [(s, row) for s, row in zip(group, rows, strict=True) if row is not None]
            advantages = smoothed([row.reward for _, row in told_of])
            if any(advantages):
                kept.append((i, [s for s, _ in told_of], advantages))
        off = [rng.choice(free) for _ in range(settings.prompts)]
        asked = [prompt(lesson, vocabulary, [], rng, settings.contrast) for lesson in off]
        words = Written.of([d for lesson in off for d in guessed_designs(lesson, vocabulary, rng, 1)], vocabulary, device)
        known = (Prompts.of(asked, device), words)
        divergence = _update(policy, reference, optimizer, prompts, kept, known, settings, device) if kept else 0.0
        window.divergence += divergence
        window.steps += 1
        if (step + 1) % EVERY == 0 or step + 1 == settings.steps:
            numbers = {**window.numbers(), **first_shares(policy, watched), "seconds": time.monotonic() - started}
            window = Window()
            curves.add(step + 1, **numbers)
            checkpoint.save(policy, optimizer, step + 1)
            told(step + 1, settings.steps, numbers)
    curves.draw()
    return policy.eval()


def _update(
    policy: Policy,
    reference: Policy,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence,
    kept: Sequence[tuple[int, list[Sample], list[float]]],
    known: tuple[Prompts, Written],
    settings: Contrastive,
    device: str,
) -> float:
    """All groups at once; short ones are filled up with designs of weight 0. `known`: prompts of random products and what is to be known
    of them. Returns the mean divergence of a design from the reference."""
    batch = Prompts.of([prompts[i] for i, _, _ in kept], device)
    width = max(len(group) for _, group, _ in kept)
    filled = [group + [group[0]] * (width - len(group)) for _, group, _ in kept]
    counts = [[1.0] * len(group) + [0.0] * (width - len(group)) for _, group, _ in kept]
    goals = [advantages + [0.0] * (width - len(advantages)) for _, _, advantages in kept]
    flat = [s for group in filled for s in group]
    written = Written.of([s.words for s in flat], policy.vocabulary, device, [s.allowed for s in flat])
    advantage = torch.tensor(goals, device=device).reshape(-1, 1)
    weight = written.weight * torch.tensor(counts, device=device).reshape(-1, 1)
    weight = weight / weight.sum(1, keepdim=True).clamp_min(1)  # each design counts the same, however long
    with torch.no_grad():
        old, start = log_likelihood(policy, batch, written), logits_of(reference, batch, written).log_softmax(-1)
    designs = sum(map(sum, counts))
    divergence = 0.0
    for _ in range(settings.epochs):
        logits = logits_of(policy, batch, written)
        ratio = (chosen(logits, written) - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage)
        # of all words, also those that a table does not allow: what was never measured must not drift
        now = logits.log_softmax(-1)
        apart = (now.exp() * (now - start)).sum(-1)
        loss = -((gain - settings.divergence * apart) * weight).sum() / designs
        loss = loss - settings.kept * log_likelihood(policy, *known).sum() / known[1].weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP_NORM)
        optimizer.step()
        divergence = float((apart.detach() * written.weight).sum() / len(flat))
    return divergence


class Window:
    """What happened since the last line of the curves."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.reward = self.share = self.divergence = 0.0
        self.dead = self.steps = 0

    def take(self, lesson: Lesson, rows: Sequence[Row | None]) -> None:
        for row in rows:
            if row is not None:
                self.outcomes[row.outcome] += 1
                self.reward += row.reward
                self.share += row.ratio / max(lesson.table.best, row.ratio, 1e-9)

    def numbers(self) -> dict[str, float]:
        judged = max(1, self.outcomes.total())
        return {
            "reward": self.reward / judged,
            "share of best": self.share / judged,
            "valid": self.outcomes[Outcome.OK] / judged,
            "cheats": self.outcomes[Outcome.CHEAT] / judged,
            "dead ends": self.dead / max(1, self.dead + judged),
            "divergence": self.divergence / max(1, self.steps),
        }
