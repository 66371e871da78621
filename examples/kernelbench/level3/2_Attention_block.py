import torch
import torch.nn as nn


class Model(nn.Module):
    """Causal self-attention of a few heads, with its projections."""

    def __init__(self, features: int, heads: int):
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(features, 3 * features)
        self.outward = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, features = x.shape
        q, k, v = self.inward(x).view(batch, tokens, 3, self.heads, features // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outward(mixed.transpose(1, 2).reshape(batch, tokens, features))


batch, tokens, features, heads = 2, 48, 64, 4


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [features, heads]
