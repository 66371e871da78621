"""Fourier transforms in float32, complex numbers as a last axis of two: real and imaginary part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from kernelwright.problems.experts.expert import Expert, Sizes, complexes
from kernelwright.problems.problem import UNIT_ROUNDOFF, Tensors, TensorSpec
from kernelwright.records import Workload

TOLERANCE = "float32 butterflies: each of log2 N levels rounds, which adds up to sqrt(log2 N) roundings of the outputs' root mean square"


def matrix(n: int, sign: int = -1) -> np.ndarray:
    """The transform written out: exp(sign 2 pi i j k / n)."""
    turns = np.outer(np.arange(n), np.arange(n)) % n
    return np.exp(sign * 2j * np.pi * turns / n)


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([np.real(z), np.imag(z)], -1)


class Fourier(Expert):
    kind, domain, unit = "kernel", "Fourier transforms", "vector"
    dtypes = ("fp32",)
    independent = {"B": 16}
    normals, adversarial = ("normal", "spread"), ("small",)
    tolerance = TOLERANCE

    def points(self, n: Sizes) -> int:
        return n.N

    def refuses(self, w: Workload) -> str | None:
        return None if min(w.axes.values()) > 0 else "transforms at least one point"

    def flops(self, n: Sizes) -> float:
        # least known operations are a little below 4 N log2 N (split radix, 1968); half of it for real input
        points = self.points(n)
        return n.B * points * math.log2(max(2, points))

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        """One rounding of the element, and a rounding of the root mean square of its transform for each level."""
        found = {}
        levels = math.sqrt(1 + math.log2(max(2, self.points(self.sizes(w)))))
        for name, ref in reference.items():
            dims = tuple(range(1, ref.ndim))
            rms = ref.square().mean(dims, keepdim=True).sqrt() if ref.numel() else ref
            found[name] = UNIT_ROUNDOFF["fp32"] * (ref.abs() + levels * rms) + 2.0**-126
        return found

    def terms(self, n: Sizes) -> int:
        return math.ceil(math.log2(max(2, self.points(n))))


class Fft(Fourier):
    title = "fft"
    formula = "X[k] = sum_j x[j] exp(-2 pi i j k / N), complex"
    axes = ("B", "N")
    inputs, outputs = {"x": "B N 2"}, {"y": "B N 2"}
    full = ((4096, 4096), (16, 2**20), (1024, 15625))
    tiny = ((3, 60), (1, 1), (2, 128), (2, 101))

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(complexes(x)))

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return pairs((x[..., 0] + 1j * x[..., 1]) @ matrix(n.N))

    mistakes = {
        "the inverse": lambda p, n, x: torch.view_as_real(torch.fft.ifft(complexes(x), norm="forward")),
        "scaled by 1 / sqrt(N)": lambda p, n, x: torch.view_as_real(torch.fft.fft(complexes(x), norm="ortho")),
        "shifted by one": lambda p, n, x: p.define(n, x).roll(1, 1),
    }


class RealFft(Fourier):
    title = "fft-real"
    formula = "the first N / 2 + 1 of X[k] = sum_j x[j] exp(-2 pi i j k / N), x real"
    axes = ("B", "N")
    inputs, outputs = {"x": "B N"}, {"y": "B N//2+1 2"}
    full = ((8192, 4096), (32, 2**20))
    tiny = ((3, 60), (1, 1), (2, 128), (2, 101))

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x))

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        return pairs((x @ matrix(n.N))[:, : n.N // 2 + 1])

    mistakes = {
        "conjugated": lambda p, n, x: p.define(n, x) * x.new_tensor([1, -1]),
        "last frequency left out": lambda p, n, x: torch.cat([p.define(n, x)[:, :-1], 0 * p.define(n, x)[:, -1:]], 1),
        "shifted by one": lambda p, n, x: p.define(n, x.roll(1, 1)),
    }


class InverseRealFft(Fourier):
    title = "fft-real-inverse"
    formula = "x[j] = 1/N sum_k X[k] exp(2 pi i j k / N), x real, X given for k up to N / 2"
    axes = ("B", "N")
    inputs, outputs = {"x": "B N//2+1 2"}, {"y": "B N"}
    drawn_anew = ("x",)  # the imaginary parts of its ends are zero
    full = ((8192, 4096), (32, 2**20))
    tiny = ((3, 60), (2, 128), (2, 101))

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        x = super().draw(n, case, spec, rng, device)
        x[:, 0, 1] = 0  # of a real signal; libraries differ in what they make of others
        if n.N % 2 == 0:
            x[:, -1, 1] = 0
        return x

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(complexes(x), n.N)

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        z = x[..., 0] + 1j * x[..., 1]
        whole = np.concatenate([z, z[:, 1 : (n.N + 1) // 2][:, ::-1].conj()], 1)
        return (whole @ matrix(n.N, 1)).real / n.N

    mistakes = {
        "not divided by N": lambda p, n, x: p.define(n, x) * n.N,
        "the mirrored half left out": lambda p, n, x: torch.fft.ifft(complexes(x), n.N).real,
        "reversed in time": lambda p, n, x: p.define(n, x).flip(1),
    }


class Fft2d(Fourier):
    title = "fft-2d"
    formula = "the transform along both of the last two axes, complex"
    axes = ("B", "H", "W")
    inputs, outputs = {"x": "B H W 2"}, {"y": "B H W 2"}
    independent = {"B": 2}
    full = ((256, 256, 256), (4, 2048, 2048))
    tiny = ((2, 12, 10), (1, 1, 1), (2, 16, 8), (1, 7, 9))

    def points(self, n: Sizes) -> int:
        return n.H * n.W

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft2(complexes(x)))

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        z = x[..., 0] + 1j * x[..., 1]
        return pairs(np.einsum("ph,bhw,wq->bpq", matrix(n.H), z, matrix(n.W)))

    mistakes = {
        "along rows alone": lambda p, n, x: torch.view_as_real(torch.fft.fft(complexes(x))),
        "read as the other shape": lambda p, n, x: (
            torch.view_as_real(torch.fft.fft2(complexes(x).reshape(n.B, n.W, n.H))).reshape(x.shape)
            if n.H != n.W
            else p.define(n, x).transpose(1, 2)
        ),
    }


class Fft3d(Fourier):
    title = "fft-3d"
    formula = "the transform along all of the last three axes, complex"
    axes = ("B", "D", "H", "W")
    inputs, outputs = {"x": "B D H W 2"}, {"y": "B D H W 2"}
    independent = {"B": 1}
    full = ((1, 256, 256, 256), (64, 64, 64, 64))
    tiny = ((2, 4, 6, 5), (1, 1, 1, 1), (1, 8, 4, 2))

    def points(self, n: Sizes) -> int:
        return n.D * n.H * n.W

    def define(self, n: Sizes, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fftn(complexes(x), dim=(1, 2, 3)))

    def second(self, n: Sizes, x: np.ndarray) -> np.ndarray:
        z = x[..., 0] + 1j * x[..., 1]
        return pairs(np.einsum("pd,qh,rw,bdhw->bpqr", matrix(n.D), matrix(n.H), matrix(n.W), z))

    mistakes = {
        "along two axes alone": lambda p, n, x: torch.view_as_real(torch.fft.fft2(complexes(x))),
        "the inverse along one axis": lambda p, n, x: torch.view_as_real(
            torch.fft.ifft(torch.fft.fft2(complexes(x)), dim=1, norm="forward")
        ),
    }


PROBLEMS = (Fft, RealFft, InverseRealFft, Fft2d, Fft3d)
