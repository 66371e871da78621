"""
honest: prints much, and warns
problem: problem_dense.py
target: cpu|cuda
"""

import sys
import warnings

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        print("x" * 10_000)
        print("y" * 10_000, file=sys.stderr)
        warnings.warn("a warning", stacklevel=1)
        return torch.tanh(self.dense(x)) * self.scale
