"""Writes designs with the kernel model, all legal, a batch at a time; and says how likely the model finds given ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelwright.learn.policy_legal import Constraint
from kernelwright.learn.policy_model import Policy, Prompts, repeated
from kernelwright.learn.policy_vocabulary import DESIGN, Prompt, Vocabulary

ATTEMPTS = 8
"""At designs that came to a dead end. A model that knows nothing comes to one with three of four, a trained one with few."""


@dataclass(frozen=True)
class Sample:
    """A complete, legal design."""

    words: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    """What might have stood in the place of each word."""
    logp: float
    """Of the design under the constraint, at temperature 1."""


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Sequence[Prompt],
    constraints: Sequence[Constraint],
    count: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> list[list[Sample]]:
    """For each prompt `count` designs, or fewer where ATTEMPTS came to dead ends. `generator` lives on the CPU."""
    found: list[list[Sample]] = [[] for _ in prompts]
    for _ in range(ATTEMPTS):
        lacking = [i for i, samples in enumerate(found) if len(samples) < count]
        if not lacking:
            break
        most = count - min(len(found[i]) for i in lacking)
        drawn = _attempt(policy, [prompts[i] for i in lacking], [constraints[i] for i in lacking], most, generator, temperature)
        for i, samples in zip(lacking, drawn, strict=True):
            found[i] = (found[i] + samples)[:count]
    return found


def _attempt(
    policy: Policy,
    prompts: Sequence[Prompt],
    constraints: Sequence[Constraint],
    count: int,
    generator: torch.Generator,
    temperature: float,
) -> list[list[Sample]]:
    vocabulary, where = policy.vocabulary, policy.where
    batch = Prompts.of(prompts, where)
    past, there = repeated(policy.read(batch), count), batch.there.repeat_interleave(count, 0)
    rows = len(prompts) * count
    designs: list[tuple[int, ...]] = [()] * rows
    choices: list[list[tuple[int, ...]]] = [[] for _ in range(rows)]
    logp = [0.0] * rows
    open_rows = set(range(rows))
    words = torch.full((rows, 1), vocabulary.ids[DESIGN], device=where)
    while open_rows:
        slots = torch.tensor([[vocabulary.asked(d) if i in open_rows else 0] for i, d in enumerate(designs)], device=where)
        logits, past = policy.write(words, slots, there, past)
        masked = torch.full((rows, len(vocabulary.words)), -torch.inf)
        for i in range(rows):
            found = constraints[i // count].allowed(designs[i]) if i in open_rows else ()
            if not found:
                open_rows.discard(i)
                masked[i, 0] = 0.0
                continue
            choices[i].append(tuple(found))
            masked[i, list(found)] = 0.0
        masked += logits[:, -1].float().cpu()
        logs = masked.log_softmax(-1)
        drawn = torch.multinomial((masked / temperature).softmax(-1), 1, generator=generator)
        of_drawn = logs.gather(1, drawn)[:, 0].tolist()
        for i in open_rows:
            designs[i] = (*designs[i], int(drawn[i]))
            logp[i] += of_drawn[i]
        words = drawn.to(where)
        open_rows = {i for i in open_rows if vocabulary.asked(designs[i])}
    whole = [bool(d) and not vocabulary.asked(d) for d in designs]
    return [
        [Sample(designs[i], tuple(choices[i]), logp[i]) for i in range(p * count, (p + 1) * count) if whole[i]] for p in range(len(prompts))
    ]


@dataclass
class Written:
    """Designs as tensors, [designs, positions]: words before each place, what is asked there, the word that stands there, 1 where one
    does, and what might have stood there [designs, positions, words in all] (None: anything)."""

    before: Tensor
    slots: Tensor
    target: Tensor
    weight: Tensor
    allowed: Tensor | None

    @classmethod
    def of(
        cls,
        designs: Sequence[Sequence[int]],
        vocabulary: Vocabulary,
        device: torch.device | str = "cpu",
        allowed: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> Written:
        positions = max(map(len, designs))
        before, slots, target = (torch.zeros(len(designs), positions, dtype=torch.long) for _ in range(3))
        weight = torch.zeros(len(designs), positions)
        mask = None if allowed is None else torch.ones(len(designs), positions, len(vocabulary.words), dtype=torch.bool)
        for i, design in enumerate(designs):
            n = len(design)
            before[i, :n] = torch.tensor([vocabulary.ids[DESIGN], *design[:-1]])
            slots[i, :n] = torch.tensor([vocabulary.asked(design[:j]) for j in range(n)])
            target[i, :n] = torch.tensor(list(design))
            weight[i, :n] = 1.0
            if mask is not None and allowed is not None:
                mask[i, :n] = False
                for j, words in enumerate(allowed[i]):
                    mask[i, j, list(words)] = True
        tensors = (before.to(device), slots.to(device), target.to(device), weight.to(device))
        return cls(*tensors, mask.to(device) if mask is not None else None)


def logits_of(policy: Policy, prompts: Prompts, written: Written) -> Tensor:
    """[designs, positions, words in all]. The designs of a prompt are next to each other, as many for each."""
    each = written.before.shape[0] // prompts.words.shape[0]
    past, there = repeated(policy.read(prompts), each), prompts.there.repeat_interleave(each, 0)
    return policy.write(written.before, written.slots, there, past)[0].float()


def log_likelihood(policy: Policy, prompts: Prompts, written: Written) -> Tensor:
    """[designs, positions], 0 where no word stands."""
    return chosen(logits_of(policy, prompts, written), written)


def chosen(logits: Tensor, written: Written) -> Tensor:
    """Logarithms of the likelihoods of the words that stand there, among those allowed."""
    if written.allowed is not None:
        logits = logits.masked_fill(~written.allowed, -torch.inf)
    return logits.log_softmax(-1).gather(2, written.target[..., None])[..., 0].masked_fill(written.weight == 0, 0.0)


@torch.no_grad()
def likelihoods(policy: Policy, prompt: Prompt, constraint: Constraint, designs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """Logarithms, of complete designs under a constraint."""
    if not designs:
        return {}
    allowed = [[constraint.allowed(d[:i]) for i in range(len(d))] for d in designs]
    written = Written.of(designs, policy.vocabulary, policy.where, allowed)
    return dict(zip(designs, log_likelihood(policy, Prompts.of([prompt], policy.where), written).sum(1).tolist(), strict=True))
