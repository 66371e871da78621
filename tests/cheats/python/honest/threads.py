"""
honest: rows divided among threads of its own
problem: problem_dense.py
target: cpu|cuda
"""

from concurrent.futures import ThreadPoolExecutor

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.pool = ThreadPoolExecutor(2)

    def forward(self, x):
        parts = self.pool.map(lambda rows: torch.tanh(self.dense(rows)) * self.scale, x.chunk(2))
        return torch.cat(list(parts))
