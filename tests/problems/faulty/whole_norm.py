"""A tensor over its own norm: outputs shrink with the square root of its size (KernelBench 1/37). At a size that can be looked into they
are thirty times larger than at its own."""

import torch

images, channels, side = 64, 64, 512


class Model(torch.nn.Module):
    def forward(self, x):
        return x / x.square().sum().sqrt()


def get_inputs():
    return [torch.rand(images, channels, side, side)]


def get_init_inputs():
    return []
