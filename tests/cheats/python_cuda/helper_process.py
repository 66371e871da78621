"""
cheat: work outside the clock
idea: a process started while compilers may run, which is to work beside the clock later
problem: ../python/problem_dense.py
verdict: CRASH
target: cuda
"""

import subprocess

import torch


class ModelNew(torch.nn.Module):
    helper = None

    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        if ModelNew.helper is None:
            ModelNew.helper = subprocess.Popen(["sleep", "600"])
        if ModelNew.helper.poll() is not None:
            raise RuntimeError("the helper is gone")
        return torch.tanh(self.dense(x)) * self.scale
