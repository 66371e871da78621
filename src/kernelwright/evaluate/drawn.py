"""Random small shapes that a kernel says it can do: what neither its author nor the list of tails thought of."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from kernelwright.plan import PlanError, unmet
from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.records import LaunchPlan, Workload

MOST_ELEMENTS = 2**20
"""Of all tensors of a shape together: its float64 reference takes milliseconds, also on one CPU core."""
DRAWS = 200
"""For each shape that is wanted, at most."""


def drawn_shapes(plan: LaunchPlan | None, served: Sequence[Workload], count: int, seed: int, sms: int) -> list[Workload]:
    """Up to `count` distinct Workloads that differ from the served ones in their axes, odd sizes and one-off sizes among them; the same
    for the same seed, requirements and served Workloads. Fewer where the plan accepts no more; none for a problem whose axes are fixed."""
    served = [w for w in served if w.axes]
    requires = plan.requires if plan else ()
    asked = [(m[1], int(m[2] or 1), int(m[3] or 0)) for condition in requires if (m := _ASKED.fullmatch(condition))]
    rng = random.Random(f"{seed} {requires}")
    kinds = {w: w.replace(axes={}) for w in served}
    met = {(kinds[w], *w.axes.values()) for w in served}
    found: list[Workload] = []
    for _ in range(DRAWS * count if served else 0):
        if len(found) == count:
            break
        base = rng.choice(served)
        axes = {axis: _aimed(axis, _size(rng, size), asked) for axis, size in base.axes.items()}
        if (drawn := (kinds[base], *axes.values())) not in met:
            met.add(drawn)
            if _accepts(plan, w := base.replace(axes=axes), sms):
                found.append(w)
    return found


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


_ASKED = re.compile(r"(\w+) (?:% ([1-9]\d*) == 0|== (\d+))")


def _aimed(axis: str, size: int, asked: Sequence[tuple[str, int, int]]) -> int:
    """What a plan asks of one axis alone, a multiple or a size, is met at once: of 50,000 blind draws a kernel for one K and whole tiles
    accepts 50, which took 6 s."""
    for name, multiple, fixed in asked:
        if name == axis:
            size = fixed or max(1, size // multiple) * multiple
    return size


def _accepts(plan: LaunchPlan | None, w: Workload, sms: int) -> bool:
    try:
        problem = problem_of(w)
        if sum(spec.numel for spec in problem.tensors(w)) > MOST_ELEMENTS:
            return False
        if plan is not None and unmet(plan, dict(problem.names(w, sms))) is not None:  # plain: remembering their values costs more
            return False
        resolve(w.name)  # a chain may refuse a size
        return True
    except (PlanError, ProblemError):
        return False
