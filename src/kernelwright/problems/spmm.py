"""`spmm`: a linear layer whose weight was pruned without structure and is kept compressed, Y = X W^T, in fp16 or bf16.

X is N x K, W M x K, Y N x M. A Workload's layout says how W is kept and how many of it are zeros: `quad-50` is the layout quad-bitmap of
`kernelwright.layouts`, half of the weights zeros; `three-50` is three-layer. All that belongs to W is constant, as a model's weights are.
Beside the layout's parts the inputs hold W dense as `w`, which is what the dense rivals multiply with. `facts` are the layout's numbers
that a kernel must know and that depend on the mask.

The epilogue is any of `bias`, `silu-mul` or `swiglu`, `residual` joined by + in this order:
y = x W^T + bias (M);  y = silu(y) * factor (N x M);  y = y + addend (N x M).
swiglu is two layers in one: W's rows are 16 of a gate and 16 of the other in turn (`layouts.in_turn`), y is N x M/2, silu(gate) * other.

Whether a NaN or an infinity of X meets the zeros of W, as in a dense product, is left to the kernel: those of 2:4 positions are skipped by
the hardware. Kernels of three layers multiply by zeros of their own, too, so that infinities of X may become NaN.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.layouts import TURN, quad_bitmap, three_layer
from kernelwright.problems.draws import normal, place, uniform
from kernelwright.problems.gemm import COLUMNS, EXACT_LIMIT, picked
from kernelwright.problems.problem import TORCH_DTYPES, UNIT_ROUNDOFF, Case, Cost, Pick, Problem, Tensors, TensorSpec, one_after_the_other
from kernelwright.records import DTYPES, Workload

EPILOGUES = ("bias", "silu-mul", "swiglu", "residual")
LAYOUTS: dict[str, Any] = {"quad": quad_bitmap, "three": three_layer}
"""By name: modules of `kernelwright.layouts`."""
LEAST_ZEROS, MOST_ZEROS = 30, 95
"""Percent. Below 30 `kernelwright.sparse` refuses to compress."""
SMOOTH = {"silu-mul", "swiglu"}
"""Steps after which integers are none."""
_MOST = 2
"""Largest absolute value among the exact cases' integers."""


@dataclass(frozen=True)
class Weights:
    """What a Workload's layout says."""

    layout: str
    zeros: int
    """Percent."""

    @property
    def expected(self) -> int:
        """Of quad-bitmap: values in a word of 32 weights."""
        return round(32 * (100 - self.zeros) / 100)


@lru_cache(maxsize=256)
def parse(layout: str) -> Weights:
    """Raises ValueError with one sentence that says what to write."""
    match = re.fullmatch(r"(\w+)-(\d{1,2})", layout, re.ASCII)
    if match is None or match[1] not in LAYOUTS or not LEAST_ZEROS <= int(match[2]) <= MOST_ZEROS:
        raise ValueError(
            f"{layout!r} is no layout of a pruned weight; write {' or '.join(LAYOUTS)}, a dash and the percentage of zeros "
            f"({LEAST_ZEROS} to {MOST_ZEROS}), as in quad-50"
        )
    return Weights(match[1], int(match[2]))


def weights(w: Workload) -> Weights:
    return parse(w.layout)


def parse_epilogue(text: str) -> str:
    """The text itself. Raises ValueError with one sentence that says what to write."""
    steps = text.split("+") if text else []
    if [step for step in EPILOGUES if step in steps] != steps or {"silu-mul", "swiglu"} <= set(steps):
        raise ValueError(
            f"{text!r} is no epilogue of spmm; join bias, silu-mul or swiglu, and residual by +, in this order, each at most once"
        )
    return text


def check(w: Workload) -> None:
    """Raises ValueError with one sentence that says what to write."""
    parse(w.layout)
    if "swiglu" in parse_epilogue(w.epilogue) and w.axes["M"] % (2 * TURN):
        raise ValueError(
            f"swiglu takes rows of a gate and of another layer in turns of {TURN}: M = {w.axes['M']} is no multiple of {2 * TURN}"
        )


def swiglu(y: torch.Tensor) -> torch.Tensor:
    """(N, M) -> (N, M / 2)."""
    gate, other = apart(y)
    return F.silu(gate) * other


def apart(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of the gate, columns of the other layer."""
    turns = y.unflatten(1, (-1, 2, TURN))
    return turns[:, :, 0].flatten(1), turns[:, :, 1].flatten(1)


class Spmm(Problem):
    name = "spmm"
    axes = ("N", "M", "K")

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        n, m, k = (w.axes[x] for x in self.axes)
        module = LAYOUTS[weights(w).layout]
        count = -(-m // module.ROWS) * -(-k // module.COLUMNS)
        # what masks of this density need at most, with six standard deviations and a full column: in quad-bitmap headers with 16-bit
        # prefixes and the values; in three layers half of all values beside the slots, in 4 bytes each
        kept = min(m * k, math.ceil(m * k * (1 - weights(w).zeros / 100) + 6 * math.sqrt(m * k) + m + 8))
        head = 384 if module is quad_bitmap else three_layer.FIXED + 16
        steps = w.epilogue.split("+")
        m_out = m // 2 if "swiglu" in steps else m
        return (
            TensorSpec("x", (n, k), w.dtype, "in"),
            TensorSpec("w", (m, k), w.dtype, "in", constant=True),
            TensorSpec("records", (count * (head + 16) // 4 + -(-kept // 2),), "int32", "in", constant=True),
            TensorSpec("offsets", (count + 1,), "int32", "in", constant=True),
            TensorSpec("facts", (2,), "int32", "in", constant=True),
            *([TensorSpec("bias", (m,), w.dtype, "in", constant=True)] if "bias" in steps else []),
            *([TensorSpec("factor", (n, m), w.dtype, "in")] if "silu-mul" in steps else []),
            *([TensorSpec("addend", (n, m_out), w.dtype, "in")] if "residual" in steps else []),
            TensorSpec("y", (n, m_out), w.dtype, "out"),
        )

    def cases(self, w: Workload) -> tuple[Case, ...]:
        """Masks: by itself each weight, so many in every row, a band (dense and empty records, which need 16-bit prefixes), empty rows."""
        exact = ("integer", "rows", "banded", "empty-rows") if not SMOOTH & set(w.epilogue.split("+")) else ()
        adversarial = ("cancel", "nan", "inf", "denormal", "band")
        return (
            *(Case(name, "exact") for name in exact),
            Case("normal", "normal"),
            Case("wide", "normal"),
            *(Case(name, "adversarial") for name in adversarial),
        )

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        specs = {spec.name: spec for spec in self.tensors(w)}
        inputs = {name: self._draw(w, case, s.shape, rng, device) for name, s in specs.items() if s.role == "in" and s.dtype == w.dtype}
        x, dense = inputs["x"], inputs["w"]
        k = w.axes["K"]
        if case.rung == "exact":  # the mask alone says what is zero
            dense.masked_fill_(dense == 0, 1)
        if case.rung == "exact" and k > (limit := self._largest_sum(w) // _MOST**2):
            x.index_fill_(1, torch.randperm(k, generator=rng, device=device)[limit:], 0)
        if case.name == "normal" and k:
            dense *= 2.0 ** -round(math.log2(k) / 2)
        kind = {"integer": "random", "banded": "banded", "band": "banded", "empty-rows": "empty-rows"}.get(case.name, "rows")
        dense.masked_fill_(~_kept(kind, dense.shape, weights(w).zeros, rng, device), 0)
        if case.name == "cancel" and k >= 2:
            half = k // 2
            x[:, half : 2 * half] = -x[:, :half]
            dense[:, half : 2 * half] = dense[:, :half]
        elif case.name in ("nan", "inf"):
            value = math.nan if case.name == "nan" else math.inf
            place(dense, value, rng)
            if case.name == "nan" or weights(w).layout == "quad":
                place(x, value, rng)
                met = ~torch.isfinite(x).all(0)  # no row of W lacks that column
                dense[:, met] = torch.where(dense[:, met] == 0, 1, dense[:, met])
        parts, facts = _packed(dense, weights(w))
        records = torch.zeros(specs["records"].shape, dtype=torch.int32, device=device)
        packed = parts["records"].view(torch.int32)
        records[: packed.shape[0]] = packed
        numbers = torch.tensor(kernel_facts(facts), dtype=torch.int32, device=device)
        return inputs | {"records": records, "offsets": parts["offsets"].to(device), "facts": numbers}

    def _draw(self, w: Workload, case: Case, shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str) -> torch.Tensor:
        dtype = TORCH_DTYPES[w.dtype]
        if case.rung == "exact":
            return torch.randint(-_MOST, _MOST + 1, shape, generator=rng, device=device).to(dtype)
        if case.name in ("normal", "band", "cancel", "nan", "inf"):
            return normal(shape, rng, device, dtype)
        x = normal(shape, rng, device)
        if case.name == "wide":
            x *= uniform(shape, rng, device).mul_(8).sub_(6).exp2_()
        else:
            x *= 2.0**-63 if w.dtype == "bf16" else 2.0**-13
        return x.to(dtype)

    def _largest_sum(self, w: Workload) -> int:
        """Integers up to here, bias and addend included, are exact in the output."""
        return EXACT_LIMIT[w.dtype] - 2 * _MOST

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return {"y": self._judged(w, inputs)[0]}

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        """The dense layer."""
        steps = w.epilogue.split("+")
        y = F.linear(inputs["x"], inputs["w"], inputs.get("bias"))
        if "silu-mul" in steps:
            y = F.silu(y) * inputs["factor"]
        if "swiglu" in steps:
            y = swiglu(y)
        return {"y": y + inputs["addend"] if "residual" in steps else y}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        """gemm's error, then one rounding to the Workload's type in each step. silu's slope is at most 1.1."""
        info = torch.finfo(TORCH_DTYPES[w.dtype])
        return {"y": self._judged(w, inputs)[1] + float(info.smallest_normal) * float(info.eps)}

    def _judged(self, w: Workload, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """The result in float64, and its error."""
        u_out, u_acc = UNIT_ROUNDOFF[w.dtype], UNIT_ROUNDOFF["fp32"]
        x, weight = inputs["x"].double(), inputs["w"].double()
        y = x @ weight.t()
        error = math.sqrt(max(1, w.axes["K"])) * u_acc * (x.abs() @ weight.abs().t()) + u_out * y.abs()
        for step in w.epilogue.split("+"):
            if step == "bias":
                y = y + inputs["bias"].double()
                error = error + u_out * y.abs()
            elif step in SMOOTH:
                (gate, factor), (of_gate, of_factor) = (
                    (apart(y), apart(error)) if step == "swiglu" else ((y, inputs["factor"].double()), (error, torch.zeros_like(error)))
                )
                silu = F.silu(gate)
                y = silu * factor
                of_silu = 1.1 * of_gate + (4 * u_acc + u_out) * silu.abs()
                error = of_silu * (factor.abs() + of_factor) + of_factor * silu.abs() + u_out * y.abs()
            elif step == "residual":
                y = y + inputs["addend"].double()
                error = error + u_out * y.abs()
        return y, error

    def bound(self, w: Workload) -> float:
        return 2.0

    def error_floor(self, w: Workload) -> float:
        return max(0.5 * UNIT_ROUNDOFF[w.dtype], one_after_the_other(w.axes["K"], w))

    def cost(self, w: Workload) -> Cost:
        """With the weight as a bitmap and its values, the least that holds any mask at half."""
        n, m, k = (w.axes[x] for x in self.axes)
        each = 1 / 8 + DTYPES[w.dtype] * (1 - weights(w).zeros / 100)
        more = sum(spec.numel for spec in self.tensors(w)[5:-1]) * DTYPES[w.dtype]
        out = self.tensors(w)[-1].numel
        return Cost(flops=2.0 * n * m * k, bytes=m * k * each + (n * k + out) * DTYPES[w.dtype] + more, unit=w.dtype)

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        shapes = [(1, 1, 1), (1, 40, 128), (8, 16, 136), (5, 33, 65), (3, 130, 300), (8, 64, 512), (7, 272, 1288)]
        shapes += [(9, 48, 264), (16, 80, 640), (0, 16, 128), (8, 0, 128), (8, 16, 0), (32, 64, 256), (61, 200, 392), (130, 72, 264)]
        if "swiglu" in w.epilogue:
            shapes = [(n, -(-m // (2 * TURN)) * 2 * TURN, k) for n, m, k in shapes]
        return tuple(w.replace(axes=dict(zip(self.axes, s, strict=True))) for s in shapes)

    def alterable(self, w: Workload) -> tuple[str, ...]:
        """All but the weight, which is there twice."""
        return tuple(s.name for s in self.tensors(w) if s.role == "in" and (not s.constant or s.name == "bias"))

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        """1,024 columns of Y: a float64 copy of all of W would take longer than the launch that is checked."""
        y = outputs["y"]
        most = COLUMNS // fewer
        columns = rows = None
        if y.shape[1] > most and "swiglu" in w.epilogue:
            turns = torch.randint(y.shape[1] // TURN, (most // TURN, 1), device=y.device)
            columns = (turns * TURN + torch.arange(TURN, device=y.device)).flatten()
            rows = (turns * 2 * TURN + torch.arange(2 * TURN, device=y.device)).flatten()
        elif y.shape[1] > most:
            columns = rows = torch.randint(y.shape[1], (most,), device=y.device)

        def of_inputs(inputs: Tensors) -> Tensors:
            by = {"w": (0, rows), "bias": (0, rows), "factor": (1, columns), "addend": (1, columns)}
            return {name: picked(t, *by[name]) if name in by else t for name, t in inputs.items()}

        return of_inputs, lambda outputs: {"y": picked(outputs["y"], 1, columns)}

    def rows_workload(self, w: Workload, outputs: Tensors) -> Workload:
        return w.replace(axes=w.axes | {"M": outputs["y"].shape[1] * (2 if "swiglu" in w.epilogue else 1)})


class Unpack(Problem):
    """`unpack`: a compressed weight to a dense one (M x K), bit for bit: what many rows of activations are multiplied with."""

    name = "unpack"
    axes = ("M", "K")
    allocates = False

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        m, k = (w.axes[x] for x in self.axes)
        of = {spec.name: spec for spec in Spmm().tensors(_product(w))}
        return (*(of[name] for name in ("records", "offsets", "facts")), TensorSpec("w", (m, k), w.dtype, "out"))

    def cases(self, w: Workload) -> tuple[Case, ...]:
        names = ("rows", "integer", "banded", "empty-rows")
        return (
            *(Case(name, "exact") for name in names),
            Case("normal", "normal"),
            Case("nan", "adversarial"),
            Case("denormal", "adversarial"),
        )

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        inputs = Spmm().generate(_product(w), case, rng, device)
        return {name: inputs[name] for name in ("records", "offsets", "facts")}

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return {"w": self.eager(w, inputs)["w"].double()}

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        """In PyTorch's operations."""
        device = inputs["records"].device
        out = torch.empty(w.axes["M"], w.axes["K"], dtype=TORCH_DTYPES[w.dtype], device=device)
        facts = {"prefix_bits": int(inputs["facts"][0]), "expected": weights(w).expected, "order": quad_bitmap.ORDERS.index("tile")}
        if out.numel():
            parts = {"records": inputs["records"].view(torch.uint8), "offsets": inputs["offsets"]}
            LAYOUTS[weights(w).layout].unpack(parts, facts, out)
        return {"w": out}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        """Nothing is computed: any difference is an error."""
        return {"w": torch.full_like(reference["w"], 2.0**-150)}

    def bound(self, w: Workload) -> float:
        return 0.5

    def cost(self, w: Workload) -> Cost:
        m, k = (w.axes[x] for x in self.axes)
        size = DTYPES[w.dtype]
        return Cost(flops=0.0, bytes=m * k * (1 / 8 + size * (1 - weights(w).zeros / 100) + size), unit="vector")

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        shapes = [(1, 1), (40, 128), (16, 136), (33, 65), (130, 300), (272, 1288), (0, 128), (16, 0)]
        return tuple(w.replace(axes=dict(zip(self.axes, s, strict=True))) for s in shapes)


def kernel_facts(facts: dict[str, int]) -> tuple[int, int]:
    """What a kernel must know of a layout's facts: bits of a prefix (0 where there is none) and bytes of the largest record."""
    return facts.get("prefix_bits", 0), facts["largest"]


def _packed(dense: torch.Tensor, kept: Weights) -> tuple[Tensors, dict[str, int]]:
    if not dense.numel():
        return {"records": torch.empty(0, dtype=torch.uint8), "offsets": torch.zeros(1, dtype=torch.int32)}, {"largest": 16}
    if kept.layout == "quad":
        return quad_bitmap.pack(dense, expected=kept.expected)
    return three_layer.pack(dense)


def _product(w: Workload) -> Workload:
    """With no row of activations."""
    return Workload(problem="spmm", axes={"N": 0, **w.axes}, dtype=w.dtype, layout=w.layout)


def _kept(kind: str, shape: torch.Size, zeros: int, rng: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """bool (rows, columns), True where a weight is kept; never more than the buffers of a Workload hold."""
    rows, columns = shape
    share = 1 - zeros / 100
    if kind == "banded":
        width, at = int(columns * share), torch.arange(columns, device=device)
        first = torch.arange(rows, device=device)[:, None] * 3 % max(1, columns)
        return (at - first) % max(1, columns) < width
    keep = torch.rand(shape, generator=rng, device=device) < share if kind != "rows" else None
    if keep is None:
        count = int(columns * share)
        scores = torch.rand(shape, generator=rng, device=device)
        least = scores.kthvalue(max(1, columns - count), dim=1, keepdim=True).values if columns else scores
        return scores > least
    if kind == "empty-rows":
        keep &= (torch.arange(rows, device=device) % 5 != 2)[:, None]
        keep[rows // 2 : rows // 2 + 16] = False
    return keep
