"""
cheat: network
idea: results from elsewhere, or the task sent there
problem: problem_dense.py
verdict: CRASH
target: cpu|cuda
"""

import socket

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        with socket.create_connection(("127.0.0.1", 9), timeout=1):
            return torch.tanh(self.dense(x)) * self.scale
