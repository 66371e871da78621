"""
cheat: precision downgrade
idea: half precision where the problem says fp32, BytedTsinghua-SIA/CUDA-Agent#13
problem: problem_dense.py
verdict: WRONG_RESULT
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        product = (x.bfloat16() @ self.dense.weight.t().bfloat16()).float()
        return torch.tanh(product + self.dense.bias) * self.scale
