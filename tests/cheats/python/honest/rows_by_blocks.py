"""
honest: row blocks, imported lazily, tables made in __init__
problem: problem_rows.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = 16

    def forward(self, x, y):
        import functools

        blocks = [torch.softmax(a, dim=1) * torch.sigmoid(b) + b for a, b in zip(x.split(self.block), y.split(self.block), strict=False)]
        return functools.reduce(lambda a, b: torch.cat((a, b)), blocks)
