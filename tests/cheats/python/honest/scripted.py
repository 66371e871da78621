"""
honest: compiled by TorchScript, which needs no compiler
problem: problem_dense.py
target: cpu|cuda
"""

import torch


@torch.jit.script
def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * scale


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return scaled(self.dense(x), self.scale)
