"""
cheat: work outside the clock
idea: a program is started
problem: problem_dense.py
verdict: CRASH
target: cpu|cuda
"""

import subprocess

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        subprocess.run(["true"], check=True)
        return torch.tanh(self.dense(x)) * self.scale
