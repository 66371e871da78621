"""Random small shapes that a kernel says it can do: what neither its author nor the list of tails thought of."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from kernelwright.evaluate.buffers import names_of
from kernelwright.plan import Names, PlanError, unmet
from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.records import Candidate, Workload

MOST_ELEMENTS = 2**20
"""Of all tensors of a shape together: its float64 reference takes milliseconds, also on one CPU core."""
DRAWS = 500
"""For each shape that is wanted, at most: a kernel for one K alone accepts one shape of 30."""


def contiguous_names(w: Workload, sms: int) -> Names:
    """What a plan's expressions may name, on buffers without padding."""
    names = Names(w.axes)
    names["sms"] = sms
    for spec in problem_of(w).tensors(w):
        names |= names_of(spec, spec.shape[-1] if spec.shape else 1, 256)
    return names


def drawn_shapes(candidate: Candidate, served: Sequence[Workload], count: int, seed: int, sms: int) -> list[Workload]:
    """Up to `count` distinct Workloads that differ from the served ones in their axes, odd sizes and one-off sizes among them; the same
    for the same seed. Fewer where the plan accepts no more; none for a problem whose axes are fixed."""
    served = [w for w in served if w.axes]
    rng = random.Random(f"{seed} {candidate.id}")
    found: dict[Workload, None] = {}
    for _ in range(DRAWS * count if served else 0):
        if len(found) == count:
            break
        base = rng.choice(served)
        w = base.replace(axes={axis: _size(rng, size) for axis, size in base.axes.items()})
        if w not in served and w not in found and _accepts(candidate, w, sms):
            found[w] = None
    return list(found)


def _size(rng: random.Random, served: int) -> int:
    """Small, odd, a multiple of eight (which many kernels ask for), or where the kernel is at home and just beside it."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randint(1, 16)
    if kind == 1:
        return rng.randint(1, 300)
    if kind == 2:
        return 8 * rng.randint(1, 100)
    return max(1, served + rng.choice((-8, -1, 0, 0, 0, 0, 1, 8)))


def _accepts(candidate: Candidate, w: Workload, sms: int) -> bool:
    try:
        resolve(w.name)  # a chain may refuse a size
        if sum(math.prod(spec.shape) for spec in problem_of(w).tensors(w)) > MOST_ELEMENTS:
            return False
        return candidate.plan is None or unmet(candidate.plan, contiguous_names(w, sms)) is None
    except (PlanError, ProblemError):
        return False
