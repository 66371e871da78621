"""Products with half-empty weights kept compressed: one Family for each scheme of the folder."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from kernelwright.families.family import Config, DeviceFacts, Family, Space, outside
from kernelwright.families.kernel_text import kernel_text
from kernelwright.families.spmm import streams, three_layer, tiles, unpack
from kernelwright.problems import spmm
from kernelwright.problems.spmm import weights
from kernelwright.records import Candidate, Workload

_FOLDER = Path(__file__).parent
_CONFIG = re.compile(r"// config: begin.*?// config: end\n", re.DOTALL)


class Scheme(Family):
    """fp16 and bf16, sums in fp32. `scheme` is the Python module beside the kernel of the same name."""

    scheme: ModuleType
    problem = "spmm"
    layout = "quad"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if w.problem != self.problem or weights(w).layout != self.layout:
            return f"it is for {spmm.LAYOUTS[self.layout].NAME} records (problem `{self.problem}`, layout {self.layout})"
        if device.sm < 80:
            return "it needs sm_80"
        if w.dtype not in ("fp16", "bf16"):
            return f"it is for fp16 and bf16, not {w.dtype}"
        return self.scheme.refuses(w)

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        return self.scheme.SPACE

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return outside(config, self.space(w, device)) or self.scheme.refuses(w) or self.scheme.illegal(config, w, device)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        """The best by the model of what ran well, or might; and the first of these with the best one's tiles, which was measured."""
        legal = [c for c in self.scheme.SEEDS if self.illegal(c, w, device) is None]
        best = sorted(legal, key=lambda c: self.estimate(c, w, device))
        first = next((c for c in legal if c.get("tiles") == best[0].get("tiles")), None) if best else None
        return tuple([*best[:7], *([first] if first and first not in best[:7] else best[7:8])])

    def estimate(self, config: Config, w: Workload, device: DeviceFacts) -> float:
        return self.scheme.microseconds(config, w, device)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        lines = "".join(f"    {line}\n" for line in self.scheme.struct(config, w, device))
        text = kernel_text(_FOLDER / f"{self.scheme.__name__.rpartition('.')[2]}.cuh")
        source = _CONFIG.sub(lambda _: f"struct Config {{\n{lines}}};\n", text, count=1)
        return Candidate(kind="cuda", source=source, plan=self.scheme.plan(config, w, device), origin=self.origin(config))


class Streams(Scheme):
    name = "spmm_quad"
    scheme = streams


class Tiles(Scheme):
    name = "spmm_quad_sm90"
    scheme = tiles

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        return super().refuses(w, device) or ("it multiplies by wgmma, which sm_90 alone has" if device.sm != 90 else None)


class ThreeLayer(Scheme):
    name = "spmm_three_layer"
    scheme = three_layer
    layout = "three"


class Unpack(Scheme):
    name = "unpack_quad"
    scheme = unpack
    problem = "unpack"
