"""
honest: a file in the folder for temporary files, which is its own
problem: problem_dense.py
target: cpu|cuda
"""

import pathlib
import tempfile

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "table").write_text("1 2 3")
        self.table = (folder / "table").read_text()

    def forward(self, x):
        return torch.tanh(self.dense(x)) * self.scale
