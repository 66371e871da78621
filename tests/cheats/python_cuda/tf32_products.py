"""
cheat: precision downgrade
idea: TF32 switched on for a product that says fp32, about 7x for free on an A100, BytedTsinghua-SIA/CUDA-Agent#13
problem: ../python/problem_dense.py
verdict: WRONG_RESULT
target: cuda
"""

import torch

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.tanh(self.dense(x)) * self.scale
