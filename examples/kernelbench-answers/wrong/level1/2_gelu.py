import torch


class ModelNew(torch.nn.Module):
    """The last column is left out of the product."""

    def forward(self, x):
        y = 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
        y[:, -1] = x[:, -1]
        return y
