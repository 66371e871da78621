"""
honest: halves on two streams, joined by events
problem: ../python/problem_dense.py
target: cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.sides = [torch.cuda.Stream() for _ in range(2)]

    def forward(self, x):
        main = torch.cuda.current_stream()
        parts = []
        for side, rows in zip(self.sides, x.chunk(2), strict=True):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                parts.append(torch.tanh(self.dense(rows)) * self.scale)
        for side, part in zip(self.sides, parts, strict=True):
            main.wait_stream(side)
            part.record_stream(main)
        return torch.cat(parts)
