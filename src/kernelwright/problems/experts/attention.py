"""Attention: forward and backward, causal and not, one token against a cache, sliding window, latent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.problem import Case, Tensors
from kernelwright.records import Workload

TOLERANCE = (
    "one rounding of the output, and of each step in the output's type: libraries round the probabilities (and gradients of scores) so "
    "before the second product"
)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class AttentionProblem(Expert):
    kind, domain, steps = "module", "attention", "output"
    dtypes, spread = ("bf16", "fp16"), 2.0
    adversarial = ("small",)  # PyTorch's own fused CPU kernel loses or spreads a NaN (seen with torch 2.13)
    tolerance = TOLERANCE

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"


def visible(queries: int, keys: int, device: Any, window: int = 0) -> torch.Tensor:
    """(queries, keys), True where a query sees a key: none later than itself, and with `window` only that many of the latest."""
    i, j = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None, :]
    return (j <= i) & (i - j < window) if window else j <= i


class Attention(AttentionProblem):
    title = "attention"
    formula = "softmax(q k^T / sqrt(D)) v"
    axes = ("B", "H", "S", "T", "D")
    inputs, outputs = {"q": "B H S D", "k": "B H T D", "v": "B H T D"}, {"o": "B H S D"}
    independent = {"B": 1, "H": 2}
    full = ((4, 32, 2048, 2048, 128), (1, 16, 8192, 8192, 128))
    tiny = ((2, 2, 12, 20, 16), (1, 1, 1, 1, 8), (1, 2, 33, 17, 8))
    causal = False

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.H * n.S * n.T

    def terms(self, n: Sizes) -> int:
        return max(n.T, n.D)

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.B * n.H * n.S * n.T * n.D

    def define(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(n.D)
        if self.causal:
            scores = scores.masked_fill(~visible(n.S, n.S, q.device), -math.inf)
        return torch.softmax(scores, -1) @ v

    def second(self, n: Sizes, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        o = np.zeros((n.B, n.H, n.S, n.D))
        for b, h, i in np.ndindex(n.B, n.H, n.S):
            keys = i + 1 if self.causal else n.T
            o[b, h, i] = softmax_rows(k[b, h, :keys] @ q[b, h, i] / np.sqrt(n.D)) @ v[b, h, :keys]
        return o

    mistakes = {
        "scores not divided by sqrt(D)": lambda p, n, q, k, v: p.define(n, q * math.sqrt(n.D), k, v),
        "last key not seen": lambda p, n, q, k, v: p.define(n, q, k[:, :, :-1], v[:, :, :-1]) if n.T > 1 else 0 * q,
        "causal where it is not": lambda p, n, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }


class AttentionCausal(Attention):
    title = "attention-causal"
    formula = "softmax(q k^T / sqrt(D), keys not later than the query) v"
    axes = ("B", "H", "S", "D")
    inputs, outputs = {"q": "B H S D", "k": "B H S D", "v": "B H S D"}, {"o": "B H S D"}
    full = ((4, 32, 2048, 128), (1, 16, 8192, 128))
    tiny = ((2, 2, 20, 16), (1, 1, 1, 8), (1, 2, 33, 8))
    causal = True

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.H * n.S * n.S

    def terms(self, n: Sizes) -> int:
        return max(n.S, n.D)

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.H * n.S * n.S * n.D

    mistakes = {
        "the future seen": lambda p, n, q, k, v: F.scaled_dot_product_attention(q, k, v),
        "the query's own key not seen": lambda p, n, q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible(n.S, n.S, q.device).tril(-1) | (torch.arange(n.S, device=q.device) == 0)
        ) + (0 if n.S > 1 else 1),
        "one key of the future seen": lambda p, n, q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(n.S, n.S, dtype=torch.bool, device=q.device).tril(1)
        ),
    }  # fmt: skip


class AttentionBackward(AttentionProblem):
    title = "attention-backward"
    formula = "dq, dk and dv of attention, from q, k, v, its output o, the rows' log-sum-exp and do"
    axes = ("B", "H", "S", "D")
    inputs = {
        "do": "B H S D",
        "q": "B H S D",
        "k": "B H S D",
        "v": "B H S D",
        "o": "B H S D",
        "lse": "B H S : fp32",
    }
    outputs = {"dq": "B H S D", "dk": "B H S D", "dv": "B H S D"}
    independent = {"B": 1, "H": 2}
    drawn_anew = ("q", "k", "v", "o", "lse")
    full = ((2, 32, 2048, 128), (1, 16, 4096, 64))
    tiny = ((2, 2, 20, 16), (1, 1, 1, 8), (1, 2, 33, 8))
    causal = False

    def largest_step(self, n: Sizes) -> int:
        return 2 * n.B * n.H * n.S * n.S

    def terms(self, n: Sizes) -> int:
        return max(n.S, n.D)

    def flops(self, n: Sizes) -> float:
        return (5.0 if self.causal else 10.0) * n.B * n.H * n.S * n.S * n.D

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        found, n = super().generate(w, case, rng, device), self.sizes(w)
        if case.name != "nan":
            scores = self.scores(n, found["q"].double(), found["k"].double())
            found["o"] = (torch.softmax(scores, -1) @ found["v"].double()).to(n.dtype)
            found["lse"] = torch.logsumexp(scores, -1).float()
        return found

    def scores(self, n: Sizes, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(n.D)
        return scores.masked_fill(~visible(n.S, n.S, q.device), -math.inf) if self.causal else scores

    def define(
        self, n: Sizes, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> Any:
        p = torch.exp(self.scores(n, q, k) - lse[..., None])
        ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) / math.sqrt(n.D)
        return ds @ k, ds.mT @ q, p.mT @ do

    def cancelling(
        self, n: Sizes, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> Any:
        p = torch.exp(self.scores(n, q, k) - lse[..., None])
        ds = p * ((do @ v.mT).abs() + (do * o).abs().sum(-1, keepdim=True)) / math.sqrt(n.D)
        return ((ds**2) @ (k**2)).sqrt(), ((ds**2).mT @ (q**2)).sqrt(), ((p**2).mT @ (do**2)).sqrt()

    def eager_form(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        # scores of half precision would lose the row's sum, as no one writes it
        return self.define(n, *(inputs[k].float() for k in self.inputs))

    def second(self, n: Sizes, do: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, o: np.ndarray, lse: np.ndarray) -> Any:
        dq, dk, dv = (np.zeros_like(q) for _ in range(3))
        for b, h, i in np.ndindex(n.B, n.H, n.S):
            at = (b, h, slice(0, i + 1 if self.causal else n.S))
            p = np.exp(k[at] @ q[b, h, i] / np.sqrt(n.D) - lse[b, h, i])
            dp = v[at] @ do[b, h, i] - do[b, h, i] @ o[b, h, i]
            ds = p * dp / np.sqrt(n.D)
            dq[b, h, i] = ds @ k[at]
            dk[at] += np.outer(ds, q[b, h, i])
            dv[at] += np.outer(p, do[b, h, i])
        return dq, dk, dv

    mistakes = {
        "the rows' sums of do o left out": lambda p, n, do, q, k, v, o, lse: p.eager_form(n, do=do, q=q, k=k, v=v, o=0 * o, lse=lse),
        "dk and dv mixed up": lambda p, n, **x: tuple(p.eager_form(n, **x)[i] for i in (0, 2, 1)),
        "dq not divided by sqrt(D)": lambda p, n, **x: tuple(
            t * (math.sqrt(n.D) if i == 0 else 1) for i, t in enumerate(p.eager_form(n, **x))
        ),
    }


class AttentionCausalBackward(AttentionBackward):
    title = "attention-causal-backward"
    formula = "dq, dk and dv of causal attention, from q, k, v, its output o, the rows' log-sum-exp and do"
    full = ((2, 32, 2048, 128), (1, 16, 4096, 128))
    causal = True

    mistakes = {
        "no mask": lambda p, n, **x: AttentionBackward.eager_form(AttentionBackward(), n, **x),
        "the rows' sums of do o left out": AttentionBackward.mistakes["the rows' sums of do o left out"],
        "last query not in dk and dv": lambda p, n, **x: (
            p.eager_form(n, **x)[0],
            *p.eager_form(n, **{**x, "do": torch.cat([x["do"][:, :, :-1], 0 * x["do"][:, :, -1:]], 2)})[1:],
        ),
    }


class GroupedDecode(AttentionProblem):
    title = "attention-decode"
    formula = "one query token a sequence against a cache of T; G query heads share each of KV key-value heads"
    axes = ("B", "KV", "G", "T", "D")
    inputs, outputs = {"q": "B KV G D", "k": "B KV T D", "v": "B KV T D"}, {"o": "B KV G D"}
    independent = {"B": 4, "KV": 2}
    full = ((64, 8, 4, 4096, 128), (8, 8, 8, 32768, 128), (1, 8, 8, 131072, 128))
    tiny = ((2, 2, 3, 20, 16), (1, 1, 1, 1, 8), (1, 2, 4, 65, 8))

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.KV * n.G * n.T

    def terms(self, n: Sizes) -> int:
        return max(n.T, n.D)

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.B * n.KV * n.G * n.T * n.D

    def define(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(n.D), -1) @ v

    def eager_form(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = q.reshape(n.B, n.KV * n.G, 1, n.D)
        return F.scaled_dot_product_attention(heads, k, v, enable_gqa=True).view(q.shape)

    def second(self, n: Sizes, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = np.einsum("bhgd,bhtd->bhgt", q, k) / np.sqrt(n.D)
        return np.einsum("bhgt,bhtd->bhgd", softmax_rows(scores), v)

    mistakes = {
        "heads in another order": lambda p, n, q, k, v: p.define(n, q, k.roll(1, 1), v.roll(1, 1)) if n.KV > 1 else 0 * q,
        "halves of the cache added without their weights": lambda p, n, q, k, v: (
            (p.define(n, q, k[:, :, : n.T // 2], v[:, :, : n.T // 2]) + p.define(n, q, k[:, :, n.T // 2 :], v[:, :, n.T // 2 :])) / 2
            if n.T > 1
            else 0 * q
        ),
        "last token of the cache not seen": lambda p, n, q, k, v: p.define(n, q, k[:, :, :-1], v[:, :, :-1]) if n.T > 1 else 0 * q,
    }


class SlidingWindow(AttentionProblem):
    title = "attention-sliding-window"
    formula = "causal attention in which a query sees itself and the W - 1 tokens before it"
    axes = ("B", "H", "S", "W", "D")
    inputs, outputs = {"q": "B H S D", "k": "B H S D", "v": "B H S D"}, {"o": "B H S D"}
    independent = {"B": 1, "H": 2}
    full = ((1, 16, 8192, 1024, 128), (2, 8, 4096, 512, 64))
    tiny = ((2, 2, 20, 6, 16), (1, 1, 1, 1, 8), (1, 2, 33, 40, 8))

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.H * n.S * n.S

    def terms(self, n: Sizes) -> int:
        return max(min(n.S, n.W), n.D)

    def flops(self, n: Sizes) -> float:
        seen = min(n.W, n.S)
        return 4.0 * n.B * n.H * n.D * (n.S * seen - seen * (seen - 1) / 2)

    def define(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT / math.sqrt(n.D)).masked_fill(~visible(n.S, n.S, q.device, n.W), -math.inf)
        return torch.softmax(scores, -1) @ v

    def eager_form(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible(n.S, n.S, q.device, n.W))

    def second(self, n: Sizes, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        o = np.zeros_like(q)
        for b, h, i in np.ndindex(n.B, n.H, n.S):
            first = max(0, i - n.W + 1)
            o[b, h, i] = softmax_rows(k[b, h, first : i + 1] @ q[b, h, i] / np.sqrt(n.D)) @ v[b, h, first : i + 1]
        return o

    mistakes = {
        "a window of one more": lambda p, n, q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible(n.S, n.S, q.device, n.W + 1)
        ),
        "no window": lambda p, n, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "the future seen": lambda p, n, q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible(n.S, n.S, q.device, n.W) | visible(n.S, n.S, q.device, n.W).T
        ),
    }


class LatentDecode(AttentionProblem):
    title = "attention-latent-decode"
    formula = "multi-head latent attention, one token: softmax(q c^T / sqrt(L + R)) c[:, :L], one cache c for all H heads"
    axes = ("B", "H", "T", "L", "R")
    inputs, outputs = {"q": "B H L+R", "c": "B T L+R"}, {"o": "B H L"}
    independent = {"B": 2}
    full = ((32, 128, 4096, 512, 64), (4, 128, 32768, 512, 64))
    tiny = ((2, 3, 20, 16, 8), (1, 1, 1, 8, 8), (1, 4, 65, 8, 4))

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.H * n.T

    def terms(self, n: Sizes) -> int:
        return max(n.T, n.L + n.R)

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.H * n.T * (2 * n.L + n.R)

    def define(self, n: Sizes, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ c.mT / math.sqrt(n.L + n.R), -1) @ c[..., : n.L]

    def second(self, n: Sizes, q: np.ndarray, c: np.ndarray) -> np.ndarray:
        scores = np.einsum("bhd,btd->bht", q, c) / np.sqrt(n.L + n.R)
        return np.einsum("bht,btl->bhl", softmax_rows(scores), c[..., : n.L])

    mistakes = {
        "rotary part not in the scores": lambda p, n, q, c: torch.softmax(
            q[..., : n.L] @ c[..., : n.L].mT / math.sqrt(n.L + n.R), -1
        ) @ c[..., : n.L] + (0 if n.T > 1 else 1),
        "the last L of the cache, not the first": lambda p, n, q, c: torch.softmax(q @ c.mT / math.sqrt(n.L + n.R), -1) @ c[..., n.R :],
        "divided by sqrt(L)": lambda p, n, q, c: p.define(n, q * math.sqrt((n.L + n.R) / n.L), c) + (0 if n.T > 1 else 1),
    }  # fmt: skip


PROBLEMS = (
    Attention,
    AttentionCausal,
    AttentionBackward,
    AttentionCausalBackward,
    GroupedDecode,
    SlidingWindow,
    LatentDecode,
)
