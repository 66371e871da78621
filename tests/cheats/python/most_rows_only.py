"""
cheat: partial write
idea: a kernel that wrote 0.3 % of its output passed a tolerance on averages (arXiv 2606.20128); here 0.8 % are missing
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
        out = torch.empty_like(x)
        out[:-1] = torch.tanh(self.dense(x[:-1])) * self.scale
        return out
