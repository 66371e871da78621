"""
honest: PyTorch's own operators, as the problem has them
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
        return torch.tanh(self.dense(x)) * self.scale
