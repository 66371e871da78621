import torch

class ModelNew(torch.nn.Module):
    def forward(self, x)
        return torch.cumsum(x, dim=-1)
