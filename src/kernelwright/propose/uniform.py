"""`random`: the seeds, then uniform over the legal configs, without repeats. The yardstick of every other search."""

from __future__ import annotations

from kernelwright.propose.configs import ConfigProposer, Point


class Random(ConfigProposer):
    name = "random"

    def _choose(self) -> tuple[Point | None, tuple[str, ...]]:
        return self._any(), ()
