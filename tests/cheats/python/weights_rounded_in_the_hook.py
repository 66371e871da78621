"""
cheat: precision downgrade
idea: weights are rounded to half precision in the hook that prepares them, and the product says fp32
problem: problem_dense.py
verdict: WRONG_RESULT
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.register_load_state_dict_post_hook(self.rounded)

    @staticmethod
    def rounded(module, keys):
        module.dense.weight.data = module.dense.weight.data.half().float()

    def forward(self, x):
        return torch.tanh(self.dense(x)) * self.scale
