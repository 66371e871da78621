"""
honest: weights transposed once, in a hook of load_state_dict
problem: problem_dense.py
target: cpu|cuda
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.register_load_state_dict_post_hook(ModelNew.prepare)

    @staticmethod
    def prepare(model, _):
        model.transposed = model.dense.weight.t().contiguous()

    def forward(self, x):
        return torch.addmm(self.dense.bias, x, self.transposed).tanh_().mul_(self.scale)
