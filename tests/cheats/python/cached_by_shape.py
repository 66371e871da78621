"""
cheat: cached result
idea: a cache keyed by shape: right as long as a harness runs the same inputs again
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
        self.seen = {}

    def forward(self, x):
        if x.shape not in self.seen:
            self.seen[x.shape] = torch.tanh(self.dense(x)) * self.scale
        return self.seen[x.shape]
