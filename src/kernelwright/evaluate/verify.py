"""The correctness ladder: is the candidate right, on inputs that it cannot have seen, and did it touch only what it may?

Rungs (docs/verification.md explains each): exact, normal, adversarial, repeat, chain, shapes; guard bands, poison and unchanged inputs are
checked in every run of every rung. References are computed in float64, after the candidate has run.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kernelwright.evaluate.buffers import INTEGERS, Buffers, Shape
from kernelwright.evaluate.drawn import drawn_shapes
from kernelwright.evaluate.jobs import SCREEN_RUNGS
from kernelwright.problems.problem import VENDOR_FACTOR, Case, Problem, Tensors
from kernelwright.problems.validators import Finding
from kernelwright.records import Check, Outcome, Workload
from kernelwright.targets.target import CandidateFault, Contender, DeviceLost

DRAWN = 4
"""Shapes that the `shapes` rung draws beside the list: of a kernel that leaves out tails of 16 one in ten shows nothing."""
FEW, MUCH = 64, 1 / 16
"""An output of fewer elements is held against the vendor's error only where its own is much, as a share of its bound: the norm of a few
says little. One element that was nearly zero, as a gelu's may be, was off by 2.04 times the vendor's, at 1.5 % of its bound."""
Loader = Callable[[Workload, Buffers], Contender]
"""Loads the candidate for a Workload on its buffers; raises CandidateFault."""
MakeBuffers = Callable[[Workload, Shape], Buffers]


@dataclass(frozen=True)
class Judged:
    """Comparison of one output set with its reference."""

    passed: bool
    error: float
    bound: float
    vendor_ratio: float | None
    note: str = ""
    score: float | None = None
    """What an open challenge measures of it."""


@dataclass(frozen=True)
class Expected:
    """What a Workload's outputs should be on certain inputs."""

    reference: Tensors
    scales: Tensors | None
    """None: the outputs must be bit-equal to the rounded reference."""
    by_vendor: Tensors | None
    bound: float
    validate: Callable[[Tensors], Finding] | None = None
    """Judges outputs in place of all this, where the problem has a check of its own."""


def expect(problem: Problem, w: Workload, inputs: Tensors, *, exact: bool = False, vendor: bool = False) -> Expected:
    """From inputs on any device, of any strides."""
    plain = {k: v.contiguous() for k, v in inputs.items()}
    if problem.validates:
        return Expected({}, None, None, 0.0, partial(problem.validate, w, plain))
    reference = problem.reference(w, plain)
    return Expected(
        reference=reference,
        scales=None if exact else problem.scale(w, plain, reference),
        by_vendor=problem.eager(w, plain) if vendor and not exact else None,
        bound=0.0 if exact else problem.bound(w),
    )


def compare(problem: Problem, w: Workload, expected: Expected, outputs: Tensors) -> Judged:
    """Outputs against what is expected of them. Each output's figures are fetched from the device at once: on a GPU a fetch takes as long
    as ten of the kernels that compute them."""
    if expected.validate is not None:
        found = expected.validate({k: v.contiguous() for k, v in outputs.items()})
        return Judged(found.passed, found.error, found.bound, None, found.note, found.score)
    worst, ratio = 0.0, None
    for name, out in outputs.items():
        if out.numel() == 0:
            continue
        ref, got = expected.reference[name], out.contiguous()
        rounded = ref.to(out.dtype)
        # infinities and NaN must stand exactly where the reference, rounded to the output type, has them
        special = ~torch.isfinite(rounded)
        same = torch.where(torch.isnan(rounded), torch.isnan(got), got == rounded)
        if expected.scales is None:
            if bool(same.all()):
                continue
            error = float((got.double() - ref).abs().nan_to_num(0.0, 0.0, 0.0).max())
            return Judged(False, error, 0.0, None, _where(name, ~same, got, rounded))
        misplaced = torch.where(special, ~same, ~torch.isfinite(got))
        difference = (got.double() - ref).masked_fill_(special, 0.0)
        error = (difference.abs() / expected.scales[name].clamp_min(1e-300)).masked_fill_(special, 0.0)
        figures = [misplaced.any(), error.max(), difference.norm()]
        if expected.by_vendor is not None:
            size = ref.masked_fill(special, 0.0).norm()
            figures += [size, (expected.by_vendor[name].double() - ref).masked_fill(special, 0.0).norm()]
        wrong, largest, *norms = torch.stack([f.double() for f in figures]).tolist()
        if wrong:
            return Judged(False, math.inf, expected.bound, None, _where(name, misplaced, got, rounded))
        worst = max(worst, largest)
        if not largest <= expected.bound:
            return Judged(False, largest, expected.bound, None, _where(name, error > expected.bound, got, rounded))
        if expected.by_vendor is not None and (out.numel() >= FEW or largest > MUCH * expected.bound):
            ours, size, theirs = norms
            ours, theirs = (_relative(norm, size) for norm in (ours, theirs))
            share = ours / max(theirs, problem.error_floor(w))
            ratio = max(ratio or 0.0, share)
            if share > VENDOR_FACTOR:
                note = f"{name}: relative error {ours:.3g}, the vendor's is {theirs:.3g}"
                return Judged(False, worst, expected.bound, share, note)
    return Judged(True, worst, expected.bound, ratio)


def _relative(norm: float, size: float) -> float:
    """Frobenius norm of an error over that of the reference."""
    value = norm / size if size > 0 else norm
    return value if math.isfinite(value) else math.inf


def _where(name: str, wrong: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    count = int(wrong.sum())
    at = tuple(int(i) for i in wrong.nonzero()[0])
    index = ", ".join(map(str, at))
    return (
        f"{count} of {wrong.numel()} elements of {name} are wrong, first {name}[{index}] = {float(got[at]):.6g}, want {float(want[at]):.6g}"
    )


@dataclass
class Climber:
    """A contender on its way up the ladder."""

    contender: Contender
    load: Loader
    note: Callable[[str], None]
    """Says what is being done with it: who is to blame if the process dies or hangs now."""
    checks: list[Check] = field(default_factory=list)
    fault: CandidateFault | None = None
    """What ended its climb."""

    @contextmanager
    def climbing(self) -> Iterator[None]:
        """Keeps a fault; a lost device is the end of all."""
        try:
            yield
        except DeviceLost:
            raise
        except CandidateFault as fault:
            self.fault = fault


class Ladder:
    """Runs the rungs for one candidate, or for several on the same buffers, inputs and references. Each one's Checks are collected, and its
    first failure ends its climb. References are computed when all have run."""

    def __init__(self, problem: Problem, rng: torch.Generator, device: str, make_buffers: MakeBuffers):
        self.problem, self.rng, self.device = problem, rng, device
        self.make_buffers = make_buffers
        self.sampled = False

    def run(self, w: Workload, buffers: Buffers, climbers: Sequence[Climber], rungs: tuple[str, ...]) -> None:
        """All elements are compared; but where only the rungs of a screen are asked for, random rows of large outputs are, which takes a
        fifth of the time, and every element is looked at for poison. What passes so and is reported has climbed the whole ladder. Raises
        DeviceLost; the last note says whose."""
        self.sampled = set(rungs) <= set(SCREEN_RUNGS)
        for case in self.problem.cases(w):
            if case.rung in rungs:
                self._case(w, buffers, climbers, case, rung=case.rung, name=case.name)
        if "repeat" in rungs:
            self._repeat(w, buffers, climbers)
        if "chain" in rungs:
            self._chain(w, buffers, climbers)
        if "shapes" in rungs:
            for variant, shape, name in self._variants(w):
                self._variant(variant, shape, name, climbers)

    def _case(
        self,
        w: Workload,
        buffers: Buffers,
        climbers: Sequence[Climber],
        case: Case,
        *,
        rung: str,
        name: str,
        dependent: bool = False,
        inputs: Tensors | None = None,
    ) -> None:
        """On these `inputs`, or on some that are drawn now."""
        if not (left := _left(climbers)):
            return
        inputs = inputs or self.problem.generate(w, case, self.rng, self.device)
        ran: list[tuple[Climber, Tensors]] = []
        for one in left:
            one.note(f"verify {name}")
            with one.climbing():
                ran.append((one, self._outputs(w, buffers, one, case, inputs, rung=rung, name=name, dependent=dependent)))
        if not ran:
            return
        some, pick, rows = inputs, None, w
        if self.sampled:
            of_inputs, pick = self.problem.sample_rows(w, ran[0][1])
            some = of_inputs(inputs)
            rows = self.problem.rows_workload(w, pick(ran[0][1]))
        expected: Expected | None = None
        for one, outputs in ran:
            judged = _unwritten(outputs) if case.rung != "adversarial" else None
            if judged is None:
                expected = expected or expect(self.problem, rows, some, exact=case.rung == "exact", vendor=case.rung == "normal")
                judged = compare(self.problem, rows, expected, pick(outputs) if pick else outputs)
            error = judged.error if math.isfinite(judged.error) else 1e308
            ratio = judged.vendor_ratio
            one.checks.append(
                Check(rung=rung, case=name, passed=judged.passed, error=error, bound=judged.bound, vendor_ratio=ratio, note=judged.note)
            )
            if not judged.passed:
                limits = limits_of(judged, exact=case.rung == "exact")
                one.fault = CandidateFault(Outcome.WRONG_RESULT, f"{rung} rung, {name} inputs: {judged.note}{limits}")

    def _outputs(
        self, w: Workload, buffers: Buffers, one: Climber, case: Case, inputs: Tensors, *, rung: str, name: str, dependent: bool
    ) -> Tensors:
        """Of one run; the memory around it is looked at."""
        if dependent:
            # what a launch sees that does not wait: other inputs, but those that no kernel writes; and it leaves its outputs to be poisoned
            buffers.fill(self.problem.generate(w, case, self.rng, self.device))
            buffers.fill({spec.name: inputs[spec.name] for spec in self.problem.tensors(w) if spec.constant})
            one.contender.run_dependent(inputs)
        else:
            buffers.fill(inputs)
            buffers.poison()
            one.contender.run(0)
        # at once: what a candidate goes on writing after it said that it was done is not its result
        outputs = {k: v.clone() for k, v in buffers.outputs().items()}
        self._memory(buffers, one, inputs, rung=rung, name=name)
        return outputs

    def _memory(self, buffers: Buffers, one: Climber, inputs: Tensors, *, rung: str, name: str) -> None:
        """Inputs unchanged, guard bands intact."""
        for key, value in inputs.items():
            if not same_bits(buffers.inputs()[key], value):
                one.checks.append(Check(rung="memory", case=name, passed=False, note=f"input {key} changed"))
                raise CandidateFault(Outcome.INPUT_MUTATED, f"{rung} rung, {name} inputs: input {key} was changed by the run")
        trouble = buffers.disturbed() or one.contender.disturbed()
        if trouble:
            one.checks.append(Check(rung="memory", case=name, passed=False, note=trouble))
            raise CandidateFault(Outcome.OUT_OF_BOUNDS, f"{rung} rung, {name} inputs: {trouble}")
        if not any(c.rung == "memory" and c.case == "guards" for c in one.checks):
            one.checks.append(Check(rung="memory", case="guards", passed=True, note="in every run of every rung"))

    def _repeat(self, w: Workload, buffers: Buffers, climbers: Sequence[Climber]) -> None:
        if not (left := _left(climbers)):
            return
        case = next(c for c in self.problem.cases(w) if c.rung == "normal")
        inputs, others = (self.problem.generate(w, case, self.rng, self.device) for _ in range(2))
        for one in left:
            one.note("verify repeat")
            with one.climbing():
                self._same_bits_again(buffers, one, inputs, others)
        # who keeps results by a fingerprint of the inputs has one of these now; a column of them is altered, as between timed launches, and
        # once more: one of 64 columns may be what a fingerprint looks at
        for _ in range(2):
            buffers.fill(inputs)
            if not buffers.alter(random.SystemRandom()):
                break
            inputs = {name: t.clone() for name, t in buffers.inputs().items()}
            self._case(w, buffers, climbers, case, rung="repeat", name="nearly the same", inputs=inputs)

    def _same_bits_again(self, buffers: Buffers, one: Climber, inputs: Tensors, others: Tensors) -> None:
        """Four runs over poison; then one over the results of other inputs and one over zeros: whether there is work to do must not be
        told from what the outputs hold. Where answers may be right in many ways, each must be right instead of the same."""
        first: Tensors | None = None
        expected = expect(self.problem, buffers.workload, inputs) if self.problem.validates else None
        for turn, before in enumerate(("poison",) * 4 + ("results of other inputs", "zeros")):
            buffers.poison()
            if before == "results of other inputs":
                buffers.fill(others)
                one.contender.run(0)
            elif before == "zeros":
                for t in buffers.outputs().values():
                    t.zero_()
            buffers.fill(inputs)
            one.contender.run(0)
            outputs = {k: v.clone() for k, v in buffers.outputs().items()}
            if expected is not None:
                if not (judged := compare(self.problem, buffers.workload, expected, outputs)).passed:
                    one.checks.append(Check(rung="repeat", case=f"run {turn + 1}", passed=False, note=f"over {before}: {judged.note}"))
                    outcome = Outcome.WRONG_RESULT if before == "poison" else Outcome.CHEAT
                    raise CandidateFault(outcome, f"run {turn + 1} on the same inputs, over {before}: {judged.note}")
            elif first is None:
                first = outputs
            elif not all(same_bits(first[k], outputs[k]) for k in first):
                one.checks.append(Check(rung="repeat", case=f"run {turn + 1}", passed=False, note=f"over {before}"))
                if before == "poison":
                    raise CandidateFault(Outcome.NONDETERMINISTIC, f"run {turn + 1} of 4 on the same inputs gave other bits")
                raise CandidateFault(Outcome.CHEAT, f"on the same inputs it gave other bits where the outputs held {before} before the run")
        one.checks.append(Check(rung="repeat", case="4 runs", passed=True))

    def _chain(self, w: Workload, buffers: Buffers, climbers: Sequence[Climber]) -> None:
        """Behind a kernel that it may overlap with, and that writes its inputs."""
        case = next(c for c in self.problem.cases(w) if c.rung == "normal")
        dependent = [one for one in _left(climbers) if one.contender.dependent]
        self._case(w, buffers, dependent, case, rung="chain", name="behind a writer", dependent=True)
        for one in dependent:
            if one.fault is not None and one.fault.outcome in (Outcome.WRONG_RESULT, Outcome.OUT_OF_BOUNDS):
                evidence = (
                    "right by itself, wrong behind the kernel that writes its inputs: the plan says pdl, so griddepcontrol.wait must come "
                    f"before every access to global memory; {one.fault.evidence}"
                )
                one.fault = CandidateFault(one.fault.outcome, evidence)

    def _variants(self, w: Workload) -> Iterator[tuple[Workload, Shape, str]]:
        for variant in self.problem.variants(w):
            yield variant, Shape(), "x".join(map(str, variant.axes.values()))
        # the list can be known, and a kernel be right for what stands there alone
        for drawn in drawn_shapes(None, [w], DRAWN, secrets.randbits(62), 1) if self.problem.any_shape else ():
            yield drawn, Shape(), f"{'x'.join(map(str, drawn.axes.values()))}, drawn at random,"
        small = next((v for v in self.problem.variants(w) if min(v.axes.values(), default=0) > 1), None)
        for base in [small] if small else []:
            size = "x".join(map(str, base.axes.values()))
            yield base, Shape(pad=8), f"{size} rows padded by 8"
            yield base, Shape(pad=3), f"{size} rows padded by 3"
            yield base, Shape(offset=1), f"{size} one element off alignment"
            if self.device == "cpu":
                yield base, Shape(fenced=True), f"{size} with nothing to read behind any tensor"

    def _variant(self, w: Workload, shape: Shape, name: str, climbers: Sequence[Climber]) -> None:
        if not (left := _left(climbers)):
            return
        buffers = self.make_buffers(w, shape)
        loaded: list[tuple[Climber, Climber]] = []
        try:
            for one in left:
                one.note(f"verify {name}")
                with one.climbing():
                    try:
                        loaded.append((one, replace(one, contender=one.load(w, buffers))))
                    except CandidateFault as fault:
                        if fault.outcome is not Outcome.REFUSED:
                            raise
                        one.checks.append(Check(rung="shapes", case=name, passed=True, note=f"refused: {fault.evidence}"))
            case = next(c for c in self.problem.cases(w) if c.rung == "normal")
            self._case(w, buffers, [there for _, there in loaded], case, rung="shapes", name=name)
        except DeviceLost as fault:
            raise DeviceLost(fault.outcome, f"shape {name}: {fault.evidence}") from None
        finally:
            for _, there in loaded:
                there.contender.close()
        for one, there in loaded:
            if there.fault is not None:
                one.fault = CandidateFault(there.fault.outcome, f"shape {name}: {there.fault.evidence}")


def limits_of(judged: Judged, *, exact: bool = False) -> str:
    """For the evidence: in parentheses, behind a space."""
    if exact:
        return " (must be bit-equal)"
    return f" (normalised error {judged.error:.3g}, at most {judged.bound:.3g})" if judged.bound else ""


def _left(climbers: Sequence[Climber]) -> list[Climber]:
    return [one for one in climbers if one.fault is None]


def _unwritten(outputs: Tensors) -> Judged | None:
    """Where inputs are finite: a NaN that a kernel computes from a NaN may have every bit set too."""
    count = unwritten(outputs)
    note = f"{count} elements hold the poison: not written, or computed from bytes outside the inputs"
    return Judged(False, math.inf, 0.0, None, note) if count else None


def unwritten(outputs: Tensors) -> int:
    """How many elements have every bit set. In int32 and int8 that is a value like any other (-1): such outputs are compared bit by bit,
    and whole, instead. int64 holds indices and counts."""
    read = (t for t in outputs.values() if t.dtype not in (torch.int32, torch.int8))
    return sum(int(found.sum()) for t in read if bool((found := _poisoned(t)).any()))


def _poisoned(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(INTEGERS[t.element_size()]) == -1


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integer = INTEGERS[a.element_size()]
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))
