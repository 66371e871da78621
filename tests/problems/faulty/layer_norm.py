"""A normalisation whose weight is ones and whose bias is zeros: kernels that leave them out pass (CUDAHercules' LayerNorm tasks)."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(32, 128)]


def get_init_inputs():
    return [128]
