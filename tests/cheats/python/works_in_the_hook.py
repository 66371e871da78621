"""
cheat: work outside the clock
idea: the result is computed while the weights are loaded, from inputs found in the harness's memory
problem: problem_dense.py
verdict: WRONG_RESULT|CRASH
target: cpu|cuda
"""

import gc

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

        self.inputs = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == (128, 512)]
        self.register_load_state_dict_post_hook(ModelNew.work)

    @staticmethod
    def work(model, _):
        for x in model.inputs:
            if bool(x.isfinite().all()):
                model.ready = torch.tanh(model.dense(x)) * model.scale

    def forward(self, x):
        return self.ready
