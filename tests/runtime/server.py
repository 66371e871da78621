"""What stands in for our kernels on a machine without a GPU."""

from __future__ import annotations

import torch

from kernelwright.runtime import ops


class Server:
    """Stands in for the kernels: computes what was asked for, notes it, and refuses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, int, int], str]] = []
        self.refuses = False

    def __call__(self, a, b, out, epilogue, bias) -> bool:
        if self.refuses:
            return False
        assert (a.ndim == b.ndim == out.ndim == 2 and out.stride(1) == 1) or out.shape[1] <= 1
        self.calls.append(((a.shape[0], b.shape[1], a.shape[1]), epilogue))
        x = a.float() @ b.float()
        steps = epilogue.split("+") if epilogue else []
        if "bias" in steps:
            x += bias.float()
        for step in steps:
            x = ops.ACTIVATIONS[step](x) if step in ops.ACTIVATIONS else x
        out.copy_(x)
        return True


def tensors(*shapes, dtype=torch.float16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=rng).to(dtype) for s in shapes]


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
