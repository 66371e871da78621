import torch


class ModelNew(torch.nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.inverse = 1.0 / temperature

    def forward(self, x):
        e = torch.exp((x - x.amax(-1, keepdim=True)) * self.inverse)
        return e / e.sum(-1, keepdim=True)
