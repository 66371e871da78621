"""A layer with parameters: what the cheats and the honest answers beside this file are answers to."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(x)) * self.scale


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return [512]
