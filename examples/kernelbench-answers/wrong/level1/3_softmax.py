import torch


class ModelNew(torch.nn.Module):
    """Ignores the temperature."""

    def __init__(self, temperature):
        super().__init__()

    def forward(self, x):
        return torch.softmax(x, dim=-1)
