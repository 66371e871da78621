"""Steps of training a small GPT: each loss, gradient and update judged by itself, from the weights that the answer wrote before it.

Training is chaotic too: two right runs part after some steps. So no run is compared with another. The loss and gradient of a step are held
against float64 at the answer's own weights, and its update against AdamW (Loshchilov and Hutter 2019) applied to its own gradients.

The model is GPT-2's form: token and position embeddings, blocks of attention and a tanh-GELU MLP with a layer norm before each, a last
norm, the token embedding as the head; no biases in the products. All weights lie in one vector, in the order of `layout`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kernelwright.problems.validators import Finding, Tensors, right, wrong

RATE, BETA1, BETA2, EPSILON, DECAY = 1e-3, 0.9, 0.95, 1e-8, 0.1
UPDATE_BOUND = 16.0
"""Of a weight and its step, in roundoffs of float32."""
PEAK = 16.0
"""Largest error of one element of a gradient, over what is allowed of its root mean square: PyTorch shows up to 20 in a million
elements."""


@dataclass(frozen=True)
class Precision:
    """Errors allowed, in unit roundoffs of the type in which products are taken. Its own errors average out in a loss; those of float32's
    sums, which are as large as the products', do not."""

    unit: float
    loss: float
    gradient: float
    """Root mean square of the error of one of the weights' tensors, over the tensor's."""


COARSE = Precision(2.0**-8, 2.0, 12.0)
"""bf16. PyTorch shows 0.13 and 2.8."""
FINE = Precision(2.0**-24, 16.0, 64.0)
"""float32. PyTorch shows 2.0 and 16; TF32 would show 10^4."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT. Heads are 32 wide, or the whole width where that is less."""

    layers: int
    width: int
    vocabulary: int
    context: int

    @property
    def heads(self) -> int:
        return max(1, self.width // 32)

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        d = self.width
        found: list[tuple[str, tuple[int, ...]]] = [("token", (self.vocabulary, d)), ("position", (self.context, d))]
        for i in range(self.layers):
            block = (("norm1", (2, d)), ("qkv", (3 * d, d)), ("out", (d, d)), ("norm2", (2, d)), ("up", (4 * d, d)), ("down", (d, 4 * d)))
            found += [(f"{name}.{i}", shape) for name, shape in block]
        return [*found, ("norm", (2, d))]

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.layout())

    def parts(self, flat: torch.Tensor) -> Tensors:
        """Views of the weights by name."""
        sizes = [math.prod(shape) for _, shape in self.layout()]
        return {name: part.view(shape) for (name, shape), part in zip(self.layout(), flat.split(sizes), strict=True)}


def loss_of(shape: Shape, flat: torch.Tensor, tokens: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    """Mean cross-entropy of the next token; tokens (batch, context + 1). Products are taken in `compute`, the rest in flat's type."""
    w = shape.parts(flat)
    given, wanted = tokens[:, :-1].long(), tokens[:, 1:].long()
    b, t = given.shape

    def product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(compute), matrix.to(compute)).to(flat.dtype)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (shape.width,), weight[0], weight[1], 1e-5)

    x = F.embedding(given, w["token"]) + w["position"][:t]
    for i in range(shape.layers):
        q, k, v = product(norm(x, w[f"norm1.{i}"]), w[f"qkv.{i}"]).view(b, t, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q.to(compute), k.to(compute), v.to(compute), is_causal=True)
        x = x + product(attended.to(flat.dtype).transpose(1, 2).reshape(b, t, -1), w[f"out.{i}"])
        inner = F.gelu(product(norm(x, w[f"norm2.{i}"]), w[f"up.{i}"]), approximate="tanh")
        x = x + product(inner, w[f"down.{i}"])
    logits = product(norm(x, w["norm"]), w["token"])
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def gradient(shape: Shape, flat: torch.Tensor, tokens: torch.Tensor, compute: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, gradient) at these weights."""
    leaf = flat.detach().requires_grad_()
    with torch.enable_grad():
        loss = loss_of(shape, leaf, tokens, compute)
        (found,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), found


def adamw(
    weights: torch.Tensor, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights and both moments after step 1, 2 ..., decay applied to all weights."""
    first = BETA1 * first + (1 - BETA1) * grad
    second = BETA2 * second + (1 - BETA2) * grad * grad
    direction = (first / (1 - BETA1**step)) / ((second / (1 - BETA2**step)).sqrt() + EPSILON)
    return weights - RATE * (direction + DECAY * weights), first, second


def trained(inputs: Tensors, outputs: Tensors, *, shape: Shape, precision: Precision) -> Finding:
    """Inputs weights (p), tokens (steps, batch, context + 1); outputs losses (steps), gradients (steps, p), trajectory (steps, p): the
    weights after each step. Weights and updates are float32 in any case."""
    losses, gradients, trajectory = (outputs[k].double() for k in ("losses", "gradients", "trajectory"))
    for name in ("losses", "gradients", "trajectory"):
        if not bool(torch.isfinite(outputs[name]).all()):
            return wrong(f"{name} hold what is no finite number")
    weights = inputs["weights"].double()
    first = second = torch.zeros_like(weights)
    worst = 0.0
    for s, tokens in enumerate(inputs["tokens"]):
        loss, grad = gradient(shape, weights, tokens, torch.float64)
        off = float((losses[s] - loss).abs() / loss.abs()) / precision.unit
        worst = max(worst, off / precision.loss)
        if not off <= precision.loss:
            note = f"the loss of step {s} is {float(losses[s]):.7g}, at the weights before it {float(loss):.7g}"
            return wrong(note, off, precision.loss)
        got, want = shape.parts(gradients[s]), shape.parts(grad)
        for name, g in want.items():
            d = got[name] - g
            size = float(g.square().mean().sqrt()) * precision.unit
            error = max(float(d.abs().max()) / PEAK, float(d.square().mean().sqrt())) / size if size else float(d.abs().max())
            worst = max(worst, error / precision.gradient)
            if not error <= precision.gradient:
                return wrong(f"the gradient of {name} in step {s} is off by {error:.3g} roundoffs", error, precision.gradient)
        want_weights, first, second = adamw(weights, first, second, gradients[s], s + 1)
        scale = 2.0**-24 * (weights.abs() + RATE)
        error = float(((trajectory[s] - want_weights).abs() / scale).max())
        worst = max(worst, error / UPDATE_BOUND)
        if not error <= UPDATE_BOUND:
            return wrong(f"the weights after step {s} are not AdamW's, of its own gradients", error, UPDATE_BOUND)
        weights = trajectory[s]
    return right(worst, 1.0)
