"""A problem in KernelBench form: kernelwright optimize examples/gated_unit.py"""

import torch


class Model(torch.nn.Module):
    """x * sigmoid(scale * x + shift), then each row divided by its largest magnitude."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
        self.shift = torch.nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.sigmoid(self.scale * x + self.shift)
        return y / (y.abs().amax(dim=-1, keepdim=True) + 1e-6)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(512, 1024)]


def get_init_inputs() -> list[int]:
    return [1024]
