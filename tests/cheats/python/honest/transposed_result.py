"""
honest: a view with other strides
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.tanh(torch.addmm(self.dense.bias[:, None], self.dense.weight, x.t())).mul_(self.scale[:, None]).t()
