"""A mean over so many numbers that it is the same under every seed: a stored result passes (KernelBench 1/94 and its kind)."""

import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return (x - y).square().mean()


def get_inputs():
    return [torch.rand(1024, 512), torch.rand(1024, 512)]


def get_init_inputs():
    return []
