"""A product whose operands are filled by a linear congruence of the element's number: of 448 rows a few are distinct (CUDAHercules 48)."""

import torch

n = 448


def fill(seed, rows, cols):
    i = torch.arange(rows * cols, dtype=torch.int64) + seed
    i = (i * 16807 + 2**31) % 2**32 - 2**31  # as 32-bit integers overflow
    return (torch.fmod(i, 16) - 8).float().view(rows, cols)


class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [fill(1, n, n), fill(2, n, n)]


def get_init_inputs():
    return []
