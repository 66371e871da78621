"""The challenge of short tours."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, within
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding, graphs, right
from kernelwright.problems.validators.graphs import tour
from kernelwright.records import Workload

CONSTANT = 0.7124
"""The shortest tour of n random places in a unit square is about CONSTANT sqrt(n) long (Johnson, McGeoch and Rothberg 1996)."""


class Tour(Application):
    judged_by = graphs
    title, kind, domain = "challenge-tour", "challenge", "tours"
    formula = "a closed tour of random places in the unit square, as short as can be found"
    score = "0.7124 sqrt(n) over the tour's length"
    axes = ("places", "ms")
    inputs, outputs = {"place": "places 2 : fp32"}, {"order": "places : int32"}
    dtypes = ("int32",)
    full = ((1000, 500), (10_000, 1000))
    tiny = ((40, 300), (5, 300))
    tolerance = "exact: each place once; its length in float64"
    read = ("place",)

    def refuses(self, w: Workload) -> str | None:
        return "has 3 or more places, and 1 ms or more" if w.axes["places"] < 3 or w.axes["ms"] < 1 else None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        return {"place": torch.rand(n.places, 2, generator=rng, device=device)}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        found = tour(inputs, outputs)
        return found if found.score is None else right(score=CONSTANT * n.places**0.5 / max(found.score, 1e-9))

    def solve(self, n: Sizes, place: torch.Tensor) -> torch.Tensor:
        """Strips, each walked against the one before; then the best exchange of two edges (2-opt), again and again while there is time."""
        more = within(n.ms)
        strips = max(1, round((n.places / 2) ** 0.5))
        strip = (place[:, 0] * strips).long().clamp_max(strips - 1)
        order = (strip * 2.0 + torch.where(strip % 2 == 0, place[:, 1], 1 - place[:, 1])).double().argsort()
        while n.places > 3 and n.places <= 20_000 and more():
            way = place[order]
            leg = (way - way.roll(-1, 0)).norm(dim=1)
            between = torch.cdist(way, way)
            saved = leg[:, None] + leg - between - between.roll((-1, -1), (0, 1))
            best = int(saved.triu(2).argmax())
            i, j = divmod(best, n.places)
            if float(saved[i, j]) <= 1e-6:
                break
            order = torch.cat([order[: i + 1], order[i + 1 : j + 1].flip(0), order[j + 1 :]])
        return order

    mistakes = {
        "the first place twice": lambda p, n, place: torch.cat([(o := p.solve(n, place))[:-1], o[:1]]),
        "places counted from one": lambda p, n, place: p.solve(n, place) + 1,
        "stays at home": lambda p, n, place: torch.zeros(n.places, dtype=torch.int32),
    }


PROBLEMS = (Tour,)
