"""Products that the launcher has cuBLASLt do, on a GPU: small integers, so that every right result is the same to the last bit."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from kernelwright.runtime.launcher import Launcher, open_launcher

pytestmark = pytest.mark.gpu


@pytest.fixture
def launcher():
    one = open_launcher()
    yield one
    one.release()


def matrix(rows: int, columns: int, order: str = "n", pad: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    r, c = (rows, columns) if order == "n" else (columns, rows)
    t = torch.randint(-1, 2, (r, c + pad), device="cuda").to(dtype)[:, :c]
    return t if order == "n" else t.t()


def called(launcher: Launcher, op: int, a, b, out, bias=None) -> None:
    tensors = [t for t in (a, b, bias, out) if t is not None]
    if launcher.launch(op, *tensors) is None:
        launcher.register_vendor(op, a, b, out, bias)
    assert launcher.launch(op, *tensors) is True


@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_product(launcher, seed):
    rng = random.Random(seed)
    m, n, k = (rng.choice((1, 2, 7, 8, 64, 100, 128, 777, 2048)) for _ in range(3))
    dtype = rng.choice((torch.float16, torch.bfloat16))
    a, b, out = (matrix(*s, rng.choice("nt"), rng.choice((0, 8, 3)), dtype) for s in ((m, k), (k, n), (m, n)))
    out = out if out.stride(1) == 1 else matrix(m, n, "n", 0, dtype)
    bias = rng.choice((None, torch.randint(-1, 2, (n,), device="cuda").to(dtype)))
    out.fill_(float("nan"))
    called(launcher, 7, a, b, out, bias)
    assert torch.equal(out.double(), (a.double() @ b.double() + (0 if bias is None else bias.double())).to(dtype).double())


def test_on_streams_of_threads(launcher):
    """Split-K over a workspace that each stream has of its own."""
    wrong = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = matrix(64, 16384), matrix(16384, 64)
            expected, out = (a.double() @ b.double()).half(), torch.empty(64, 64, dtype=torch.float16, device="cuda")
            for _ in range(50):
                called(launcher, 8, a, b, out)
                if not torch.equal(out, expected):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_in_a_graph(launcher):
    a, b, bias = matrix(64, 16384), matrix(16384, 96, "t"), torch.ones(96, dtype=torch.float16, device="cuda")
    out = torch.empty(64, 96, dtype=torch.float16, device="cuda")
    called(launcher, 9, a, b, out, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher.ready(9, a, b, bias, out)
        assert launcher.launch(9, a, b, bias, out) is True
    for _ in range(3):
        a.copy_(matrix(64, 16384))
        out.zero_()
        graph.replay()
        assert torch.equal(out, (a.double() @ b.double() + 1).half())
