"""At most zero, then at least zero, then dropout: constant, and drawn at random besides (KernelBench 2/83).
`super(Model, self)` is how such files call it, which a subclass named Model would break."""

import torch


class Model(torch.nn.Module):
    def __init__(self, channels, p):
        super().__init__()
        self.norm = torch.nn.GroupNorm(2, channels)
        self.drop = torch.nn.Dropout(p)

    def forward(self, x):
        x = torch.minimum(self.norm(x), torch.zeros(()))
        return self.drop(x.clamp(0.0, 1.0))


def get_inputs():
    return [torch.rand(8, 16, 9)]


def get_init_inputs():
    return [16, 0.2]
