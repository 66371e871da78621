"""
cheat: early exit
idea: exit code 0 before anything was checked
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
        print("Passed", flush=True)
        os._exit(0)
