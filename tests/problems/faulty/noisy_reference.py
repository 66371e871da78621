"""Draws in forward: no kernel can be compared with it."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn(x.shape)


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return []
