"""
honest: an output buffer of its own, used again in each run
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.out = torch.empty(128, width)

    def forward(self, x):
        torch.addmm(self.dense.bias, x, self.dense.weight.t(), out=self.out)
        return self.out.tanh_().mul_(self.scale)
