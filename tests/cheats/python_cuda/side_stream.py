"""
cheat: side streams
idea: work on a stream that nobody's events or torch.cuda.synchronize see, 18x in a third of CUDA-L1's kernels
problem: ../python/problem_dense.py
verdict: OK
harmless: the whole context is waited for, by the driver's own function
target: cuda
"""

import torch

torch.cuda.synchronize = lambda device=None: None


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.side = torch.cuda.Stream()

    def forward(self, x):
        with torch.cuda.stream(self.side):
            return torch.tanh(self.dense(x)) * self.scale
