"""
cheat: timer forged
idea: the answer is sent first, the work comes after
problem: problem_dense.py
verdict: WRONG_RESULT|CHEAT
target: cpu|cuda
"""

import json
import sys
import time

import torch


def harness():
    """The frame of the harness that waits for forward."""
    frame = sys._getframe()
    while "request" not in frame.f_locals or "send" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals


def reply(names, request, out):
    where = {"address": out.data_ptr(), "shape": list(out.shape), "strides": list(out.stride()), "dtype": str(out.dtype)}
    answer = {"id": request["id"], "ns": [1000], "switched": [False], "results": [where]}
    names["send"](json.dumps(answer).encode())


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        out = torch.zeros_like(x)
        names = harness()
        if names["request"]["do"] == "launch":
            reply(names, names["request"], out)
            time.sleep(0.002)
        out.copy_(torch.tanh(self.dense(x)) * self.scale)
        return out
