"""
cheat: side streams
idea: another context is made current, so that who waits for the current one waits for nothing
problem: ../python/problem_dense.py
verdict: OK|CRASH
harmless: the context of the time before the source was loaded is waited for, whichever is current
target: cuda
"""

import ctypes

import torch

driver = ctypes.CDLL("libcuda.so.1")
torch.zeros(1, device="cuda")
theirs, other = ctypes.c_void_p(), ctypes.c_void_p()
driver.cuCtxGetCurrent(ctypes.byref(theirs))
if driver.cuCtxCreate_v2(ctypes.byref(other), 0, 0):
    raise RuntimeError("no second context")
driver.cuCtxSetCurrent(theirs)


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        driver.cuCtxSetCurrent(theirs)
        out = torch.tanh(self.dense(x)) * self.scale
        driver.cuCtxSetCurrent(other)
        return out
