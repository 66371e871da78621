import torch


class ModelNew(torch.nn.Module):
    """The degenerate problem's output is zero everywhere: nothing need be computed."""

    def forward(self, x):
        return torch.zeros_like(x)
