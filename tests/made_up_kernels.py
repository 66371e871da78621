"""Kernels that the Families of gemm_sm90 wrote (plans, requirements, models are real) with times that nobody measured: the models' own, by
Family a little off, and a rival that loses the small products and wins the large ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product as grid_of
from pathlib import Path
from tempfile import mkdtemp

from kernelwright.families import DeviceFacts, family
from kernelwright.plan import unmet
from kernelwright.records import Candidate, Trial, Workload
from kernelwright.runtime import pack
from kernelwright.runtime.dispatch import contiguous
from kernelwright.runtime.pack import Pack
from made_up_products import ENVIRONMENT, confirmed, product

H200 = DeviceFacts(target="cuda:sm_90", name=ENVIRONMENT.device, sms=132)
SIZES = (64, 128, 256, 512, 1024)
GRID = [product(m, n, k) for m, n, k in grid_of(SIZES, SIZES, SIZES)]
SKEW = {"gemm_sm90_ring": 1.1, "gemm_sm90_persistent": 0.95, "gemm_sm90_whole_k": 1.2}
"""What the families take beyond their models."""


def gain(w: Workload) -> float:
    """The rival's time over ours: the small products are won, the large ones are lost."""
    return 1.4 if math.prod(w.axes.values()) < 2**26 else 0.9


@cache
def kernels(dtype: str = "fp16") -> tuple[tuple[str, dict, Candidate], ...]:
    """Of each scheme the two best seeds for a small, a long and a large product."""
    found: dict[str, tuple[str, dict, Candidate]] = {}
    for name in SKEW:
        one = family(name)
        for w in (product(64, 256, 256), product(256, 256, 4096), product(4096, 4096, 1024)):
            w = w.replace(dtype=dtype)
            for config in one.seeds(w, H200)[:2]:
                c = one.render(config, w, H200)
                found.setdefault(c.id, (name, config, c))
    return tuple(found.values())


def trials(w: Workload, dtype: str = "fp16", skew: dict[str, float] | None = None) -> list[Trial]:
    """Of every kernel that can do it, the fastest first."""
    found = []
    for name, config, c in kernels(dtype):
        if c.plan and unmet(c.plan, contiguous(w, 132)) is None and family(name).illegal(config, w, H200) is None:
            us = (family(name).estimate(config, w, H200) or 0) * (SKEW | (skew or {}))[name]
            found.append((us, c))
    found.sort(key=lambda pair: pair[0])
    rival = found[0][0] * gain(w)
    return [confirmed(w, us, {"cublaslt-auto": rival / us, "eager": 1.03 * rival / us}, candidate=c) for us, c in found]


def made(workloads: Sequence[Workload] = GRID, more: Sequence[Trial] = (), skew: dict[str, float] | None = None) -> Pack:
    """A pack on disk: of each Workload the fastest kernel is confirmed, the others were screened."""
    best, screens = list(more), []
    for w in workloads:
        first, *rest = trials(w, skew=skew)
        best.append(first)
        screens += [t.replace(stage="screen") for t in rest]
    folder = Path(mkdtemp())
    pack.save(folder / "pack", best, screens)
    return pack.load(folder / "pack")
