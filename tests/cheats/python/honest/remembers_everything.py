"""
honest: remembers results by the whole input: never useful, as no input comes twice
problem: problem_dense.py
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.seen = {}

    def forward(self, x):
        key = hash(
            (x.numpy().tobytes(), self.dense.weight.numpy().tobytes(), self.dense.bias.numpy().tobytes(), self.scale.numpy().tobytes())
        )
        if key not in self.seen:
            self.seen = {key: torch.tanh(self.dense(x)) * self.scale}
        return self.seen[key]
