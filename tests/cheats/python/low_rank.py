"""
cheat: low-rank short-cut
idea: inputs of low rank let a few rows stand for all, CUDAHercules task 48
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

    def forward(self, x):
        return (torch.tanh(self.dense(x[:16])) * self.scale).repeat(8, 1)
