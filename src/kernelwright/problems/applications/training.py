"""Training a small GPT."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, but
from kernelwright.problems.draws import normal
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding, training
from kernelwright.problems.validators.training import COARSE, DECAY, FINE, RATE, Shape, adamw, loss_of, trained
from kernelwright.records import Workload

_PARAMETERS = "vocabulary*width+context*width+layers*(12*width*width+4*width)+2*width"


class GptTraining(Application):
    judged_by = training
    title, domain = "gpt-training", "training"
    formula = "steps of AdamW on a GPT's next-token loss; each loss, gradient and update, from its own weights"
    axes = ("layers", "width", "vocabulary", "context", "batch", "steps")
    inputs = {"weights": f"{_PARAMETERS} : fp32", "tokens": "steps batch context+1 : int32"}
    outputs = {"losses": "steps : fp32", "gradients": f"steps {_PARAMETERS} : fp32", "trajectory": f"steps {_PARAMETERS} : fp32"}
    dtypes = ("bf16", "fp32")
    full = ((4, 256, 2048, 256, 8, 4), (6, 384, 4096, 256, 16, 4))
    tiny = ((1, 32, 11, 8, 2, 2), (2, 64, 17, 12, 1, 3))
    adversarial = ("repeated", "uneven")
    tolerance = "bf16: a loss within 2, a gradient within 12 roundoffs (of its root mean square); fp32: 16 and 64; an update 16 of float32"
    read, alters, compiles = ("weights", "tokens"), ("weights", "tokens"), True

    def shape(self, n: Sizes) -> Shape:
        return Shape(n.layers, n.width, n.vocabulary, n.context)

    def refuses(self, w: Workload) -> str | None:
        if min(w.axes.values()) < 1 or w.axes["vocabulary"] < 2 or w.axes["width"] % 32:
            return "has sizes of 1 or more, a vocabulary of 2 or more (of one, nothing is to be learnt), and a width that 32 divides"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        shape = self.shape(n)
        weights = normal((shape.parameters,), rng, device) * 0.05
        for name, part in shape.parts(weights).items():
            if name.startswith("norm"):
                part[0] += 1
            if name.startswith("down") and case == "uneven":
                part *= 8
        tokens = torch.randint(n.vocabulary, (n.steps, n.batch, n.context + 1), generator=rng, device=device)
        return {"weights": weights, "tokens": tokens % 2 if case == "repeated" else tokens}

    def solve(self, n: Sizes, weights: torch.Tensor, tokens: torch.Tensor) -> Any:
        shape = self.shape(n)
        step = torch.func.grad_and_value(lambda flat, batch: loss_of(shape, flat, batch, n.dtype))
        first, second = torch.zeros_like(weights), torch.zeros_like(weights)
        found = []
        for s in range(n.steps):
            grad, loss = step(weights, tokens[s])
            weights, first, second = adamw(weights, first, second, grad, s + 1)
            found.append((loss, grad, weights))
        return tuple(torch.stack(x) for x in zip(*found, strict=True))

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return trained(inputs, outputs, shape=self.shape(n), precision=FINE if n.dtype == torch.float32 else COARSE)

    def flops(self, n: Sizes) -> float:
        products = n.layers * 12 * n.width**2 + n.vocabulary * n.width
        return 6.0 * products * n.batch * n.context * n.steps

    @staticmethod
    def _undecayed(p: GptTraining, n: Sizes, weights: torch.Tensor, tokens: torch.Tensor) -> Any:
        outputs = p.solve(n, weights, tokens)
        return but(outputs, 2, outputs[2] + RATE * DECAY * torch.cat([weights[None], outputs[2][:-1]]))

    @staticmethod
    def _frozen_positions(p: GptTraining, n: Sizes, weights: torch.Tensor, tokens: torch.Tensor) -> Any:
        outputs = p.solve(n, weights, tokens)
        first = n.vocabulary * n.width
        frozen = outputs[1].clone()
        frozen[:, first : first + n.context * n.width] = 0
        return but(outputs, 1, frozen)

    mistakes = {
        "no weight decay": _undecayed,
        "no gradient of the positions": _frozen_positions,
        "the first sequence in place of the last": lambda p, n, weights, tokens: p.solve(
            n, weights, torch.cat([tokens[:, :-1], tokens[:, :1]], 1)
        ),
        "the loss of the first step for all": lambda p, n, **x: but(o := p.solve(n, **x), 0, o[0][:1].expand_as(o[0])),
    }


PROBLEMS = (GptTraining,)
