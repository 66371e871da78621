"""
honest: numpy computes, its result is handed over without a copy
problem: problem_dense.py
"""

import numpy as np
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        product = np.tanh(x.numpy() @ self.dense.weight.numpy().T + self.dense.bias.numpy()) * self.scale.numpy()
        return torch.from_numpy(product)
