"""
honest: a torch.autograd.Function of its own
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return torch.tanh(x) * scale


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return Scaled.apply(self.dense(x), self.scale)
