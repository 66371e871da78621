"""
cheat: hang
idea: a kernel that runs for an hour, from the second run on
problem: ../python/problem_dense.py
verdict: TIMEOUT
target: cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            torch.cuda._sleep(7_000_000_000_000)
        return torch.tanh(self.dense(x)) * self.scale
