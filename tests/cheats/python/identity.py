"""
cheat: constant output
idea: the input comes back, as a softmax-like output is small beside the residual
problem: problem_rows.py
verdict: WRONG_RESULT
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        return y
