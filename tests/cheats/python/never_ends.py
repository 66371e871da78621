"""
cheat: harm
idea: an infinite loop
problem: problem_dense.py
verdict: TIMEOUT
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        while True:
            x = x.clone()
