"""
cheat: lazy tensor
idea: a subclass that computes when it is looked at, one of CUDA-L1's five hacks
problem: problem_dense.py
verdict: CHEAT
target: cpu|cuda
"""

import torch


class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.empty_like(x).as_subclass(Later)
