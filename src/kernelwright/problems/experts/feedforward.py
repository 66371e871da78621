"""Feed-forward modules of transformers: dense, gated, routed to experts, and a whole decoder layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.experts.attention import softmax_rows, visible
from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.normalisation import EPS
from kernelwright.problems.experts.reductions import distinct
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload

TOLERANCE = "one rounding of each product and activation in the output's type, as separate operations round, and the walk of each sum"


def silu(x: np.ndarray) -> np.ndarray:
    return x * np.exp(-np.logaddexp(0, -x))


class FeedForward(Expert):
    kind, domain, steps = "module", "feed-forward", "output"
    dtypes = ("bf16", "fp16")
    spread = 2.0
    tolerance = TOLERANCE

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"

    def largest_step(self, n: Sizes) -> int:
        return n.T * n.F

    def terms(self, n: Sizes) -> int:
        return max(n.D, n.F)


class SwiGlu(FeedForward):
    title = "mlp-swiglu"
    formula = "(silu(x Wg^T) * (x Wu^T)) Wd^T"
    axes = ("T", "D", "F")
    inputs, outputs = {"x": "T D", "gate": "F D", "up": "F D", "down": "D F"}, {"y": "T D"}
    independent = {"T": 64}
    weights = ("gate", "up", "down")
    drawn_anew = ("x", "gate", "up", "down")
    full = ((4096, 4096, 14336), (64, 8192, 28672))
    tiny = ((10, 16, 40), (1, 8, 8), (5, 24, 17))

    def flops(self, n: Sizes) -> float:
        return 6.0 * n.T * n.D * n.F

    def define(self, n: Sizes, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def second(self, n: Sizes, x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
        return np.einsum("tf,df->td", silu(np.einsum("td,fd->tf", x, gate)) * np.einsum("td,fd->tf", x, up), down)

    mistakes = {
        "gate and up mixed up": lambda p, n, x, gate, up, down: p.define(n, x, up, gate, down),
        "sigmoid in place of silu": lambda p, n, x, gate, up, down: F.linear(F.sigmoid(F.linear(x, gate)) * F.linear(x, up), down),
        "last quarter of the hidden units left out": lambda p, n, x, gate, up, down: p.define(
            n, x, gate[: 3 * n.F // 4], up[: 3 * n.F // 4], down[:, : 3 * n.F // 4]
        ),
    }


class GeluMlp(FeedForward):
    title = "mlp-gelu"
    formula = "gelu(x W1^T + b1) W2^T + b2, gelu by tanh as GPT-2 has it"
    axes = ("T", "D", "F")
    inputs, outputs = {"x": "T D", "w1": "F D", "b1": "F", "w2": "D F", "b2": "D"}, {"y": "T D"}
    independent = {"T": 64}
    weights = ("w1", "w2")
    full = ((8192, 2048, 8192), (256, 8192, 32768))
    tiny = ((10, 16, 40), (1, 8, 8), (5, 24, 17))

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.T * n.D * n.F

    def define(self, n: Sizes, x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)

    def second(self, n: Sizes, x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray) -> np.ndarray:
        z = x @ w1.T + b1
        return z / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) @ w2.T + b2

    mistakes = {
        "first bias after the activation": lambda p, n, x, w1, b1, w2, b2: F.linear(
            F.gelu(F.linear(x, w1), approximate="tanh") + b1, w2, b2
        ),
        "relu": lambda p, n, x, w1, b1, w2, b2: F.linear(F.relu(F.linear(x, w1, b1)), w2, b2),
        "last quarter of the hidden units left out": lambda p, n, x, w1, b1, w2, b2: p.define(
            n, x, w1[: 3 * n.F // 4], b1[: 3 * n.F // 4], w2[:, : 3 * n.F // 4], b2
        ),
    }


class MoeRoute(Expert):
    title, kind, domain = "moe-route", "module", "feed-forward"
    formula = "the k most probable of E experts for each token, and their probabilities made to add up to one"
    axes = ("T", "E", "k")
    inputs, outputs = {"logits": "T E"}, {"weight": "T k", "index": "T k : int64"}
    dtypes, unit, exactly = ("fp32",), "vector", ("index",)
    independent = {"T": 1024}
    normals, adversarial = ("normal",), ("sorted",)
    full = ((65536, 64, 6), (16384, 256, 8))
    tiny = ((20, 16, 4), (1, 2, 1), (7, 60, 8), (0, 8, 2))
    coarse_shows = False  # few distinct logits stay distinct
    tolerance = "experts are chosen, not computed; probabilities: one rounding of each float32 step, exp off by a few units"

    def refuses(self, w: Workload) -> str | None:
        return None if 0 < w.axes["k"] <= w.axes["E"] else "needs a k of at least 1 and at most E"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = distinct(spec.shape, rng, device)
        x = x * (8 / max(1.0, float(x.abs().max()))) if x.numel() else x
        return x.sort(-1).values if case == "sorted" else x

    def terms(self, n: Sizes) -> int:
        return n.E

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.T * n.E

    def define(self, n: Sizes, logits: torch.Tensor) -> Any:
        top, index = logits.topk(n.k, -1)
        return torch.softmax(top, -1), index

    def second(self, n: Sizes, logits: np.ndarray) -> Any:
        index = np.argsort(-logits, axis=1)[:, : n.k]
        chosen = np.take_along_axis(softmax_rows(logits) if n.T else logits, index, 1)
        return chosen / chosen.sum(1, keepdims=True), index

    mistakes = {
        "probabilities not made to add up": lambda p, n, logits: (
            (torch.softmax(logits, -1).topk(n.k, -1).values, logits.topk(n.k, -1)[1])
            if n.k < n.E
            else (0 * logits[:, : n.k], logits.topk(n.k, -1)[1])
        ),
        "equal weights": lambda p, n, logits: (torch.full_like(logits[:, : n.k], 1 / n.k) + (n.k == 1), logits.topk(n.k, -1)[1]),
        "experts counted from one": lambda p, n, logits: (p.define(n, logits)[0], logits.topk(n.k, -1)[1] + 1),
    }


class Moe(FeedForward):
    title = "moe"
    formula = "sum over a token's k experts e of weight * (silu(x Wg[e]^T) * (x Wu[e]^T)) Wd[e]^T"
    axes = ("T", "D", "F", "E", "k")
    inputs = {"x": "T D", "weight": "T k", "index": "T k : int64", "gate": "E F D", "up": "E F D", "down": "E D F"}
    outputs = {"y": "T D"}
    independent = {"T": 64}
    weights = ("gate", "up", "down")
    drawn_anew = ("index",)
    dtypes, normals = ("bf16",), ("normal",)
    full = ((8192, 2048, 1024, 64, 6), (4096, 4096, 14336, 8, 2))
    tiny = ((20, 16, 24, 4, 2), (1, 8, 8, 1, 1), (9, 24, 16, 6, 3))

    def refuses(self, w: Workload) -> str | None:
        return super().refuses(w) or (None if w.axes["k"] <= w.axes["E"] else "needs a k of at most E")

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "index":
            return torch.rand(n.T, n.E, generator=rng, device=device).topk(n.k, -1).indices
        x = super().draw(n, case, spec, rng, device)
        return x.softmax(-1) if spec.name == "weight" and n.k > 1 else x

    def traffic(self, w: Workload) -> float:
        """Few tokens may not meet every expert."""
        n = self.sizes(w)
        return 2.0 * (2 * n.T * n.D + n.T * n.k + 3 * n.D * n.F * min(n.E, n.k)) + 8 * n.T * n.k

    def flops(self, n: Sizes) -> float:
        return 6.0 * n.T * n.k * n.D * n.F

    def define(self, n: Sizes, x: Any, weight: Any, index: Any, gate: Any, up: Any, down: Any) -> torch.Tensor:
        y = torch.zeros_like(x)
        for e in range(n.E):
            token, slot = (index == e).nonzero(as_tuple=True)
            h = F.linear(F.silu(F.linear(x[token], gate[e])) * F.linear(x[token], up[e]), down[e])
            y = y.index_add(0, token, h * weight[token, slot, None])
        return y

    def second(self, n: Sizes, x: Any, weight: Any, index: Any, gate: Any, up: Any, down: Any) -> np.ndarray:
        y = np.zeros_like(x)
        for t, j in np.ndindex(n.T, n.k):
            e = index[t, j]
            y[t] += weight[t, j] * (down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])))
        return y

    mistakes = {
        "first expert alone": lambda p, n, x, weight, index, gate, up, down: p.define(
            n, x, weight * (torch.arange(n.k, device=x.device) < max(1, n.k - 1)), index, gate, up, down.roll(int(n.k == 1), -1)
        ),
        "weights of the token before": lambda p, n, x, weight, index, gate, up, down: p.define(
            n, x, weight.roll(1, 0) * (2 if n.T == 1 else 1), index, gate, up, down
        ),
        "expert of the next number": lambda p, n, x, weight, index, gate, up, down: p.define(
            n, x, weight, (index + 1) % n.E, gate, up, down if n.E > 1 else 0 * down
        ),
    }


class DecoderLayer(Expert):
    title, kind, domain, steps = "decoder-layer", "module", "feed-forward", "output"
    formula = "x + attention(rmsnorm(x)) and then x + swiglu(rmsnorm(x)), causal, rotary, H heads of 2 E"
    axes = ("B", "S", "H", "E", "F")
    inputs = {
        "x": "B S H*2*E",
        "norm1": "H*2*E",
        "norm2": "H*2*E",
        "cos": "S E",
        "sin": "S E",
        "qkv": "3*H*2*E H*2*E",
        "out": "H*2*E H*2*E",
        "gate": "F H*2*E",
        "up": "F H*2*E",
        "down": "H*2*E F",
    }
    outputs = {"y": "B S H*2*E"}
    independent = {"B": 1}
    weights = ("qkv", "out", "gate", "up", "down")
    # a NaN reaches the tokens before it or not, depending on how a kernel leaves out what is masked
    dtypes, normals, adversarial = ("bf16",), ("normal",), ("small",)
    full = ((2, 2048, 32, 64, 14336), (1, 4096, 16, 64, 5632))
    tiny = ((2, 9, 2, 4, 24), (1, 1, 1, 4, 8), (1, 17, 3, 4, 16))
    tolerance = TOLERANCE

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x.mul_(9).cos_() if spec.name in ("cos", "sin") else x

    def largest_step(self, n: Sizes) -> int:
        return max(n.B * n.H * n.S * n.S, n.B * n.S * n.F)

    def terms(self, n: Sizes) -> int:
        return max(2 * n.H * n.E, n.F, n.S)

    def flops(self, n: Sizes) -> float:
        d = 2 * n.H * n.E
        return n.B * n.S * (8.0 * d * d + 6.0 * d * n.F + 2.0 * n.S * d)

    def define(
        self, n: Sizes, x: Any, norm1: Any, norm2: Any, cos: Any, sin: Any, qkv: Any, out: Any, gate: Any, up: Any, down: Any
    ) -> torch.Tensor:
        d = (2 * n.H * n.E,)
        q, k, v = F.linear(F.rms_norm(x, d, norm1, EPS), qkv).view(n.B, n.S, 3, n.H, 2 * n.E).permute(2, 0, 3, 1, 4)
        q, k = (torch.cat((t[..., : n.E] * cos - t[..., n.E :] * sin, t[..., n.E :] * cos + t[..., : n.E] * sin), -1) for t in (q, k))
        o = self.attend(n, q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + F.linear(o, out)
        z = F.rms_norm(x, d, norm2, EPS)
        return x + F.linear(F.silu(F.linear(z, gate)) * F.linear(z, up), down)

    def attend(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.dtype == torch.float64:  # step by step
            scores = (q @ k.mT / math.sqrt(2 * n.E)).masked_fill(~visible(n.S, n.S, q.device), -math.inf)
            return torch.softmax(scores, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def second(
        self, n: Sizes, x: Any, norm1: Any, norm2: Any, cos: Any, sin: Any, qkv: Any, out: Any, gate: Any, up: Any, down: Any
    ) -> np.ndarray:
        def norm(z: np.ndarray, w: np.ndarray) -> np.ndarray:
            return z / np.sqrt(np.mean(z * z, -1, keepdims=True) + EPS) * w

        y = np.zeros_like(x)
        turn = cos + 1j * sin
        for b in range(n.B):
            parts = (norm(x[b], norm1) @ qkv.T).reshape(n.S, 3, n.H, 2 * n.E)
            q, k = ((parts[:, i, :, : n.E] + 1j * parts[:, i, :, n.E :]) * turn[:, None] for i in range(2))
            o = np.zeros((n.S, n.H, 2 * n.E))
            for i in range(n.S):
                for h in range(n.H):
                    scores = (k[: i + 1, h].conj() @ q[i, h]).real / np.sqrt(2 * n.E)
                    o[i, h] = softmax_rows(scores) @ parts[: i + 1, 2, h]
            mid = x[b] + o.reshape(n.S, -1) @ out.T
            z = norm(mid, norm2)
            y[b] = mid + (silu(z @ gate.T) * (z @ up.T)) @ down.T
        return y

    mistakes = {
        "no residual around attention": lambda p, n, x, out, **others: p.define(n, x=x, out=0 * out, **others),
        "not turned by position": lambda p, n, cos, sin, **others: (
            p.define(n, cos=0 * cos + 1, sin=0 * sin, **others) + (0 if n.S > 1 else 1)
        ),
        "norms mixed up": lambda p, n, norm1, norm2, **others: p.define(n, norm1=norm2, norm2=norm1, **others),
    }


PROBLEMS = (SwiGlu, GeluMlp, MoeRoute, Moe, DecoderLayer)
