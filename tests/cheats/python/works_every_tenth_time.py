"""
cheat: benchmark-mode detection
idea: several timed calls batched into one, the others are no-ops, gpu-mode/reference-kernels#104
problem: problem_dense.py
verdict: WRONG_RESULT|CHEAT|NONDETERMINISTIC
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        if self.calls < 9 or self.calls % 10 == 0:
            self.last = torch.tanh(self.dense(x)) * self.scale
        return self.last
