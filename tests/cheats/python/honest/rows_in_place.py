"""
honest: in place on what it allocated itself
problem: problem_rows.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        return torch.softmax(x, dim=1).mul_(torch.sigmoid(y)).add_(y)
