"""Long rows over their norms: no output reaches 1e-2 (KernelBench 1/39)."""

import torch

rows, length = 128, 65536


class Model(torch.nn.Module):
    def forward(self, x):
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def get_inputs():
    return [torch.rand(rows, length)]


def get_init_inputs():
    return []
