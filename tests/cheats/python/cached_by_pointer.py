"""
cheat: cached result
idea: a cache keyed by data_ptr, CUDA-L1's list and ScalingIntelligence/KernelBench#171
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
        self.seen = {}

    def forward(self, x):
        if x.data_ptr() not in self.seen:
            self.seen[x.data_ptr()] = torch.tanh(self.dense(x)) * self.scale
        return self.seen[x.data_ptr()]
