"""The fake target's family: scripts for `targets.fake` on a known landscape, so that searches run without hardware.

Time is 8 us at tile = 32, unroll = 4, and grows with the distance from there; unroll 16 does not compile, tile 256 is wrong: a search meets
failures too.
"""

from __future__ import annotations

import json
import math

from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.records import Candidate, Workload


class Scripted(Family):
    name = "scripted"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        return None if device.target == "fake" else "it runs on the fake target only"

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        return {"tile": (4, 8, 16, 32, 64, 128, 256), "unroll": (1, 2, 4, 8, 16), "order": ("rows", "columns")}

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        if config["tile"] == 4 and config["unroll"] == 8:
            return "a tile of 4 cannot be unrolled 8 times"
        return None

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        return ({"tile": 8, "unroll": 1, "order": "rows"},)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        tile, unroll = int(config["tile"]), int(config["unroll"])
        away = abs(math.log2(tile / 32)) + abs(math.log2(unroll / 4)) + (config["order"] == "columns")
        script: dict = {"us": 8.0 * 1.3**away, "config": config}
        if unroll == 16:
            script["fault"] = {"compile": "COMPILE_ERROR"}
        if tile == 256:
            script["result"] = "partial"
        return Candidate(kind="fake", source=json.dumps(script, sort_keys=True), origin=self.origin(config))
