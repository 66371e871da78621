"""
honest: compiled by torch.compile, each instance by itself
problem: ../python/problem_dense.py
target: cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.compiled = torch.compile(self.work)

    def work(self, x):
        return torch.tanh(self.dense(x)) * self.scale

    def forward(self, x):
        return self.compiled(x)
