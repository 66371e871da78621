"""Probabilities over very many classes, of logits in [0, 1): each is below 1e-4, so zeros pass an absolute tolerance (KernelBench 1/23)."""

import torch

rows = 64
classes = 65536


class Model(torch.nn.Module):
    def forward(self, logits):
        return logits.softmax(-1)


def get_inputs():
    return [torch.rand(rows, classes)]


def get_init_inputs():
    return []
