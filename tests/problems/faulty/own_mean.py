"""A column less its own mean along the axis that has one element: zero whatever the inputs (KernelBench 2/80)."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = torch.nn.Linear(width, width)

    def forward(self, x):
        top = self.project(x).amax(1, keepdim=True)
        return torch.nn.functional.gelu(top - top.mean(1, keepdim=True))


def get_inputs():
    return [torch.rand(16, 64)]


def get_init_inputs():
    return [64]
