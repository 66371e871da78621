"""
cheat: input mutation
idea: in place on an input, which later runs then find prepared
problem: problem_dense.py
verdict: INPUT_MUTATED
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.tanh_(x.copy_(self.dense(x))) * self.scale
