import torch

torch.backends.cudnn.benchmark = True


class ModelNew(torch.nn.Module):
    """The reference in channels-last memory."""

    def __init__(self, inside, outside):
        super().__init__()
        self.conv = torch.nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        return self.conv(x.to(memory_format=torch.channels_last)).contiguous()
