"""Is a problem fit to judge kernels by? Finds the faults that let a wrong kernel pass, as benchmarks of generated kernels had them.

METR ("Measuring Automated Kernel Engineering", 2025) found KernelBench problems whose outputs are constant, within tolerance of zero, or
independent of an input; KernelBench issue #165 lists outputs below the absolute tolerance; CUDAHercules' inputs have a short period. Each
check replaces the right output by such a wrong one and asks whether it would pass: here on every case of the ladder (an error), or only
where the file's own inputs meet `allclose`, as other harnesses judge (a warning).
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch

from kernelwright.problems import KERNELBENCH, ProblemError, problem_of
from kernelwright.problems.kernelbench import AS_WRITTEN, RandomOutput
from kernelwright.problems.kernelbench_shrink import Shrunk, halved, load, shrunk
from kernelwright.problems.problem import VENDOR_FACTOR, Case, Problem, Tensors
from kernelwright.problems.redundancy import rank, repetition
from kernelwright.records import DTYPES, Workload

Severity = Literal["error", "warning", "note"]
ALLCLOSE = {"fp32": (1e-4, 1e-2), "fp16": (1e-2,), "bf16": (1e-2,)}
"""Absolute and relative tolerance of other harnesses by dtype: KernelBench's, and the 1e-2 that its first versions and CUDA-L1 use for
fp32 as well."""
BEARABLE = 32.0
"""Times what `shrunk` aims at: 2^25 elements, of which float64 copies take 2 GB and a lint half a minute."""
ENOUGH_ROWS = 128
"""Our own problems treat rows alike: M, N and rows are cut to this."""
LOW_VARIANCE = 0.01
"""Standard deviation over root mean square; robust-kbench asks for a standard deviation above 0.01."""
SATURATED = 0.9
"""Share of outputs that are one and the same value: half of them is what relu does."""
NO_LAW = 0.25
"""An exponent below this is noise; sums of random numbers have 1/2, means and counts 1."""
SENSITIVE_TENSORS = 24
"""At most so many inputs are replaced one by one."""


@dataclass(frozen=True)
class Finding:
    """One fault of a problem."""

    rule: str
    """One of RULES."""
    tensor: str
    """The buffer it is about; empty for the whole problem."""
    text: str
    """One sentence."""
    severity: Severity = "error"
    """error: a wrong kernel passes here, or no kernel can be judged; warning: it passes where the file's inputs meet allclose; note: to
    know."""
    figures: Mapping[str, float | int | str] = field(default_factory=dict)


RULES = {
    "unusable": "the file cannot be made a problem",
    "non-finite": "NaN or infinities on ordinary inputs",
    "random-output": "the reference gives other results on the same inputs: dropout or draws in forward",
    "zeros-pass": "an output of zeros passes",
    "constant-passes": "an output that is everywhere its mean passes",
    "identity-passes": "an input, returned unchanged, passes",
    "replay-passes": "the outputs of other inputs pass: results do not depend on the seed",
    "input-ignored": "other values of an input or parameter change nothing beyond the tolerance",
    "parameter-cancels": "the formula cancels a parameter, a bias before a normalisation for instance",
    "low-variance": "outputs hardly vary beside their size",
    "saturated": "most outputs are one value",
    "fixed-input": "an input is the same under every seed",
    "constant-input": "all elements of an input are equal",
    "degenerate-parameter": "all elements of a parameter are equal (gamma of ones, beta or bias of zeros)",
    "low-rank": "an input's numerical rank is far below its size",
    "repeated-slices": "rows or columns of an input are copies of few",
    "periodic-input": "an input repeats along an axis",
    "memory": "it does not fit on the device",
    "too-large": "it cannot be made small enough to be looked into here",
}
_USERS_FAULT = (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, NameError, AssertionError)
"""What the code of a file may raise on some inputs only."""
_MILD = ("low-variance", "saturated")
"""Never errors: a wrong kernel that they help is found by other rules."""


def lint(w: Workload, device: str = "cpu", seed: int = 0, memory: float = 0.0) -> list[Finding]:
    """Faults of a Workload, gravest first; empty for a sound one. Large ones are looked into at a smaller size. `memory`: bytes of the
    device to judge kernels on; 0 leaves that out. Runs the float64 reference a few times for each input."""
    found = list(_lint(w, device, seed, memory))
    if w.source:
        gc.collect()  # modules stand in cycles, and a folder of files has many large ones; this takes 0.08 s
    return sorted(found, key=lambda f: ("error", "warning", "note").index(f.severity))


def _lint(w: Workload, device: str, seed: int, memory: float) -> Iterator[Finding]:
    if not w.problem.startswith(KERNELBENCH):
        problem = problem_of(w)
        yield from _memory(sum(s.numel * DTYPES[s.dtype] for s in problem.tensors(w)), memory)
        small = w.replace(axes={k: min(v, ENOUGH_ROWS) if k in ("M", "N", "rows") else v for k, v in w.axes.items()})
        yield from _of_own(small, device, seed)
        return
    cut = shrunk(w)
    if cut.full is not None:
        yield from _memory(cut.full.elements * DTYPES[w.dtype], memory)
    if cut.extent is not None and load(cut.extent) > BEARABLE:
        text = f"it has {cut.extent.elements:.3g} elements and no constant at the top of its file makes it smaller: it was not looked into"
        yield Finding("too-large", "", text, "warning", {"elements": cut.extent.elements, "flops": cut.extent.flops})
        return
    try:
        try:
            problem = problem_of(cut.w)
        except RandomOutput as error:
            yield Finding("random-output", "", str(error))
            from kernelwright.problems.kernelbench_repair import without_dropout

            cut = shrunk(without_dropout(w))
            problem = problem_of(cut.w)
    except ProblemError as error:
        yield Finding("unusable", "", str(error))
        return
    linter = _Linter(problem, cut.w, device, seed)
    try:
        found = {(f.rule, f.tensor): f for f in linter.findings()}
        # an error says more than the warning of the same; a case that catches it, less
        written = {(f.rule, f.tensor): f for f in linter.as_written(cut)}
    except _USERS_FAULT as error:
        why = next(iter(str(error).strip().splitlines()), "no reason given")
        yield Finding("unusable", "", f"its forward raises {type(error).__name__} on some inputs: {why}")
        return
    yield from (written | {k: f for k, f in found.items() if f.severity == "error" or k not in written}).values()


@lru_cache(maxsize=256)
def _of_own(small: Workload, device: str, seed: int) -> tuple[Finding, ...]:
    """Remembered, because the members of a suite are often cut to the same: the 1,000 of hgemm-1000 to 40."""
    return tuple(_Linter(problem_of(small), small, device, seed).findings())


def _memory(size: float, memory: float) -> Iterator[Finding]:
    """`size`: bytes of all tensors. A verification holds float64 copies of outputs and inputs beside them, about six times as much."""
    if not memory:
        return
    figures = {"bytes": float(size), "device_bytes": float(memory)}
    gib = f"{size / 2**30:.3g} GiB of {memory / 2**30:.3g} GiB"
    if size > memory:
        yield Finding("memory", "", f"its tensors take {gib}: no kernel can run; make the problem smaller", "error", figures)
    elif 6 * size > memory:
        yield Finding(
            "memory", "", f"its tensors take {gib}, and a float64 reference six times as much: verify at a smaller size", "note", figures
        )


@dataclass(frozen=True)
class _Fault:
    rule: str
    tensor: str
    text: str
    figures: Mapping[str, float | int | str] = field(default_factory=dict)


class _Ladder:
    """Passes what the verifier of kernelwright would pass on one case."""

    shrinkage = 1.0

    def __init__(self, problem: Problem, w: Workload, case: Case, inputs: Tensors, reference: Tensors):
        self.bound = problem.bound(w)
        self.scales = problem.scale(w, inputs, reference)
        self.farthest: dict[str, float] = {}
        """Largest Frobenius norm of an error, on the normal rung: what the vendor's own allows."""
        by_vendor: Tensors = {}
        if case.rung == "normal":
            with contextlib.suppress(*_USERS_FAULT):  # a file's operations may be missing for half types on this device
                by_vendor = problem.eager(w, inputs)
        for name, out in by_vendor.items():
            size = float(reference[name].norm()) or 1.0
            theirs = float((out.double() - reference[name]).nan_to_num(0.0, 0.0, 0.0).norm()) / size
            self.farthest[name] = VENDOR_FACTOR * max(theirs, problem.error_floor(w)) * size
        self.where = ""

    def passes(self, name: str, output: torch.Tensor, ref: torch.Tensor) -> bool:
        error = output.double() - ref
        if float(error.norm()) > self.farthest.get(name, math.inf):
            return False
        return bool((error.abs() <= self.bound * self.scales[name]).all())


class _Allclose:
    """Passes what torch.allclose passes with atol = rtol = `tolerance`."""

    def __init__(self, tolerance: float, shrinkage: float = 1.0):
        self.tolerance, self.shrinkage = tolerance, shrinkage
        self.where = f" where harnesses use allclose with a tolerance of {tolerance:g}"

    def passes(self, name: str, output: torch.Tensor, ref: torch.Tensor) -> bool:
        return torch.allclose(output.double() * self.shrinkage, ref * self.shrinkage, atol=self.tolerance, rtol=self.tolerance)


class _Linter:
    """One Workload of bearable size."""

    def __init__(self, problem: Problem, w: Workload, device: str, seed: int):
        self.problem, self.w, self.device = problem, w, device
        self.rng = torch.Generator(device).manual_seed(seed)
        self.parameters = set(getattr(problem, "state_names", ()))

    def findings(self) -> Iterator[Finding]:
        """By the ladder's own rule and inputs: a fault of every case is an error, one of the normal case alone a warning."""
        cases = [c for c in self.problem.cases(self.w) if c.rung != "exact"]
        everywhere: dict[tuple[str, str], int] = {}
        normal: dict[tuple[str, str], _Fault] = {}
        looked_at = 0
        for case in cases:
            if case.rung == "adversarial" and not normal:
                break  # nothing to confirm
            inputs = self._draw(case)
            if not all(bool(torch.isfinite(x).all()) for x in inputs.values()):
                continue
            looked_at += 1
            for fault in {(f.rule, f.tensor): f for f in self._faults(case, inputs)}.values():
                everywhere[fault.rule, fault.tensor] = everywhere.get((fault.rule, fault.tensor), 0) + 1
                if case.rung == "normal" and looked_at == 1:
                    normal[fault.rule, fault.tensor] = fault
            if looked_at == 1 and not normal:
                return
        for key, f in normal.items():
            caught = everywhere[key] < looked_at and f.rule != "non-finite"
            text = f"{f.text}; other cases of the ladder catch it" if caught else f.text
            severity = "note" if f.rule == "parameter-cancels" else "warning" if caught or f.rule in _MILD else "error"
            yield Finding(f.rule, f.tensor, text, severity, f.figures)

    def _draw(self, case: Case) -> Tensors:
        return self.problem.generate(self.w, case, self.rng, self.device)

    def _faults(self, case: Case, inputs: Tensors) -> Iterator[_Fault]:
        reference = self.problem.reference(self.w, inputs)
        if bad := {name: n for name, ref in reference.items() if (n := int((~torch.isfinite(ref)).sum()))}:
            for name, n in bad.items():
                text = f"{n} of {reference[name].numel()} elements of {name} are NaN or infinite on ordinary inputs"
                yield _Fault("non-finite", name, text, {"count": n})
            return
        yield from self._random(inputs, reference)
        judge = _Ladder(self.problem, self.w, case, inputs, reference)
        others = self._draw(case)
        yield from self._wrong_outputs(judge, reference, inputs, others)
        yield from _shape_of_outputs(reference)
        yield from _redundancy(inputs, others, {s.name for s in self.problem.tensors(self.w)})

    def as_written(self, cut: Shrunk) -> Iterator[Finding]:
        """A KernelBench file's own inputs and parameters under allclose, the tolerance that its dtype is judged by first; what the strict
        one passes is not said again of the loose one."""
        inputs, others = self._draw(AS_WRITTEN), self._draw(AS_WRITTEN)
        reference = self.problem.reference(self.w, inputs)
        if not all(bool(torch.isfinite(ref).all()) for ref in reference.values()):
            return
        said: set[tuple[str, str]] = set()
        shrinkage = _shrinkage(cut, self.device)
        for tolerance in ALLCLOSE[self.w.dtype]:
            judge = _Allclose(tolerance, shrinkage)
            strict = tolerance == ALLCLOSE[self.w.dtype][0]
            if strict:
                faults = self._wrong_outputs(judge, reference, inputs, others)
            else:
                faults = (*_outputs(judge, reference, inputs), *self._replay(judge, reference, inputs, others))
            for f in faults:
                if (f.rule, f.tensor) not in said:
                    said.add((f.rule, f.tensor))
                    how = "" if shrinkage == 1 else f" (at full size about {shrinkage:.2g} times what it is at the size looked into)"
                    if f.rule == "parameter-cancels":
                        continue  # said already
                    yield Finding(
                        f.rule,
                        f.tensor,
                        f.text + judge.where + how,
                        "warning",
                        {**f.figures, "tolerance": tolerance, "shrinkage": shrinkage},
                    )
        yield from self._degenerate(inputs)

    def _degenerate(self, inputs: Tensors) -> Iterator[Finding]:
        """Parameters as the file has them; the ladder draws them anew."""
        state = getattr(self.problem, "state_names", {})
        parameters = dict(self.problem.model.named_parameters())  # pyright: ignore[reportAttributeAccessIssue]: a KernelBench problem
        for name, path in state.items():
            x = inputs[name]
            if path in parameters and x.numel() > 1 and bool((x == x.flatten()[0]).all()):
                value = float(x.flatten()[0])
                text = f"every element of {path} is {value:g}: a kernel that leaves it out passes on the file's own parameters"
                yield Finding("degenerate-parameter", name, text, "warning", {"value": value})

    def _random(self, inputs: Tensors, reference: Tensors) -> Iterator[_Fault]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=self.rng, device=self.rng.device)))
            again = self.problem.reference(self.w, inputs)
        for name, ref in reference.items():
            if not torch.allclose(again[name], ref, rtol=1e-9, atol=1e-12):
                largest = float((again[name] - ref).abs().max())
                text = f"{name} differs by up to {largest:.3g} between two runs of the reference on the same inputs"
                yield _Fault("random-output", name, text, {"difference": largest})

    def _wrong_outputs(self, judge: _Ladder | _Allclose, reference: Tensors, inputs: Tensors, others: Tensors) -> Iterator[_Fault]:
        faults = list(_outputs(judge, reference, inputs))
        yield from faults
        constant = {f.tensor for f in faults if f.rule in ("zeros-pass", "constant-passes")}
        if not constant >= {name for name, ref in reference.items() if ref.numel()}:  # a constant depends on nothing
            yield from self._replay(judge, reference, inputs, others)
            yield from self._dependence(judge, reference, inputs, others)

    def _replay(self, judge: _Ladder | _Allclose, reference: Tensors, inputs: Tensors, others: Tensors) -> Iterator[_Fault]:
        """Whether outputs depend on all inputs together."""
        if all(torch.equal(x, others[k]) for k, x in inputs.items()):
            return
        for name, out in self.problem.reference(self.w, others).items():
            if out.numel() and judge.passes(name, out, reference[name]):
                text = f"the outputs of other inputs pass for {name}: a kernel may return a result that it has stored"
                yield _Fault("replay-passes", name, text)

    def _dependence(self, judge: _Ladder | _Allclose, reference: Tensors, inputs: Tensors, others: Tensors) -> Iterator[_Fault]:
        """Whether outputs depend on each input at all."""
        rng = torch.Generator().manual_seed(0)
        names = [k for k, x in inputs.items() if x.numel()]
        for i in torch.randperm(len(names), generator=rng)[:SENSITIVE_TENSORS].sort().values.tolist():
            name = names[i]
            x, other = inputs[name], others[name]
            if torch.equal(x, other):  # fixed by the file
                if not x.is_floating_point():
                    continue
                other = x + (x.abs().max() or 1.0) * (torch.rand(x.shape, generator=self.rng, device=self.device) - 0.5)
                other = other.to(x.dtype)
            changed = self.problem.reference(self.w, inputs | {name: other})
            if all(judge.passes(key, out, reference[key]) for key, out in changed.items()):
                largest = max(float((out - reference[key]).abs().max()) for key, out in changed.items() if out.numel())
                size = max(float(ref.abs().max()) for ref in reference.values() if ref.numel())
                if name in self.parameters and largest <= 1e-9 * size:
                    yield _Fault("parameter-cancels", name, f"{name} cancels in the formula: a kernel that leaves it out is right")
                else:
                    text = f"other values of {name} change the outputs by at most {largest:.3g}: a kernel need not read it"
                    yield _Fault("input-ignored", name, text, {"change": largest})


def _shrinkage(cut: Shrunk, device: str) -> float:
    """Size of the outputs (their rms) at full size over that at the small one: where it falls with a power of a size, as a mean's does,
    that law is taken from a run at half of that size, and from another draw, the weaker one of the two."""

    def size(w: Workload, seed: int) -> float:
        problem = problem_of(w)
        return _rms(problem.reference(w, problem.generate(w, AS_WRITTEN, torch.Generator(device).manual_seed(seed), device)))

    share = 1.0
    here = [size(cut.w, seed) for seed in range(2)] if cut.changes else []
    for name, value in cut.changes.items():
        less = halved(cut, name)
        if less is None or not all(here):
            continue
        try:
            there = [size(less, seed) for seed in range(2)]
        except ProblemError:
            continue
        slope = min(math.log2(b / a) if b > 0 else 0.0 for a, b in zip(here, there, strict=True))
        if slope > NO_LAW:
            share *= (value / cut.before[name]) ** slope
    return share


def _rms(outputs: Tensors) -> float:
    return max((float(y.square().mean().sqrt()) for y in outputs.values() if y.numel()), default=0.0)


def _outputs(judge: _Ladder | _Allclose, reference: Tensors, inputs: Tensors) -> Iterator[_Fault]:
    for name, ref in reference.items():
        if not ref.numel():
            continue
        largest, mean = float(ref.abs().max()), float(ref.mean())
        if judge.passes(name, torch.zeros_like(ref), ref):
            yield _Fault(
                "zeros-pass", name, f"an output of zeros passes for {name}, whose largest value is {largest:.3g}", {"largest": largest}
            )
        elif ref.numel() > 1 and judge.passes(name, torch.full_like(ref, mean), ref):
            yield _Fault("constant-passes", name, f"the constant {mean:.3g} passes for {name}: it hardly varies", {"constant": mean})
        if judge.shrinkage != 1:
            continue  # the inputs are not of that size
        for key, x in inputs.items():
            if x.shape == ref.shape and x.is_floating_point() and judge.passes(name, x, ref):
                yield _Fault("identity-passes", name, f"returning {key} unchanged passes for {name}: use inputs on which they differ")


def _shape_of_outputs(reference: Tensors) -> Iterator[_Fault]:
    for name, ref in reference.items():
        if ref.numel() < 64:
            continue
        size, spread = float(ref.square().mean().sqrt()), float(ref.std())
        if 0 < spread < LOW_VARIANCE * size:
            text = f"{name} varies by {spread:.3g} only beside values of {size:.3g}"
            yield _Fault("low-variance", name, text, {"std": spread, "rms": size})
        common = ref.flatten()[: 2**16].float()
        value = float(common.mode().values)
        share = float((common == value).float().mean())
        if share >= SATURATED:
            yield _Fault("saturated", name, f"{share:.0%} of {name} are {value:g}", {"share": share, "value": value})


def _redundancy(inputs: Tensors, others: Tensors, wanted: Iterable[str]) -> Iterator[_Fault]:
    for name, x in inputs.items():
        if name not in wanted or x.numel() < 16:
            continue
        if x.is_floating_point() and torch.equal(x, others[name]):
            yield _Fault("fixed-input", name, f"{name} is the same under every seed: a kernel may hold what it leads to")
        if bool((x == x.flatten()[0]).all()):
            yield _Fault("constant-input", name, f"every element of {name} is {float(x.flatten()[0]):g}")
            continue
        for r in repetition(x):
            figures = {"axis": r.axis, "slices": r.slices, "distinct": r.distinct, "period": r.period}
            if r.period:
                yield _Fault("periodic-input", name, f"{name} repeats with period {r.period} along axis {r.axis}", figures)
            else:
                text = f"{name} has {r.distinct} distinct slices among {r.slices} along axis {r.axis}: a kernel may compute them and copy"
                yield _Fault("repeated-slices", name, text, figures)
        found = rank(x)
        if found and found[0] < 0.9 * found[1]:
            text = f"a block of {name} has rank {found[0]} of {found[1]}: a product of thin factors passes"
            yield _Fault("low-rank", name, text, {"rank": found[0], "of": found[1]})
