"""A harness as many are: one seed, one shape, allclose with 1e-2, a timing loop on the same inputs. `python naive.py LIBRARY PROBLEM`.

What a cheat gets past here is why it is in the corpus. numpy only: it starts in a fifth of a second.
"""

from __future__ import annotations

import ctypes
import re
import sys
import time

import numpy as np


def buffer(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """With finite memory before and after it, as an allocator's neighbours are."""
    size = shape[0] * shape[1]
    return np.zeros(size + 2048, dtype)[1024 : 1024 + size].reshape(shape)


def main(library: str, problem: str, integers: bool) -> None:
    kind, sizes, dtype = re.fullmatch(r"(gemm|chain:softmax):([\dx]+)(?::(fp16|fp32))?", problem).groups()  # pyright: ignore
    axes = [int(n) for n in sizes.split("x")]
    dtype = {"fp16": "float16"}.get(dtype, "float32")
    shapes = [(axes[0], axes[2]), (axes[2], axes[1]), (axes[0], axes[1])] if kind == "gemm" else [(axes[0], axes[1])] * 2
    rng = np.random.default_rng(0)
    *inputs, out = (buffer(shape, dtype) for shape in shapes)
    for x in inputs:
        x[:] = rng.integers(0, 2, x.shape) if integers else rng.standard_normal(x.shape) if kind == "gemm" else rng.random(x.shape)
    exact = [x.astype("float64") for x in inputs]
    if kind == "gemm":
        want = exact[0] @ exact[1]
    else:
        want = np.exp(exact[0] - exact[0].max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
    function = ctypes.CDLL(library).kernel
    function.restype = None
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*inputs, out)]
    strides = [x.shape[1] for x in (*inputs, out)]
    arguments = [*pointers, *(ctypes.c_long(n) for n in (*axes, *strides))]
    function(*arguments)
    right = np.allclose(out.astype("float64"), want, rtol=1e-2, atol=1e-2)
    begun = time.perf_counter()
    for _ in range(10):
        function(*arguments)
    print(f"{'passed' if right else 'failed'}, {(time.perf_counter() - begun) * 1e5:.1f} us")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], len(sys.argv) > 3)
