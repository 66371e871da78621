"""Recurrences over time: linear attention, state-space models, gated recurrence, LSTM, long convolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.problems.draws import uniform
from kernelwright.problems.experts.expert import Expert, Sizes
from kernelwright.problems.problem import TensorSpec
from kernelwright.records import Workload


class Sequence(Expert):
    kind, domain = "module", "sequence models"
    spread, adversarial = 2.0, ("small",)  # zero times NaN: sums over all pairs of tokens spread it where a recurrence does not

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "has no empty axes"


def decays(tokens: int, log_decay: torch.Tensor) -> torch.Tensor:
    """(..., T, T): exp of the sum of log decays of the steps j + 1 to i, 0 for j after i."""
    total = log_decay.cumsum(-1)
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=log_decay.device).tril()
    return (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -math.inf).exp()


class LinearAttention(Sequence):
    title = "linear-attention"
    formula = "o_t = q_t S_t, S_t = g_h S_(t-1) + k_t^T v_t, one decay g a head"
    axes = ("B", "H", "T", "D")
    inputs, outputs = {"q": "B H T D", "k": "B H T D", "v": "B H T D", "g": "H : fp32"}, {"o": "B H T D"}
    independent = {"B": 1, "H": 2}
    dtypes, steps = ("bf16", "fp16"), "output"
    full = ((4, 32, 2048, 128), (1, 16, 8192, 64))
    tiny = ((2, 2, 20, 8), (1, 1, 1, 8), (1, 3, 37, 16))
    tolerance = "one rounding of the output, and of scores or of the state in the output's type, as chunks are multiplied on tensor cores"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "g":
            return 1 - uniform(spec.shape, rng, device).mul(4).sub(7).exp2()  # 1/128 to 1/8 lost a step
        x = super().draw(n, case, spec, rng, device)
        return x / math.sqrt(n.D) if spec.name == "q" else x

    def largest_step(self, n: Sizes) -> int:
        return n.B * n.H * n.T * n.T

    def terms(self, n: Sizes) -> int:
        return max(n.T, n.D)

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.B * n.H * n.T * n.D * n.D

    def define(self, n: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        weights = decays(n.T, g.log()[:, None].expand(n.H, n.T))
        return ((q @ k.mT) * weights.to(q.dtype)) @ v

    def second(self, n: Sizes, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> np.ndarray:
        o, state = np.zeros_like(q), np.zeros((n.B, n.H, n.D, n.D))
        for t in range(n.T):
            state = g[:, None, None] * state + np.einsum("bhd,bhe->bhde", k[:, :, t], v[:, :, t])
            o[:, :, t] = np.einsum("bhd,bhde->bhe", q[:, :, t], state)
        return o

    mistakes = {
        "no decay": lambda p, n, q, k, v, g: p.define(n, q, k, v, torch.ones_like(g)),
        "the token itself not seen": lambda p, n, q, k, v, g: p.define(n, q, k, v, g) - (q * k).sum(-1, keepdim=True) * v,
        "the state lost after 16 steps": lambda p, n, q, k, v, g: torch.cat(
            [((a @ b.mT) * decays(a.shape[2], g.log()[:, None].expand(n.H, a.shape[2])).to(q.dtype)) @ c
             for a, b, c in zip(q.split(16, 2), k.split(16, 2), v.split(16, 2), strict=True)], 2
        ),
    }  # fmt: skip


class StateSpaceDual(Sequence):
    title = "state-space-dual"
    formula = "y_t = C_t S_t, S_t = a_t S_(t-1) + B_t^T x_t, one decay a head and token, B and C shared by the heads"
    axes = ("N", "H", "T", "P", "S")
    inputs = {"x": "N H T P", "a": "N H T : fp32", "b": "N T S", "c": "N T S"}
    outputs = {"y": "N H T P"}
    independent = {"N": 1, "H": 2}
    dtypes, steps = ("bf16", "fp16"), "output"
    full = ((2, 64, 2048, 64, 128), (1, 32, 4096, 64, 128))
    tiny = ((2, 2, 20, 8, 4), (1, 1, 1, 8, 8), (1, 3, 37, 4, 16))
    tolerance = LinearAttention.tolerance

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "a":
            return 1 - uniform(spec.shape, rng, device).mul(5).sub(7).exp2()
        x = super().draw(n, case, spec, rng, device)
        return x / math.sqrt(n.S) if spec.name == "c" else x

    def largest_step(self, n: Sizes) -> int:
        return n.N * n.H * n.T * n.T

    def terms(self, n: Sizes) -> int:
        return max(n.T, n.S)

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.N * n.H * n.T * n.P * n.S

    def define(self, n: Sizes, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return ((c @ b.mT)[:, None] * decays(n.T, a.log()).to(x.dtype)) @ x

    def second(self, n: Sizes, x: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        y, state = np.zeros_like(x), np.zeros((n.N, n.H, n.S, n.P))
        for t in range(n.T):
            state = a[:, :, t, None, None] * state + np.einsum("ns,nhp->nhsp", b[:, t], x[:, :, t])
            y[:, :, t] = np.einsum("ns,nhsp->nhp", c[:, t], state)
        return y

    mistakes = {
        "decay of the step before": lambda p, n, x, a, b, c: p.define(n, x, a.roll(1, -1), b, c) + (0 if n.T > 1 else 1),
        "b and c mixed up": lambda p, n, x, a, b, c: p.define(n, x, a, c, b),
        "the token itself not seen": lambda p, n, x, a, b, c: p.define(n, x, a, b, c) - (b * c).sum(-1)[:, None, :, None] * x,
    }


class SelectiveScan(Sequence):
    title = "state-space-scan"
    formula = "h_t = exp(dt_t A) h_(t-1) + dt_t B_t x_t, y_t = C_t h_t + D x_t for each channel, states of S"
    axes = ("N", "C", "T", "S")
    inputs = {"x": "N C T", "dt": "N C T", "a": "C S : fp32", "b": "N S T", "c": "N S T", "d": "C : fp32"}
    outputs = {"y": "N C T"}
    independent = {"N": 1, "C": 16}
    dtypes, unit = ("fp32", "bf16"), "vector"
    full = ((4, 2048, 1024, 16), (1, 4096, 2048, 16))
    tiny = ((2, 3, 18, 4), (1, 1, 1, 2), (1, 5, 7, 3))
    tolerance = "one rounding of the output, and of each float32 step of the recurrence"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "dt":
            return uniform(spec.shape, rng, device).mul(6).sub(7).exp2()
        if spec.name == "a":
            return -uniform(spec.shape, rng, device).mul(4).sub(1).exp2()
        return super().draw(n, case, spec, rng, device)

    def terms(self, n: Sizes) -> int:
        return n.T + n.S

    def flops(self, n: Sizes) -> float:
        return 5.0 * n.N * n.C * n.T * n.S

    def define(self, n: Sizes, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        h, y = x.new_zeros(n.N, n.C, n.S, dtype=wide), []
        for t in range(n.T):
            step = dt[:, :, t, None].to(wide)
            h = torch.exp(step * a) * h + step * b[:, None, :, t] * x[:, :, t, None]
            y.append((h * c[:, None, :, t]).sum(-1))
        return torch.stack(y, -1) + d[:, None] * x

    def second(self, n: Sizes, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> np.ndarray:
        # the sum written out: y_i = sum over j of c_i exp(A (s_i - s_j)) b_j dt_j x_j
        total, y = np.cumsum(dt, -1), d[:, None] * x
        for i in range(n.T):
            kept = np.exp(a[None, :, :, None] * (total[:, :, None, i, None] - total[:, :, None, : i + 1]))
            y[:, :, i] += np.einsum("ns,ncsj,nsj,ncj->nc", c[:, :, i], kept, b[:, :, : i + 1], (dt * x)[:, :, : i + 1])
        return y

    mistakes = {
        "no skip": lambda p, n, x, dt, a, b, c, d: p.define(n, x, dt, a, b, c, 0 * d),
        "the state lost after 16 steps": lambda p, n, x, dt, a, b, c, d: torch.cat(
            [p.define(type(n)(**{**vars(n), "T": s[0].shape[-1]}), s[0], s[1], a, s[2], s[3], d)
             for s in zip(*(t.split(16, -1) for t in (x, dt, b, c)), strict=True)], -1
        ),
        "input not multiplied by dt": lambda p, n, x, dt, a, b, c, d: p.define(n, x / dt, dt, a, b, c, 0 * d) + d[:, None] * x,
    }  # fmt: skip


class GatedRecurrence(Sequence):
    title = "gated-recurrence"
    formula = "h_t = a_t h_(t-1) + sqrt(1 - a_t^2) x_t, element by element"
    axes = ("B", "T", "D")
    inputs, outputs = {"a": "B T D : fp32", "x": "B T D"}, {"h": "B T D"}
    drawn_anew = ("a", "x")
    independent = {"B": 1, "D": 64}
    dtypes, unit = ("fp32", "bf16"), "vector"
    full = ((8, 2048, 4096), (1, 4096, 8192))
    tiny = ((2, 18, 6), (1, 1, 1), (1, 7, 9))
    tolerance = "one rounding of the output, and of each float32 step of the recurrence"

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        if spec.name == "a":
            return 1 - uniform(spec.shape, rng, device).mul(8).sub(8.5).exp2()
        return super().draw(n, case, spec, rng, device)

    def terms(self, n: Sizes) -> int:
        return n.T

    def flops(self, n: Sizes) -> float:
        return 4.0 * n.B * n.T * n.D

    def define(self, n: Sizes, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h, found = torch.zeros_like(a[:, 0]), []
        for t in range(n.T):
            h = a[:, t] * h + torch.sqrt(1 - a[:, t].square()) * x[:, t]
            found.append(h)
        return torch.stack(found, 1)

    def second(self, n: Sizes, a: np.ndarray, x: np.ndarray) -> np.ndarray:
        logs = np.cumsum(np.log(a), 1)
        kept = np.exp(np.minimum(logs[:, :, None] - logs[:, None], 0)) * np.tril(np.ones((n.T, n.T)))[None, :, :, None]
        return np.einsum("bijd,bjd->bid", kept, np.sqrt(1 - a * a) * x)

    mistakes = {
        "input weighed by 1 - a": lambda p, n, a, x: p.define(n, a, x * (1 - a) / torch.sqrt(1 - a * a)),
        "decay of the step after": lambda p, n, a, x: p.define(n, a.roll(-1, 1), x) + (0 if n.T > 1 else 1),
        "the state lost after 16 steps": lambda p, n, a, x: torch.cat(
            [p.define(type(n)(**{**vars(n), "T": s[0].shape[1]}), *s) for s in zip(a.split(16, 1), x.split(16, 1), strict=True)], 1
        ),
    }


class Lstm(Sequence):
    title = "lstm"
    formula = "the hidden states of one LSTM layer over T steps, gates in PyTorch's order: input, forget, cell, output"
    axes = ("T", "B", "D", "H")
    inputs = {"x": "T B D", "wx": "4*H D", "wh": "4*H H", "bx": "4*H", "bh": "4*H"}
    outputs = {"h": "T B H"}
    independent = {"B": 4}
    weights = ("wx", "wh")
    dtypes, steps, spread = ("fp16", "fp32"), "output", 1.0
    full = ((512, 64, 1024, 1024), (128, 256, 2048, 2048))
    tiny = ((6, 2, 6, 8), (1, 1, 1, 1), (3, 3, 7, 5))
    tolerance = "one rounding of the output and of each gate in the output's type, carried on through the recurrence"

    def terms(self, n: Sizes) -> int:
        return n.D + n.H + n.T

    def flops(self, n: Sizes) -> float:
        return 8.0 * n.T * n.B * n.H * (n.D + n.H)

    def define(self, n: Sizes, x: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> torch.Tensor:
        h = c = x.new_zeros(n.B, n.H)
        found = []
        for t in range(n.T):
            i, f, g, o = (F.linear(x[t], wx, bx) + F.linear(h, wh, bh)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found)

    def second(self, n: Sizes, x: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> np.ndarray:
        h, c, found = np.zeros((n.B, n.H)), np.zeros((n.B, n.H)), np.zeros((n.T, n.B, n.H))
        for t in range(n.T):
            z = np.concatenate([x[t], h], 1) @ np.concatenate([wx, wh], 1).T + bx + bh
            i, f, o = (1 / (1 + np.exp(-z[:, s * n.H : (s + 1) * n.H])) for s in (0, 1, 3))
            c = f * c + i * np.tanh(z[:, 2 * n.H : 3 * n.H])
            h = found[t] = o * np.tanh(c)
        return found

    mistakes = {
        "gates in another order": lambda p, n, x, wx, wh, bx, bh: p.define(n, x, *(w.roll(n.H, 0) for w in (wx, wh, bx, bh))),
        "the state not carried on": lambda p, n, x, wx, wh, bx, bh: p.define(n, x, wx, 0 * wh, bx, bh) + (0 if n.T > 1 else 1),
        "one bias left out": lambda p, n, x, wx, wh, bx, bh: p.define(n, x, wx, wh, bx, 0 * bh),
    }


class LongConvolution(Sequence):
    title = "long-convolution"
    formula = "y[b, c, t] = sum over s up to t of f[c, s] x[b, c, t - s], filters as long as the sequence"
    axes = ("B", "C", "T")
    inputs, outputs = {"x": "B C T", "f": "C T"}, {"y": "B C T"}
    independent = {"B": 1, "C": 8}
    dtypes, unit, normals, adversarial = ("fp32",), "vector", ("normal",), ("small",)
    full = ((8, 1024, 8192), (2, 256, 65536))
    tiny = ((2, 3, 20), (1, 1, 1), (1, 2, 37))
    tolerance = "float32 transforms: their roundings are of the size of a row's root mean square, not of its elements'"

    def largest_step(self, n: Sizes) -> int:
        return 4 * n.B * n.C * n.T

    def terms(self, n: Sizes) -> int:
        return math.ceil(math.log2(2 * n.T)) ** 2

    def flops(self, n: Sizes) -> float:
        return n.B * n.C * n.T * math.log2(max(2, n.T))

    def define(self, n: Sizes, x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, 2 * n.T) * torch.fft.rfft(f, 2 * n.T)
        return torch.fft.irfft(spectrum, 2 * n.T)[..., : n.T]

    def second(self, n: Sizes, x: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.array([[np.convolve(x[b, c], f[c])[: n.T] for c in range(n.C)] for b in range(n.B)])

    mistakes = {
        "wraps around": lambda p, n, x, f: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(f), n.T) + (0 if n.T > 1 else 1),
        "filter of the next channel": lambda p, n, x, f: p.define(n, x, f.roll(1, 0)) + (0 if n.C > 1 else 1),
        "correlation": lambda p, n, x, f: p.define(n, x.flip(-1), f).flip(-1) + (0 if n.T > 1 else 1),
    }


PROBLEMS = (LinearAttention, StateSpaceDual, SelectiveScan, GatedRecurrence, Lstm, LongConvolution)
