import torch
import torch.nn as nn


class Model(nn.Module):
    """A 3x3 convolution with padding."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


batch, inside, outside, size = 2, 8, 16, 24


def get_inputs():
    return [torch.randn(batch, inside, size, size)]


def get_init_inputs():
    return [inside, outside]
