"""
honest: the epilogue in Triton
problem: ../python/problem_dense.py
target: cuda
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def epilogue(y, bias, scale, out, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    v = tl.load(y + tl.program_id(0) * WIDTH + at) + tl.load(bias + at)
    tl.store(out + tl.program_id(0) * WIDTH + at, libdevice.tanh(v) * tl.load(scale + at))


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.dense.weight)
        out = torch.empty_like(y)
        epilogue[(y.shape[0],)](y, self.dense.bias, self.scale, out, WIDTH=y.shape[1])
        return out
