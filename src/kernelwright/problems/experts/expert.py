"""The form of a problem of the suite `experts`: what its author writes, and what follows from it.

How to add one. Subclass `Expert` in the file of its domain, fill in the attributes, write three methods, and name the class in the table
of `problems/experts/__init__.py`:

    class Softmax(Expert):
        title, kind, domain = "softmax", "kernel", "normalisation"
        formula = "exp(x - max) / sum(exp(x - max)), along the row"
        axes = ("rows", "cols")
        inputs, outputs = {"x": "rows cols"}, {"y": "rows cols"}          # dimensions are axes, integers or expressions over axes
        full, tiny = ((4096, 4096),), ((3, 17), (1, 1), (0, 8))           # sizes for a GPU; for tests and the rung `shapes`
        independent = {"rows": 64}                                        # parts of the outputs that can be looked at alone
        tolerance = "one rounding of the output, and of exp and the sum in float32"

        def define(self, n, x):          # the formula, step by step, in whatever precision it is given: float64 is the reference
            e = torch.exp(x - x.amax(-1, keepdim=True))
            return e / e.sum(-1, keepdim=True)

        def eager_form(self, n, x):      # as PyTorch users write it; left out, it is `define`
            return F.softmax(x, -1)

        def second(self, n, x):          # once more in numpy float64, by another way: the check of the reference
            return ...

        mistakes = {"sum of the next row": lambda p, n, x: p.eager_form(n, x=x).roll(1, 0)}

`n` has the sizes as attributes (`n.rows`) besides `n.dtype`. Methods take the inputs by name and return one tensor or a tuple of them, in
the order of `outputs`. Suffixes of a shape set a dtype other than the Workload's ("tokens : int64"). Inputs that are not normal values
(indices, scales) are drawn by `draw`. What is computed by a product or sum of `degree` inputs sets it and `terms`: it then has an exact
rung and an error scale of its own. The expert rivals stand in `rivals/experts/`, under the same title.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from kernelwright.plan import Names, evaluate
from kernelwright.problems.draws import normal, place, uniform
from kernelwright.problems.problem import (
    TORCH_DTYPES,
    UNIT_ROUNDOFF,
    Case,
    Cost,
    Pick,
    Problem,
    Tensors,
    TensorSpec,
    everything,
)
from kernelwright.problems.rounding import error_scale
from kernelwright.records import DTYPES, Workload

EXPERT = "expert:"
EXACT_SUM = 2**24
"""Integers up to here are exact in a float32 accumulator."""
LARGEST_FP16 = 60000
EXACT_INPUT = {"fp8": 2**4, "bf16": 2**8, "fp16": 2**11, "fp32": 2**20}
"""Integers up to here are exact in the type."""

Sizes = Any
"""A SimpleNamespace: one integer attribute an axis, and `dtype`, the Workload's as torch names it."""
Mistake = Callable[..., Any]


class Expert(Problem):
    """One problem of the suite; subclasses are the entries."""

    title: ClassVar[str]
    """`softmax`: the name without its prefix."""
    kind: ClassVar[Literal["kernel", "module", "application", "challenge"]]
    domain: ClassVar[str]
    formula: ClassVar[str]
    """One line."""
    tolerance: ClassVar[str]
    """What the error scale allows for, and why."""
    inputs: ClassVar[Mapping[str, str]]
    outputs: ClassVar[Mapping[str, str]]
    dtypes: ClassVar[tuple[str, ...]] = ("bf16", "fp16", "fp32")
    """Types that a Workload may have, the suite's own first."""
    full: ClassVar[tuple[tuple[int, ...], ...]]
    """Sizes for a GPU."""
    tiny: ClassVar[tuple[tuple[int, ...], ...]]
    """Sizes for tests, for the lint (the first) and for the rung `shapes`: tails, ones, zeros where the problem has them."""
    least_sm: ClassVar[int] = 0
    """Least compute capability (89 for fp8) of a GPU; 0 for any."""
    unit: ClassVar[str] = ""
    """Of the roofline (`Cost.unit`); empty: the Workload's dtype."""
    independent: ClassVar[Mapping[str, int]] = {}
    """Axes along which outputs do not depend on each other, and how many of each a screen looks at. Such an axis stands in shapes by
    itself, never in an expression."""
    adversarial: ClassVar[tuple[str, ...]] = ("small", "nan")
    normals: ClassVar[tuple[str, ...]] = ("normal", "spread")
    spread: ClassVar[float] = 5.0
    """Binary orders of magnitude, up and down, of the case `spread`."""
    degree: ClassVar[int] = 0
    """Outputs are sums of products of so many inputs each (1: sums); 0 for other functions."""
    exact_sum: ClassVar[float] = EXACT_SUM
    """Integers up to here are exact in every accumulator that is allowed."""
    accumulator: ClassVar[float] = 0.0
    """Unit roundoff of the accumulator where it is not that of the Workload's type."""
    exactly: ClassVar[tuple[str, ...]] = ()
    """Outputs that are chosen or counted, not computed: compared bit by bit."""
    steps: ClassVar[Literal["accumulate", "output"]] = "accumulate"
    """Precision of intermediate results: the accumulator's, or the output's where PyTorch's separate operations round in between."""
    weights: ClassVar[tuple[str, ...]] = ()
    """Inputs drawn small enough, by the root of their last axis, that a product with them has values of its other operand's size."""
    drawn_anew: ClassVar[tuple[str, ...]] = ()
    """Inputs whose values may not change places between timed launches. All of them, where one column that moved would go unnoticed: its
    effect is within the tolerance of a long sum, leaves most maxima what they are, or stays in a column that is seldom looked at. Old
    results would pass then."""
    coarse_shows: ClassVar[bool] = True
    """Whether inputs of half the precision give results that must be rejected."""
    mistakes: ClassVar[Mapping[str, Mistake]] = {}
    """Wrong kernels: f(problem, sizes, **inputs) -> outputs. The suite's own check proves that each is rejected."""
    allocates = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "title" in cls.__dict__:
            cls.name = EXPERT + cls.title

    # ------------------------------------------------------------------------------------------------ what an author writes

    def define(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        """The formula; float64 inputs give the reference."""
        raise NotImplementedError

    def eager_form(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        """As a PyTorch user writes it."""
        return self.define(n, *args, **inputs)

    def second(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        """Outputs once more, by other means: numpy arrays, float64 (integers stay integers)."""
        raise NotImplementedError

    def draw(self, n: Sizes, case: str, spec: TensorSpec, rng: torch.Generator, device: Any) -> torch.Tensor:
        """An input of a case, in any type: overridden for those that are not normal values (indices, scales)."""
        if case == "integer":
            # every partial sum, in any order, is an integer that the accumulator and the output hold
            limit = min(self.exact_sum, LARGEST_FP16 if n.dtype == torch.float16 else EXACT_SUM)
            terms = max(1, self.terms(n))
            q = min(int((limit / terms) ** (1 / self.degree) + 1e-9), EXACT_INPUT[spec.dtype])
            x = torch.randint(-max(1, q), max(1, q) + 1, spec.shape, generator=rng, device=device)
            return x if q else x * (torch.rand(spec.shape, generator=rng, device=device) < limit / terms)
        x = normal(spec.shape, rng, device)
        if case == "spread":
            x *= uniform(spec.shape, rng, device).mul_(2 * self.spread).sub_(self.spread).exp2_()
        elif case == "small":
            x *= 2.0**-8
        elif case == "large":
            # exp overflows float32 above 88: a maximum must be subtracted, tanh and sigmoid saturate
            x = x.sign() * 100 + x
        return x * spec.shape[-1] ** -0.5 if spec.name in self.weights and spec.shape[-1] else x

    def magnitudes(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        """Of a sum of products (`degree`): the sum of the magnitudes of its terms, from the inputs' magnitudes."""
        return self.define(n, *args, **inputs)

    def cancelling(self, n: Sizes, *args: Any, **inputs: Any) -> Any:
        """For outputs in which large terms cancel by nature, a softmax less one for instance: the size of those terms, of which a rounding
        more is allowed. Of large outputs there are few draws of Monte Carlo arithmetic, and in one row of many all of them miss it. None:
        nothing of the kind."""
        return None

    def largest_step(self, n: Sizes) -> int:
        """Elements of the largest intermediate result of `define`, where it has more than the tensors."""
        return 0

    def terms(self, n: Sizes) -> int:
        """Terms of the longest sum on the way to an output."""
        return 1

    def flops(self, n: Sizes) -> float:
        """Least floating-point operations."""
        raise NotImplementedError

    def traffic(self, w: Workload) -> float:
        """Least bytes moved: less than all tensors where only a part of an input is read."""
        return float(sum(s.numel * DTYPES[s.dtype] for s in self.tensors(w)))

    def refuses(self, w: Workload) -> str | None:
        """Why there is no such Workload, as a clause after the name; None for one that is defined."""
        return None

    # ------------------------------------------------------------------------------------------------ what follows from it

    def sizes(self, w: Workload) -> Sizes:
        return SimpleNamespace(**w.axes, dtype=TORCH_DTYPES[w.dtype])

    def workload(self, sizes: tuple[int, ...], dtype: str = "") -> Workload:
        axes = dict(zip(self.axes, sizes, strict=True))
        return Workload(problem=self.name, axes=axes, dtype=dtype or self.dtypes[0])

    def arguments(self, w: Workload) -> list[Any]:
        """The sizes, in the order of the axes."""
        return list(w.axes.values())

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        names = Names(w.axes)
        roles = ((self.inputs, "in"), (self.outputs, "out"))
        return tuple(_spec(name, text, role, names, w.dtype) for table, role in roles for name, text in table.items())  # pyright: ignore[reportArgumentType]

    def cases(self, w: Workload) -> tuple[Case, ...]:
        exact = (Case("integer", "exact"),) if self.degree else ()
        return (*exact, *(Case(c, "normal") for c in self.normals), *(Case(c, "adversarial") for c in self.adversarial))

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        n, found = self.sizes(w), {}
        for spec in self.tensors(w):
            if spec.role == "in":
                x = self.draw(n, case.name, spec, rng, device)
                if case.name == "nan" and not spec.dtype.startswith("int") and not any(y.is_floating_point() for y in found.values()):
                    place(x, math.nan, rng)
                found[spec.name] = x.to(TORCH_DTYPES[spec.dtype])
        return found

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return {k: v.double() for k, v in self._defined(w, inputs).items()}

    def _defined(self, w: Workload, inputs: Tensors) -> Tensors:
        return self.named(self.define(self.sizes(w), **{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}))

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        return self.eager_function(w)(inputs)

    def eager_function(self, w: Workload) -> Callable[[Tensors], Tensors]:
        n, types = self.sizes(w), [(s.name, TORCH_DTYPES[s.dtype]) for s in self.tensors(w) if s.role == "out"]

        def function(inputs: Tensors) -> Tensors:
            results = self.eager_form(n, **inputs)
            results = results if isinstance(results, tuple) else (results,)
            return {name: result.to(dtype) for (name, dtype), result in zip(types, results, strict=True)}

        return function

    def named(self, results: Any) -> Tensors:
        return dict(zip(self.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def in_type(self, w: Workload, outputs: Tensors) -> Tensors:
        """Outputs in the types that the Workload stores them in."""
        return {s.name: outputs[s.name].to(TORCH_DTYPES[s.dtype]) for s in self.tensors(w) if s.role == "out"}

    def check(self, w: Workload, inputs: Tensors) -> Tensors:
        """Outputs of the second implementation, float64."""
        wide = {k: v.double().numpy() if v.is_floating_point() else v.numpy() for k, v in inputs.items()}
        found = self.named(self.second(self.sizes(w), **wide))
        return {k: torch.from_numpy(np.array(v, dtype=np.float64)) for k, v in found.items()}

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        types = {s.name: s.dtype for s in self.tensors(w)}
        if all(name in self.exactly for name in reference):
            found: Tensors = {}
        elif self.degree:
            # sqrt(terms) roundings of a random walk, each of at most the sum of magnitudes
            n = self.sizes(w)
            walk = math.sqrt(max(1, self.terms(n))) * (self.accumulator or UNIT_ROUNDOFF[w.accumulate])
            positive = {k: v.double().abs() if v.is_floating_point() else v for k, v in inputs.items()}
            sums = self.named(self.magnitudes(n, **positive))
            found = {
                k: UNIT_ROUNDOFF[types[k]] * ref.abs() + walk * sums[k].abs() + _tiny(types[k])
                for k, ref in reference.items()
                if k not in self.exactly
            }
        else:
            steps = w.accumulate if self.steps == "accumulate" else w.dtype
            found = {}
            computed = {k: ref for k, ref in reference.items() if k not in self.exactly}
            for dtype in dict.fromkeys(types[k] for k in computed):
                of_type = {k: ref for k, ref in computed.items() if types[k] == dtype}
                function = partial(self._computed, w, tuple(of_type))
                found |= error_scale(function, inputs, of_type, dtype, steps)
            wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
            if (sizes := self.cancelling(self.sizes(w), **wide)) is not None:
                for name, size in self.named(sizes).items():
                    found[name] = found[name] + UNIT_ROUNDOFF[steps] * size.nan_to_num(0.0, 0.0, 0.0)
        return found | {k: torch.full_like(reference[k], 0.25 / self.bound(w) * _least(types[k])) for k in self.exactly}

    def _computed(self, w: Workload, names: tuple[str, ...], inputs: Tensors) -> Tensors:
        outputs = self._defined(w, inputs)
        return {k: outputs[k] for k in names}

    def bound(self, w: Workload) -> float:
        """Sums walk in the accumulator's type; the scale is of the coarser type that steps or outputs are rounded to, if there is one."""
        if self.degree:
            return 2.0
        steps = w.accumulate if self.steps == "accumulate" else w.dtype
        finest = min((UNIT_ROUNDOFF[s.dtype] for s in self.tensors(w) if s.role == "out" and s.dtype in UNIT_ROUNDOFF), default=0.0)
        walk = math.sqrt(max(1, self.terms(self.sizes(w))))
        return 16.0 + walk * UNIT_ROUNDOFF[w.accumulate] / max(UNIT_ROUNDOFF[steps], finest)

    def error_floor(self, w: Workload) -> float:
        sums = 0.5 * math.sqrt(max(1, self.terms(self.sizes(w)))) * (self.accumulator or UNIT_ROUNDOFF[w.accumulate])
        widest = max((UNIT_ROUNDOFF[s.dtype] for s in self.tensors(w) if s.role == "out" and s.dtype in UNIT_ROUNDOFF), default=0.0)
        return max((1.0 if self.degree else 4.0) * widest, sums)

    def cost(self, w: Workload) -> Cost:
        return Cost(flops=float(self.flops(self.sizes(w))), bytes=self.traffic(w), unit=self.unit or w.dtype)

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        return tuple(w.replace(axes=dict(zip(self.axes, s, strict=True))) for s in self.tiny)

    def smaller(self, w: Workload) -> Workload:
        return w.replace(axes=dict(zip(self.axes, self.tiny[0], strict=True)))

    def alterable(self, w: Workload) -> tuple[str, ...]:
        if w.axes.get("rows") == 1:  # the only row would be turned around, which leaves its sum as it was
            return ()
        return tuple(name for name in self.inputs if name not in self.drawn_anew)

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        device = next(iter(outputs.values())).device
        picked = {
            axis: torch.randint(w.axes[axis], (most,), device=device)
            for axis, limit in self.independent.items()
            if w.axes[axis] > (most := max(1, limit // fewer))
        }
        if not picked:
            return everything, everything
        return partial(self._part, self.inputs, picked), partial(self._part, self.outputs, picked)

    @staticmethod
    def _part(table: Mapping[str, str], picked: Mapping[str, torch.Tensor], tensors: Tensors) -> Tensors:
        found = {}
        for name, text in table.items():
            x = tensors[name]
            for dim, axis in enumerate(text.partition(":")[0].split()):
                if axis in picked:
                    # as bytes: not every PyTorch selects fp8 on a GPU
                    plain = x.view(torch.uint8) if x.element_size() == 1 else x
                    x = plain.index_select(dim, picked[axis]).view(x.dtype)
            found[name] = x
        return found

    def rows_workload(self, w: Workload, outputs: Tensors) -> Workload:
        found = dict(w.axes)
        for name, text in self.outputs.items():
            for size, axis in zip(outputs[name].shape, text.partition(":")[0].split(), strict=True):
                if axis in self.independent:
                    found[axis] = size
        return w.replace(axes=found)

    def unfit(self, w: Workload, sm: int, memory: float) -> str | None:
        """Why a device cannot judge it, as a sentence; None if it can. `sm`: capability, 90 for 9.0, 0 on a CPU; `memory`: bytes."""
        if 0 < sm < self.least_sm:
            return f"{self.name} needs compute capability {_architecture(self.least_sm)}, and this GPU has {_architecture(sm)}"
        if (needed := self.memory(w)) > memory:
            return f"verifying {w.name} takes about {needed / 2**30:.1f} GiB, and there are {memory / 2**30:.1f} GiB"
        return None

    def memory(self, w: Workload) -> float:
        """Bytes of a device that verifying every element takes, about: the tensors, three float64 copies of each for the reference and its
        scale, and six of the largest intermediate result, which are alive together under Monte Carlo arithmetic."""
        specs = self.tensors(w)
        return float(sum(s.numel * (DTYPES[s.dtype] + 24) for s in specs) + 48 * self.largest_step(self.sizes(w)))


def _architecture(sm: int) -> str:
    return f"{sm // 10}.{sm % 10}"


def complexes(x: torch.Tensor) -> torch.Tensor:
    """(..., 2) as complex numbers, which lie on even addresses only."""
    return torch.view_as_complex(x.contiguous() if x.storage_offset() % 2 == 0 else x.clone())


def _spec(name: str, text: str, role: Literal["in", "out"], names: Names, dtype: str) -> TensorSpec:
    shape, _, own = text.partition(":")
    return TensorSpec(name, tuple(evaluate(x, names) for x in shape.split()), own.strip() or dtype, role)


def _tiny(dtype: str) -> float:
    """Below the normal numbers every rounding costs up to half a spacing."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return float(info.smallest_normal) * float(info.eps) + 2.0**-126


def _least(dtype: str) -> float:
    """No two values of the type are nearer than this."""
    return 1.0 if dtype.startswith("int") else 2.0**-149
