import torch
import torch.nn as nn


class Model(nn.Module):
    """Three linear layers with relu between them."""

    def __init__(self, inside: int, hidden: int, outside: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


batch, inside, hidden, outside = 32, 96, 160, 40


def get_inputs():
    return [torch.randn(batch, inside)]


def get_init_inputs():
    return [inside, hidden, outside]
