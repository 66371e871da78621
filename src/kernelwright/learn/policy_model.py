"""The kernel model: a decoder of a few million parameters from prompts to designs, and its file.

A prompt is read at once (every position sees all others; their order means nothing, words say what each is), a design is written word by
word after it. Several designs share the keys and values of their prompt. Pre-norm transformer (Xiong et al. 2020).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelwright.learn.policy_vocabulary import Prompt, Vocabulary

FORMAT = "kernelwright-policy-1"
LARGEST_FILE = 25 * 2**20
PERIODS = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
"""Of the waves in which a number is read. Numbers are doublings: the longest spans what a product's axes differ by, the shortest tells 4 %
of speed apart."""


class PolicyError(ValueError):
    """Weights that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Size:
    width: int = 192
    layers: int = 4
    heads: int = 6


@dataclass
class Prompts:
    """A batch: `words` [batch, positions, bag], 0 where there is none; `numbers` [batch, positions]; `there` [batch, positions]."""

    words: Tensor
    numbers: Tensor
    there: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Prompt], device: torch.device | str = "cpu") -> Prompts:
        positions = max(len(p.bags) for p in prompts)
        bag = max((len(b) for p in prompts for b in p.bags), default=1)
        words = torch.zeros(len(prompts), positions, bag, dtype=torch.long)
        numbers = torch.zeros(len(prompts), positions)
        there = torch.zeros(len(prompts), positions, dtype=torch.bool)
        for i, p in enumerate(prompts):
            numbers[i, : len(p.numbers)] = torch.tensor(p.numbers)
            there[i, : len(p.bags)] = True
            for j, b in enumerate(p.bags):
                words[i, j, : len(b)] = torch.tensor(b)
        return cls(words.to(device), numbers.to(device), there.to(device))


Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [batch, heads, positions, width / heads]."""


class Block(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        self.norm, self.norm_mlp = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`mask` [batch, 1, positions, past and positions]: what each may see."""
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, positions, width))
        return x + self.mlp(self.norm_mlp(x)), (k, v)


class Policy(nn.Module):
    def __init__(self, vocabulary: Vocabulary, size: Size | None = None):
        super().__init__()
        self.vocabulary, self.size = vocabulary, size or Size()
        width = self.size.width
        self.word = nn.Embedding(len(vocabulary.words), width, padding_idx=0)
        self.slot = nn.Embedding(len(vocabulary.slots), width)
        self.number = nn.Linear(1 + 2 * len(PERIODS), width)
        self.blocks = nn.ModuleList(Block(self.size) for _ in range(self.size.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(vocabulary.words))
        nn.init.normal_(self.word.weight, std=0.02)
        nn.init.normal_(self.slot.weight, std=0.02)
        with torch.no_grad():
            self.word.weight[0].zero_()
        self.waves: Tensor
        self.register_buffer("waves", torch.tensor([2 * math.pi / p for p in PERIODS]), persistent=False)

    @property
    def parameters_in_all(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @property
    def where(self) -> torch.device:
        return self.head.weight.device

    def read(self, prompts: Prompts) -> Past:
        """Keys and values of the prompts."""
        angle = prompts.numbers[..., None] * self.waves
        number = self.number(torch.cat((prompts.numbers[..., None] / PERIODS[0], angle.sin(), angle.cos()), -1))
        x = self.word(prompts.words).sum(2) + number
        mask = prompts.there[:, None, None, :]
        past: Past = []
        for block in self.blocks:
            x, kept = block(x, None, mask)
            past.append(kept)
        return past

    def write(self, words: Tensor, slots: Tensor, there: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Logits [batch, positions, words in all] of what comes after each of `words` [batch, positions], where `slots` are asked for.
        `there` [batch, prompt's positions]: of the prompt, which of `past` may be seen; what else is in `past` are earlier words."""
        batch, positions = words.shape
        before = past[0][0].shape[2]
        earlier = torch.ones(batch, before - there.shape[1], dtype=torch.bool, device=words.device)
        seen = torch.cat((there, earlier), 1)[:, None, None, :].expand(batch, 1, positions, before)
        causal = torch.ones(positions, positions, dtype=torch.bool, device=words.device).tril().expand(batch, 1, -1, -1)
        mask = torch.cat((seen, causal), 3)
        x = self.word(words) + self.slot(slots)
        now: Past = []
        for block, kept in zip(self.blocks, past, strict=True):
            x, both = block(x, kept, mask)
            now.append(both)
        return self.head(self.norm(x)), now


def repeated(past: Past, times: int) -> Past:
    """Of each prompt for so many designs, next to each other."""
    return [(k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in past]


# ------------------------------------------------------------------------------------------------------------------ file


def save(path: Path, policy: Policy, about: dict[str, Any]) -> None:
    """One safetensors file with weights in fp16, the vocabulary and `about`, whole or not at all."""
    from safetensors.torch import save as to_bytes

    weights = {name: p.detach().to("cpu", torch.float16).contiguous() for name, p in policy.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "size": json.dumps(asdict(policy.size)),
        "spaces": json.dumps(policy.vocabulary.spaces),
        "about": json.dumps(about),
    }
    data = to_bytes(weights, metadata)
    if len(data) > LARGEST_FILE:
        raise PolicyError(
            f"the weights are {len(data) / 2**20:.1f} MB, at most {LARGEST_FILE >> 20} may be; train a smaller model (--width, --layers)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def load(path: Path) -> tuple[Policy, dict[str, Any]]:
    """The model in fp32, ready to write, and `about`. Raises PolicyError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise PolicyError(f"{path} holds no kernel model in format {FORMAT}; train one with `kernelwright train all`")
            vocabulary = Vocabulary(json.loads(metadata["spaces"]))
            policy = Policy(vocabulary, Size(**json.loads(metadata["size"])))
            policy.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118, no mapping
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise PolicyError(f"{path} holds no kernel model that can be read ({error}); train one with `kernelwright train all`") from None
    return policy.eval(), json.loads(metadata["about"])
