"""
cheat: precision downgrade
idea: the product in half precision, on the tensor cores
problem: ../python/problem_dense.py
verdict: WRONG_RESULT
target: cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.tanh(torch.nn.functional.linear(x.half(), self.dense.weight.half()).float() + self.dense.bias) * self.scale
