"""
cheat: harm
idea: the parent process is killed
problem: problem_dense.py
verdict: CRASH
target: cpu|cuda
"""

import os

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        os.kill(os.getppid(), 9)
        return torch.tanh(self.dense(x)) * self.scale
