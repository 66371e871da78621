"""The Families of gemm_sm90: Hopper's own products, one Family for each scheme of the folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from types import ModuleType

from kernelwright.families.family import Config, DeviceFacts, Estimator, Family, Space, outside
from kernelwright.families.gemm_sm90 import model, persistent, ring, sides, tiny, whole_k
from kernelwright.families.gemm_sm90 import render as _render
from kernelwright.records import Candidate, Workload


class Scheme(Family):
    """fp16 and bf16 in and out, any layout. Sums are fp32, or fp16 for fp16 Workloads that say so, which no config chooses. `scheme` is the
    Python module beside the kernel of the same name."""

    scheme: ModuleType

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if w.problem not in ("gemm", "linear"):
            return "it multiplies matrices only (problems `gemm` and `linear`)"
        if device.sm != 90:
            return "it is written in Hopper's instructions (sm_90a)"
        if (w.dtype, w.accumulate) not in (("fp16", "fp32"), ("bf16", "fp32"), ("fp16", "fp16")):
            return f"it multiplies fp16 and bf16 and accumulates in fp32, or fp16 in fp16, not {w.dtype} in {w.accumulate}"
        if w.layout not in ("nn", "nt", "tn", "tt"):
            return f"layout {w.layout!r} is none of nn, nt, tn, tt"
        if big := [f"{axis} = {size}" for axis, size in w.axes.items() if size >= 2**31 - 256]:
            return f"its indices along an axis have 32 bits: {', '.join(big)}"
        rows = {"a": w.axes["K" if w.layout[0] == "n" else "M"], "b": w.axes["N" if w.layout[1] == "n" else "K"]}
        if odd := [f"{name}: {length} elements" for name, length in rows.items() if length % 8]:
            return f"TMA needs rows of a multiple of 16 bytes ({', '.join(odd)})"
        if 0 in w.axes.values():
            return "it has nothing for empty matrices"
        return None

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        return self.scheme.SPACE

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return outside(config, self.space(w, device)) or self.scheme.illegal(config, w, device)

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        """Of the scheme's menu those that its model puts first."""
        return self._first(w, device, self._legal(w, device), self.scheme.SEEDS, per_tile=2)

    def _first(self, w: Workload, device: DeviceFacts, fits: Callable[[Config], bool], count: int, per_tile: int) -> tuple[Config, ...]:
        configs, columns = _menu(self.scheme, w.layout, device)
        times = self.scheme.microseconds(columns, w, device)
        return model.first(configs, times, itemgetter(*self.scheme.TILE), fits, count=count, per_tile=per_tile)

    def _legal(self, w: Workload, device: DeviceFacts) -> Callable[[Config], bool]:
        return lambda config: self.scheme.illegal(config, w, device) is None

    def estimate(self, config: Config, w: Workload, device: DeviceFacts) -> float:
        return float(self.scheme.microseconds(model.columns([config]), w, device)[0])

    def estimator(self, configs: Sequence[Config], like: Workload, device: DeviceFacts) -> Estimator:
        """In one pass through the model: 0.1 ms for a scheme's kernels of a pack, instead of that for each."""
        columns = model.columns(configs)
        return lambda axes: self.scheme.microseconds(columns, sides.Products(axes, like.layout), device)

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        return _render.render(self.scheme, config, w, device, self.origin(config))


class Tiled(Scheme):
    """A scheme with a menu of tiles, to which another model's suggestions can be brought."""

    def from_tile(self, bm: int, bn: int, bk: int, stages: int, split_k: int, w: Workload, device: DeviceFacts) -> Config | None:
        """The menu's own stages and K step go with the tile."""
        return model.nearest(*_menu(self.scheme, w.layout, device), bm, bn, split_k, self._legal(w, device))


class Persistent(Tiled):
    name = "gemm_sm90_persistent"
    scheme = persistent


class Ring(Tiled):
    name = "gemm_sm90_ring"
    scheme = ring


class WholeK(Scheme):
    name = "gemm_sm90_whole_k"
    scheme = whole_k


class Tiny(Scheme):
    name = "gemm_sm90_tiny"
    scheme = tiny

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        """The best tiles that store directly, and the best that split K: what either costs beside the other is the model's weak point."""
        legal = self._legal(w, device)
        direct = self._first(w, device, lambda c: c["warps_k"] == 1 and legal(c), self.scheme.SEEDS - self.scheme.SPLIT_SEEDS, per_tile=1)
        split = self._first(w, device, lambda c: c["warps_k"] != 1 and legal(c), self.scheme.SPLIT_SEEDS, per_tile=1)
        return tuple(sorted((*direct, *split), key=lambda c: self.estimate(c, w, device)))


@cache
def _menu(scheme: ModuleType, layout: str, device: DeviceFacts) -> tuple[list[Config], model.Columns]:
    """What a scheme would try on large matrices; what is legal on others is asked of each Workload."""
    large = Workload(problem="gemm", axes={"M": 2**14, "N": 2**14, "K": 2**14}, dtype="fp16", layout=layout)
    configs = scheme.menu(large, device)
    return configs, model.columns(configs)
