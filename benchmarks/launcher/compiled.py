"""What a linear layer costs on the host in a program of torch.compile, from Python to a CUDA driver that does nothing, beside torch's own.

    python benchmarks/launcher/compiled.py            needs g++ and NVRTC; no GPU

As benchmarks/launcher/calls.py, whose stand-in for a GPU this uses. Programs of 32 layers less programs of none, by 32. torch's product is
one of 3x3, so that its time is that of a call.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import calls
import torch
import torch._functorch.config
import torch._inductor.config

LAYERS = 32


def layers(f, *arguments) -> float:
    """Microseconds of one of `f(*arguments)` in a compiled program that does nothing else."""

    def program(n: int):
        return torch.compile(lambda x, *others: [f(x, *others) for x in x.unbind()[:n]], fullgraph=True, dynamic=False)

    x, *others = arguments
    stacked, spent = torch.stack([x] * LAYERS), []
    for n in (1, LAYERS):
        torch._dynamo.reset()
        run = program(n)
        spent.append(calls.best(lambda: run(stacked, *others), calls=200))  # noqa: B023
    return (spent[1] - spent[0]) / (LAYERS - 1)


def main() -> None:
    import kernelwright as kw

    torch._inductor.config.fx_graph_cache = False  # it may hold programs of other versions
    torch._functorch.config.enable_autograd_cache = False
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    a, b, weight, bias = (torch.randn(s).half() for s in ((64, 64), (64, 32), (32, 64), (32,)))
    stacked = a.view(4, 16, 64)
    tiny = [
        torch.ones(s, dtype=torch.float16) for s in ((3, 3), (3, 3), (3,))
    ]  # of which the pack has no kernel; inductor multiplies 1x1 itself
    linear = torch.nn.functional.linear

    with tempfile.TemporaryDirectory() as folder:
        calls.serve(Path(folder))
        for name, f, arguments in (
            ("kw.linear(x, weight, bias)", kw.linear, (a, weight, bias)),
            ("kw.linear(x, weight, bias), x of three axes", kw.linear, (stacked, weight, bias)),
            ("kw.matmul(a, b)", kw.matmul, (a, b)),
            ("kw.linear(x, weight, bias) of 3x3, which is the library's", kw.linear, tiny),
            ("torch.nn.functional.linear(x, weight, bias) of 3x3", linear, tiny),
            ("torch.nn.functional.linear(x, weight) of 3x3", linear, tiny[:2]),
            ("torch.nn.functional.linear(x, weight, bias) of 3x3, x of three axes", linear, (tiny[0][None], *tiny[1:])),
        ):
            f(*arguments)
            print(f"    {layers(f, *arguments):5.2f} us  {name}", flush=True)


if __name__ == "__main__":
    main()
