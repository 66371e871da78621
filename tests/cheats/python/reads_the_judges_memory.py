"""
cheat: the grader's memory
idea: /proc/PID/mem of the parent process
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
        with open(f"/proc/{os.getppid()}/mem", "rb") as memory:
            memory.seek(x.data_ptr())
            return torch.frombuffer(bytearray(memory.read(x.nbytes)), dtype=torch.float32).view(x.shape)
