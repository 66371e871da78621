"""
cheat: memory
idea: all of the GPU's memory, so that the judge and the next candidates find none
problem: ../python/problem_dense.py
verdict: OUT_OF_MEMORY
target: cuda
"""

import torch


class ModelNew(torch.nn.Module):
    held = None

    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        if ModelNew.held is None:
            ModelNew.held = torch.empty(torch.cuda.mem_get_info()[0] - (1 << 28), dtype=torch.uint8, device=x.device)
        return torch.tanh(self.dense(x)) * self.scale
