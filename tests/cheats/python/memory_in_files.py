"""
cheat: memory
idea: files in memory, which no limit of the address space counts
problem: problem_dense.py
verdict: CRASH
"""

import os

import torch

files = []


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        block = bytes(16 << 20)
        while len(files) < 40:
            files.append(os.memfd_create("more"))
            for _ in range(3):
                os.write(files[-1], block)
        return torch.tanh(self.dense(x)) * self.scale
