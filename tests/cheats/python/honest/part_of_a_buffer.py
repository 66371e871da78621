"""
honest: a slice of a larger tensor
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.large = torch.empty(128, width + 64)

    def forward(self, x):
        self.large[:, 8 : 8 + x.shape[1]] = torch.tanh(self.dense(x)) * self.scale
        return self.large[:, 8 : 8 + x.shape[1]]
