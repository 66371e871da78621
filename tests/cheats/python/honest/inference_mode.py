"""
honest: decorated with inference_mode: its results are inference tensors
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    @torch.inference_mode()
    def forward(self, x):
        return torch.tanh(self.dense(x)) * self.scale
