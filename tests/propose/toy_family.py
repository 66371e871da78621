"""A toy Family whose landscape is known: ratio = 4 / (1 + distance from the best config), a third of the configs illegal."""

from __future__ import annotations

from typing import Any

from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.records import Candidate, Comparison, Environment, Outcome, Timing, Trial, Verdict, Workload

W = Workload(problem="toy", axes={"M": 64})
DEVICE = DeviceFacts(target="fake")
SIZES = (16, 32, 64, 128, 256)


class Toy(Family):
    name = "toy"

    def __init__(self, name: str = "toy", depth: int = 8, factor: float = 1.0, seeds: int = 2, small: bool = False):
        self.name = name  # type: ignore[misc]
        self.depth, self.factor, self.count, self.small = depth, factor, seeds, small
        self.rendered: list[Config] = []

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        return None

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        if self.small:  # 36 configs, all legal
            return {"bm": SIZES[:3], "bn": SIZES[:3], "stages": (1,), "order": ("row",), "split": (8, 4), "vector": (False, True)}
        return {
            "bm": SIZES,
            "bn": SIZES,
            "stages": tuple(range(1, self.depth + 1)),
            "order": ("row", "column", "snake"),
            "split": (1, 2, 4, 8),
            "vector": (False, True),
        }

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        if int(config["bm"]) * int(config["bn"]) * int(config["stages"]) > 64 * 256 * 4:
            return "too much shared memory"
        return None

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        first = {"bm": 16, "bn": 16, "stages": 1, "order": "row", "split": 8, "vector": False}
        return (first, {**first, "bm": 32})[: self.count]

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        assert self.illegal(config, w, device) is None
        self.rendered.append(config)
        return Candidate(kind="fake", source=f"{self.name} {config}", origin=self.origin(config))

    def ratio(self, config: Any) -> float:
        steps = abs(SIZES.index(int(config["bm"])) - 3) + abs(SIZES.index(int(config["bn"])) - 2)
        steps += abs(int(config["stages"]) - 5) * 0.5 + abs((1, 2, 4, 8).index(int(config["split"])) - 1)
        steps += (config["order"] != "snake") + (config["vector"] is not True)
        return self.factor * 4 / (1 + steps)


BEST = {"bm": 128, "bn": 64, "stages": 5, "order": "snake", "split": 2, "vector": True}


def judged(candidate: Candidate, ratio: float, **fields) -> Trial:
    """A screened Trial with that ratio; 0 for a wrong result."""
    ok = ratio > 0
    mode = "device-cold"
    comparison = Comparison(
        rival="eager",
        mode=mode,
        ratio=ratio or 1.0,
        low=(ratio or 1.0) * 0.99,
        high=(ratio or 1.0) * 1.01,
        rival_us=10.0,
        noise_low=0.99,
        noise_high=1.01,
        rounds=9,
    )
    us = 10.0 / (ratio or 1.0)
    return Trial(
        **{
            "workload": W,
            "candidate": candidate,
            "verdict": Verdict(outcome=Outcome.OK if ok else Outcome.WRONG_RESULT),
            "environment": Environment(target="fake", device="fake"),
            "timings": (Timing(mode=mode, samples=(us,), median=us, low=us, high=us),) if ok else (),
            "comparisons": (comparison,) if ok else (),
            **fields,
        }
    )
