import torch


class ModelNew(torch.nn.Module):
    """The transposed product of transposes: other memory order, same sums."""

    def forward(self, a, b):
        return torch.mm(b.t(), a.t()).t().contiguous()
