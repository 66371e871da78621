"""
cheat: cached result
idea: a product with the weights kept from run to run
problem: problem_dense.py
verdict: WRONG_RESULT
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.dense.weight.t().clone()
        return torch.tanh(x @ self.kept + self.dense.bias) * self.scale
