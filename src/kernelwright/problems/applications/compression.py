"""Error-bounded compression of a field of float32 values: by speed, and by ratio."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, but
from kernelwright.problems.draws import normal
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding, compression
from kernelwright.problems.validators.compression import BLOCK, SHARE, compressed, encode
from kernelwright.records import Workload

_WAVES = 6


class Compression(Application):
    judged_by = compression
    title, domain = "compression", "compression"
    formula = f"blocks of {BLOCK} values quantised to a bound, predicted and packed, in the format of validators/compression.py"
    axes = ("rows", "cols")
    inputs = {"x": "rows cols", "bound": "1"}
    outputs = {"stream": f"cdiv(cdiv(rows*cols,{BLOCK})*261,4) : int32", "length": "1 : int32"}
    dtypes, unit = ("fp32",), "vector"
    full = ((4096, 4096), (16384, 4096))
    tiny = ((13, 70), (1, 1), (3, 64))
    adversarial = ("rough", "constant", "fine")
    tolerance = f"no value off by more than the bound (and 2^-20 of it); at least {SHARE} of the plain coder's ratio"
    read = ("x",)
    least_share = SHARE

    def refuses(self, w: Workload) -> str | None:
        if min(w.axes.values()) < 1 or w.axes["rows"] * w.axes["cols"] > 1 << 28:
            return "has 1 to 2^28 values"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        """Waves with a little noise, to a thousandth of their range; `rough` is noise alone, `fine` has a bound a thousand times finer."""
        rows = torch.arange(n.rows, device=device)[:, None]
        cols = torch.arange(n.cols, device=device)
        x = normal((n.rows, n.cols), rng, device) * (1.0 if case == "rough" else 0.003)
        for a, b, phase, size in torch.rand(_WAVES, 4, generator=rng, device=device).tolist() if case != "rough" else ():
            x += size * (torch.cos(0.03 * a * rows + 6 * phase) * torch.sin(0.1 * b * cols + 3 * phase))
        if case == "constant":
            x = torch.full_like(x, float(x.mean()))
        bound = (x.max() - x.min()).clamp_min(1e-2) * (1e-6 if case == "fine" else 1e-3)
        return {"x": x, "bound": bound.view(1)}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return compressed(inputs, outputs, least_share=self.least_share)

    def solve(self, n: Sizes, x: torch.Tensor, bound: torch.Tensor) -> Any:
        """Each value to the nearest multiple, each block under its best predictor."""
        stream, length = encode(x, bound)
        return stream, torch.tensor([length], dtype=torch.int32, device=x.device)

    mistakes = {
        "twice the bound": lambda p, n, x, bound: p.solve(n, x, 2 * bound),
        "a shorter length": lambda p, n, **x: but(o := p.solve(n, **x), 1, o[1] // 2),
        "the last row as the one before": lambda p, n, x, bound: p.solve(n, torch.cat([x[:-1], x[:1]]), bound),
        "payload of zeros": lambda p, n, x, bound: but(o := p.solve(n, x, bound), 0, o[0] * (torch.arange(len(o[0])) < x.numel() // 256)),
        "no bound read": lambda p, n, x, bound: p.solve(n, x, torch.full_like(bound, 0.5)),
    }


class CompressionRatio(Compression):
    title, kind = "challenge-compression", "challenge"
    formula = "as few bytes as can be found, in the format of validators/compression.py; any integers within the bound will do"
    score = "compression ratio"
    axes = ("rows", "cols", "ms")
    full = ((2048, 2048, 500), (512, 512, 1000))
    tiny = ((13, 70, 300), (3, 64, 300))
    tolerance = "no value off by more than the bound (and 2^-20 of it)"
    least_share = 0.0


PROBLEMS = (Compression, CompressionRatio)
