"""Training with torch.nn's functions:
kernelwright verify examples/applications/gpt_training.py --problem expert:gpt-training:2x64x96x32x4x3:fp32"""

import torch
from torch.nn import functional as F


class ModelNew(torch.nn.Module):
    def __init__(self, layers, width, vocabulary, context, batch, steps):
        super().__init__()
        self.layers, self.width = layers, width
        self.shapes = [(vocabulary, width), (context, width)]
        for _ in range(layers):
            self.shapes += [(2, width), (3 * width, width), (width, width), (2, width), (4 * width, width), (width, 4 * width)]
        self.shapes.append((2, width))

    def loss(self, flat, tokens):
        d, heads = self.width, max(1, self.width // 32)
        parts = iter(part.view(shape) for part, shape in zip(flat.split([a * b for a, b in self.shapes]), self.shapes, strict=True))
        token, position = next(parts), next(parts)
        b, t = tokens.shape[0], tokens.shape[1] - 1
        x = F.embedding(tokens[:, :-1], token) + position[:t]
        for _ in range(self.layers):
            norm = next(parts)
            q, k, v = (F.layer_norm(x, (d,), *norm) @ next(parts).T).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d) @ next(parts).T
            norm = next(parts)
            x = x + F.gelu(F.layer_norm(x, (d,), *norm) @ next(parts).T, approximate="tanh") @ next(parts).T
        logits = F.layer_norm(x, (d,), *next(parts)) @ token.T
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def forward(self, weights, tokens):
        mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
        losses, gradients, trajectory = [], [], []
        for s, batch in enumerate(tokens.long()):
            leaf = weights.detach().requires_grad_()
            with torch.enable_grad():
                loss = self.loss(leaf, batch)
                (grad,) = torch.autograd.grad(loss, leaf)
            mean = mean.lerp(grad, 0.1)
            square = square.lerp(grad * grad, 0.05)
            step = mean / (1 - 0.9 ** (s + 1)) / ((square / (1 - 0.95 ** (s + 1))).sqrt() + 1e-8)
            weights = weights - 1e-3 * (step + 0.1 * weights)
            losses.append(loss.detach())
            gradients.append(grad)
            trajectory.append(weights)
        return torch.stack(losses), torch.stack(gradients), torch.stack(trajectory)
