"""What training adds: losses and their gradients, optimiser steps, clipping, batch normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.experts.convolution import first, last, padded
from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.experts.normalisation import EPS, STEPS
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload


class Training(Expert):
    kind, domain = "module", "training"
    unit = "vector"
    tolerance = STEPS

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "target":
            return torch.randint(n.V, spec.shape, generator=rng, device=device)
        return super().draw(n, case, spec, rng, device)


class CrossEntropy(Training):
    title = "cross-entropy"
    formula = "log(sum(exp(x))) - x[target], one loss a token, from logits"
    axes = ("T", "V")
    inputs, outputs = {"x": "T V", "target": "T : int64"}, {"loss": "T : fp32"}
    independent = {"T": 64}
    adversarial = ("large", "nan")
    full = ((8192, 32000), (4096, 131072))
    tiny = ((9, 70), (1, 2), (3, 257))

    def terms(self, n: Sizes) -> int:
        return n.V

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.T * n.V

    def define(self, n: Sizes, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1) - x.gather(1, target[:, None])[:, 0]

    def eager_form(self, n: Sizes, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x.float(), target, reduction="none")

    def second(self, n: Sizes, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.array([-np.log(np.exp(row - row[t]).sum() ** -1) if row.max() - row[t] < 600 else
                         np.logaddexp.reduce(row) - row[t] for row, t in zip(x, target, strict=True)])  # fmt: skip

    mistakes = {
        "no maximum subtracted": lambda p, n, x, target: x.float().exp().sum(-1).log() - x.float().gather(1, target[:, None])[:, 0],
        "target of the next token": lambda p, n, x, target: p.eager_form(n, x=x, target=target.roll(1) if n.T > 1 else 1 - target),
        "last class left out": lambda p, n, x, target: torch.logsumexp(x.float()[:, :-1], -1) - x.float().gather(1, target[:, None])[:, 0],
    }


class CrossEntropyBackward(Training):
    title = "cross-entropy-backward"
    formula = "dx = (softmax(x) - onehot(target)) g, g the losses' gradient"
    axes = ("T", "V")
    inputs, outputs = {"x": "T V", "target": "T : int64", "g": "T : fp32"}, {"dx": "T V"}
    independent = {"T": 64}
    adversarial = ("large", "nan")
    full = ((8192, 32000), (2048, 131072))
    tiny = ((9, 70), (1, 2), (3, 257))

    def terms(self, n: Sizes) -> int:
        return n.V

    def flops(self, n: Sizes) -> float:
        return 3.0 * n.T * n.V

    def define(self, n: Sizes, x: torch.Tensor, target: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros_like(x).scatter_(1, target[:, None], 1)
        return (torch.softmax(x, -1) - chosen) * g[:, None]

    def cancelling(self, n: Sizes, x: torch.Tensor, target: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros_like(x).scatter_(1, target[:, None], 1)
        return (torch.softmax(x, -1) + chosen) * g.abs()[:, None]

    def eager_form(self, n: Sizes, x: torch.Tensor, target: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return self.define(n, x.float(), target, g)

    def second(self, n: Sizes, x: np.ndarray, target: np.ndarray, g: np.ndarray) -> np.ndarray:
        y = np.exp(x - np.logaddexp.reduce(x, axis=1, keepdims=True))
        for t in range(n.T):
            y[t, target[t]] -= 1
        return y * g[:, None]

    mistakes = {
        "one not subtracted at the target": lambda p, n, x, target, g: torch.softmax(x.float(), -1) * g[:, None],
        "mean over the tokens": lambda p, n, x, target, g: p.eager_form(n, x=x, target=target, g=g) / (n.T + 1),
        "target of the next token": lambda p, n, x, target, g: p.eager_form(n, x=x, target=target.roll(1) if n.T > 1 else 1 - target, g=g),
    }


class LinearCrossEntropy(Training):
    title = "linear-cross-entropy"
    formula = "log(sum(exp(h W^T))) - (h W^T)[target], one loss a token, from hidden states"
    axes = ("T", "D", "V")
    inputs, outputs = {"h": "T D", "w": "V D", "target": "T : int64"}, {"loss": "T : fp32"}
    independent = {"T": 64}
    weights = ("w",)
    dtypes, steps, spread, unit = ("bf16", "fp16"), "output", 2.0, ""
    full = ((4096, 4096, 32000), (2048, 2048, 131072))
    tiny = ((9, 16, 70), (1, 8, 2), (3, 24, 257))
    tolerance = "logits may be rounded to the inputs' type, as a separate product would; the losses are float32"

    def largest_step(self, n: Sizes) -> int:
        return n.T * n.V

    def terms(self, n: Sizes) -> int:
        return max(n.V, n.D)

    def error_floor(self, w: Workload) -> float:
        return 2.0**-8  # logits in bf16

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.T * n.V * n.D

    def define(self, n: Sizes, h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = F.linear(h, w)
        return torch.logsumexp(x, -1) - x.gather(1, target[:, None])[:, 0]

    def eager_form(self, n: Sizes, h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(h, w).float(), target, reduction="none")

    def second(self, n: Sizes, h: np.ndarray, w: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.array([np.logaddexp.reduce(w @ h[t] - w[target[t]] @ h[t]) for t in range(n.T)])

    mistakes = {
        "last quarter of the vocabulary left out": lambda p, n, h, w, target: p.eager_form(n, h=h, w=w, target=target)
        + torch.logsumexp(F.linear(h, w[: max(1, 3 * n.V // 4)]).float(), -1) - torch.logsumexp(F.linear(h, w).float(), -1),
        "the chosen logit not subtracted": lambda p, n, h, w, target: torch.logsumexp(F.linear(h, w).float(), -1),
        "target of the next token": lambda p, n, h, w, target: p.eager_form(
            n, h=h, w=w, target=target.roll(1) if n.T > 1 else 1 - target
        ),
    }  # fmt: skip


RATE, DECAY, BETA1, BETA2, STEP, ADAM_EPS = 0.05, 0.1, 0.9, 0.95, 10, 1e-8


class AdamW(Training):
    title = "adamw"
    formula = f"the {STEP}th step of AdamW: rate {RATE}, decay {DECAY}, betas {BETA1} and {BETA2}; parameters and both moments"
    axes = ("n",)
    inputs, outputs = {"p": "n", "g": "n", "m": "n", "v": "n"}, {"p_new": "n", "m_new": "n", "v_new": "n"}
    dtypes, adversarial = ("fp32",), ("nan",)
    full = ((2**27,), (2**22,))
    tiny = ((777,), (1,), (4099,))
    tolerance = "one rounding of the output and of each float32 step"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x.square() if spec.name == "v" else x * 0.3 if spec.name == "m" else x

    def flops(self, n: Sizes) -> float:
        return 12.0 * n.n

    def define(self, n: Sizes, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        step = (m / (1 - BETA1**STEP)) / (torch.sqrt(v / (1 - BETA2**STEP)) + ADAM_EPS)
        return p * (1 - RATE * DECAY) - RATE * step, m, v

    def second(self, n: Sizes, p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray) -> Any:
        found = np.zeros((3, n.n))
        for i, (p1, g1, m1, v1) in enumerate(zip(p.tolist(), g.tolist(), m.tolist(), v.tolist(), strict=True)):
            m1 += (g1 - m1) * (1 - BETA1)
            v1 += (g1 * g1 - v1) * (1 - BETA2)
            unbiased = math.sqrt(1 - BETA2**STEP) / (1 - BETA1**STEP)
            p1 -= RATE * DECAY * p1 + RATE * unbiased * m1 / (math.sqrt(v1) + ADAM_EPS * math.sqrt(1 - BETA2**STEP))
            found[:, i] = p1, m1, v1
        return tuple(found)

    mistakes = {
        "biases not corrected": lambda q, n, p, g, m, v: (
            p * (1 - RATE * DECAY) - RATE * q.define(n, p, g, m, v)[1] / (torch.sqrt(q.define(n, p, g, m, v)[2]) + ADAM_EPS),
            *q.define(n, p, g, m, v)[1:],
        ),
        "decay through the gradient": lambda q, n, p, g, m, v: q.define(n, p, g + DECAY * p, m, v),
        "no decay": lambda q, n, p, g, m, v: (q.define(n, p, g, m, v)[0] + RATE * DECAY * p, *q.define(n, p, g, m, v)[1:]),
    }


CLIP = 1.0


class ClipByNorm(Training):
    title = "gradient-clip"
    formula = f"g min(1, {CLIP} / (norm(g) + 1e-6)), the norm of all of g"
    axes = ("n",)
    inputs, outputs = {"g": "n"}, {"clipped": "n"}
    dtypes, adversarial = ("fp32", "bf16"), ("below", "nan")
    full = ((2**27,),)
    tiny = ((777,), (2,), (4099,))
    tolerance = "one rounding of the output, and the random walk of n float32 additions in the norm"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x * (0.3 * CLIP / math.sqrt(n.n)) if case == "below" else x + x.sign()

    def terms(self, n: Sizes) -> int:
        return n.n

    def flops(self, n: Sizes) -> float:
        return 3.0 * n.n

    def define(self, n: Sizes, g: torch.Tensor) -> torch.Tensor:
        return g * (CLIP / (g.square().sum().sqrt() + 1e-6)).clamp(max=1.0)

    def eager_form(self, n: Sizes, g: torch.Tensor) -> torch.Tensor:
        return g * (CLIP / (torch.linalg.vector_norm(g, dtype=torch.float32) + 1e-6)).clamp(max=1.0)

    def second(self, n: Sizes, g: np.ndarray) -> np.ndarray:
        return g * min(1.0, CLIP / (math.sqrt(math.fsum((g * g).tolist())) + 1e-6))

    mistakes = {
        "small gradients made larger": lambda p, n, g: g.float() * (CLIP / torch.linalg.vector_norm(g.float())),
        "norm of the first half": lambda p, n, g: g.float() * (CLIP / torch.linalg.vector_norm(g.float()[: n.n // 2])).clamp(max=1.0),
        "each element by itself": lambda p, n, g: g.clamp(-CLIP, CLIP),
    }


class NewtonSchulz(Training):
    title = "newton-schulz"
    formula = "five steps X <- 3.4445 X - 4.775 (X X^T) X + 2.0315 (X X^T)^2 X from g / norm(g), Muon's orthogonalisation"
    axes = ("M", "N")
    inputs, outputs = {"g": "M N"}, {"x": "M N"}
    dtypes, steps, unit, adversarial, normals = ("bf16",), "output", "", ("small",), ("normal",)
    full = ((2048, 4096), (4096, 4096))
    tiny = ((12, 20), (8, 8), (5, 33))
    tolerance = "one rounding of each of fifteen products in the output's type, and what the steps make of it"
    coarse_shows = False  # the steps bring singular values near one wherever they start

    def terms(self, n: Sizes) -> int:
        return n.N

    def flops(self, n: Sizes) -> float:
        return 5 * 2.0 * (n.M * n.M * n.N * 1.5 + n.M**3 * 0.5)  # symmetric products by halves

    def define(self, n: Sizes, g: torch.Tensor) -> torch.Tensor:
        x = g / (torch.sqrt((g.to(torch.promote_types(g.dtype, torch.float32)) ** 2).sum()) + 1e-7).to(g.dtype)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
        return x

    def second(self, n: Sizes, g: np.ndarray) -> np.ndarray:
        # the singular values go through the polynomial, the singular vectors stay
        u, s, v = np.linalg.svd(g, full_matrices=False)
        s = s / (np.sqrt((s * s).sum()) + 1e-7)
        for _ in range(5):
            s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        return (u * s) @ v

    mistakes = {
        "four steps": lambda p, n, g: _newton_schulz(g, 4),
        "six steps": lambda p, n, g: _newton_schulz(g, 6),
        "g itself": lambda p, n, g: g / torch.linalg.vector_norm(g.float()),
    }


def _newton_schulz(g: torch.Tensor, steps: int) -> torch.Tensor:
    x = g.float() / (torch.linalg.vector_norm(g.float()) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return x


class BatchNorm(Training):
    title = "batchnorm-training"
    formula = "(x - mean) / sqrt(variance + 1e-5) * w + b, statistics of a channel over the batch, and the statistics"
    axes = ("B", "H", "W", "C")
    inputs = {"x": "B H W C", "w": "C", "b": "C"}
    outputs = {"y": "B H W C", "mean": "C", "variance": "C"}
    independent = {"C": 16}
    dtypes = ("fp32",)
    full = ((32, 56, 56, 256), (256, 14, 14, 1024))
    tiny = ((2, 3, 4, 6), (2, 1, 1, 3), (3, 5, 7, 8))

    def refuses(self, w: Workload) -> str | None:
        a = w.axes
        return super().refuses(w) or (None if a["B"] * a["H"] * a["W"] > 1 else "needs more than one value a channel")

    def terms(self, n: Sizes) -> int:
        return n.B * n.H * n.W

    def flops(self, n: Sizes) -> float:
        return 6.0 * n.B * n.H * n.W * n.C

    def define(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        mean = x.mean((0, 1, 2))
        centred = x - mean
        variance = (centred * centred).mean((0, 1, 2))
        return centred * torch.rsqrt(variance + EPS) * w + b, mean, variance

    def eager_form(self, n: Sizes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        mean, variance, count = torch.zeros_like(w), torch.zeros_like(w), n.B * n.H * n.W
        y = F.batch_norm(first(x), mean, variance, w, b, training=True, momentum=1.0, eps=EPS)
        return last(y), mean, variance.mul_((count - 1) / count)  # it keeps the unbiased one

    def second(self, n: Sizes, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> Any:
        flat = x.reshape(-1, n.C)
        mean, variance = np.mean(flat, 0), np.var(flat, 0)
        return ((flat - mean) / np.sqrt(variance + EPS) * w + b).reshape(x.shape), mean, variance

    mistakes = {
        "unbiased variance": lambda p, n, x, w, b: (p.define(n, x, w, b)[0], x.mean((0, 1, 2)), x.var((0, 1, 2))),
        "statistics of each image": lambda p, n, x, w, b: (
            last(F.instance_norm(first(x), weight=w, bias=b, eps=EPS)) if n.H * n.W > 1 else 0 * x, *p.define(n, x, w, b)[1:]
        ),
        "mean not subtracted": lambda p, n, x, w, b: (p.define(n, x, w, b)[0] + x.mean((0, 1, 2)), *p.define(n, x, w, b)[1:]),
    }  # fmt: skip


class Bottleneck(Expert):
    title, kind, domain, steps = "residual-bottleneck", "module", "convolution", "output"
    formula = "relu(x + conv1x1(relu(conv3x3(relu(conv1x1(x) + b1)) + b2)) + b3), a block of a residual network, norms folded in"
    axes = ("B", "H", "W", "C", "K")
    inputs = {"x": "B H W C", "w1": "K C", "b1": "K", "w2": "K 3 3 K", "b2": "K", "w3": "C K", "b3": "C"}
    outputs = {"y": "B H W C"}
    independent = {"B": 2}
    dtypes, normals, adversarial = ("bf16", "fp16"), ("normal",), ("small",)
    full = ((32, 28, 28, 512, 128), (64, 14, 14, 1024, 256))
    tiny = ((2, 4, 5, 8, 4), (1, 1, 1, 2, 1), (1, 6, 3, 16, 8))
    tolerance = "one rounding of each convolution in the output's type, as separate operations round, and the walk of each sum"

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        return x / math.sqrt({"w1": n.C, "w2": 9 * n.K, "w3": n.K}.get(spec.name, 1))

    def terms(self, n: Sizes) -> int:
        return max(n.C, 9 * n.K)

    def flops(self, n: Sizes) -> float:
        return 2.0 * n.B * n.H * n.W * (2 * n.C * n.K + n.K * n.K * 9 * (1 - 1 / n.H) * (1 - 1 / n.W))

    def define(self, n: Sizes, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> torch.Tensor:
        h = F.relu(F.conv2d(first(x), w1[..., None, None], b1))
        h = F.relu(F.conv2d(h, first(w2), b2, padding=1))
        return last(F.relu(first(x) + F.conv2d(h, w3[..., None, None], b3)))

    def second(self, n: Sizes, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> np.ndarray:
        h = padded(np.maximum(x @ w1.T + b1, 0), 1)
        taps = ((r, s) for r in range(3) for s in range(3))
        h = np.maximum(sum(h[:, r : r + n.H, s : s + n.W] @ w2[:, r, s].T for r, s in taps) + b2, 0)
        return np.maximum(x + h @ w3.T + b3, 0)

    mistakes = {
        "no residual": lambda p, n, x, **others: p.define(n, x=x, **others) - F.relu(x),
        "padding with the first bias": lambda p, n, b1, **others: p.define(n, b1=b1 + 1, **others),
        "filter turned over": lambda p, n, w2, **others: p.define(n, w2=w2.flip(1, 2), **others) + (0 if n.H * n.W > 1 else 1),
    }


PROBLEMS = (CrossEntropy, CrossEntropyBackward, LinearCrossEntropy, AdamW, ClipByNorm, NewtonSchulz, BatchNorm, Bottleneck)
