"""kw.matmul, torch.matmul, cuBLAS and cuBLASLt as functions of (a, b, out), for host.py and serving.py: each right before it is timed."""

from __future__ import annotations

import math
import runpy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import OURS, Budget, Lines, device, read, refuse
from thin_calls import ThinCalls, factors

import kernelwright as kw
from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import problem_of
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Workload
from kernelwright.rivals import cublaslt
from kernelwright.rivals.cublas import column_major
from kernelwright.runtime import pack as packs
from kernelwright.settings import settings
from kernelwright.targets.cuda_libraries import cublaslt_version
from kernelwright.targets.target import Bound, CandidateFault

TORCH, TUNED = "torch", "cublaslt-auto"
RIVALS = (TORCH, "cublas", "cublaslt", TUNED)


class WrongResult(Exception):
    """A contender computed something else than the product; the message says which, where and by how much."""


def use(pack: Path) -> str:
    """From now on kw.matmul serves from this pack; torch.matmul accumulates as our kernels do. Returns the pack's checksum."""
    if settings().disabled:
        refuse("kernelwright is disabled (KERNELWRIGHT_DISABLE): there would be nothing to measure")
    # what makes a program go on with torch alone would pass for a measurement of ours
    warnings.filterwarnings("error", message="kernelwright leaves")
    try:
        checksum = packs.load(pack).manifest.checksum
        kw.use(pack)
        if device() == "cuda":
            served(*torch.empty(2, 64, 64, dtype=torch.float16, device="cuda"))
    except (packs.PackError, RuntimeWarning) as error:
        refuse(str(error))
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return checksum[:16]


def warm_up(products: Sequence[Workload], budget: Budget) -> None:
    """kw.warmup on them: a tenth of a second each, of the budget too."""
    started = time.monotonic()
    found = kw.warmup(products, told=lambda *_: budget.watch())
    own = sum(not choice.library for choice in found)
    print(f"warm-up: {time.monotonic() - started:.0f} s, {own} of {len(found)} products call a kernel", flush=True)


def served(a: torch.Tensor, b: torch.Tensor) -> tuple[bool, str]:
    """Whether kw.matmul calls a kernel of the pack, and what it says of that."""
    said = kw.explain(a, b)
    return " calls kernel " in said, said


def sets_of(w: Workload, count: int) -> list[Bound]:
    """`count` sets of stored tensors, the factors drawn from a normal distribution, each tensor in memory of its own."""
    problem, on, made = problem_of(w), device(), []
    for _ in range(count):
        tensors: dict[str, torch.Tensor] = {}
        names = dict(w.axes)
        for spec in problem.tensors(w):
            draw = torch.randn if spec.role == "in" else torch.zeros
            t = tensors[spec.name] = draw(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=on)
            address = t.data_ptr() | 256
            names |= spec.names(spec.shape[-1], min(256, address & -address))
        made.append(Bound(tensors=tensors, names=names))
    return made


class Tuned:
    """Algorithms of `cublaslt-auto`, found by rivals/cublaslt.py and kept in a file, so that no product is tuned twice."""

    def __init__(self, path: Path):
        self._lines, self._version = Lines(path), cublaslt_version()
        self._device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        here = [x for x in read(path) if (x.get("cublaslt"), x.get("device")) == (self._version, self._device)]
        self._algorithms: dict[str, list[int]] = {x["product"]: x["algorithm"] for x in here}

    def __contains__(self, w: Workload) -> bool:
        return w.name in self._algorithms

    def of(self, w: Workload, problem: cublaslt.Problem, sets: Sequence[Bound]) -> cublaslt.Result:
        """Tunes if need be, which overwrites the factors by others. Raises CandidateFault."""
        result = cublaslt.Result()
        if w in self:
            result.algo.data[:] = self._algorithms[w.name]
            return result
        result = cublaslt._tune(problem, sets)
        words = self._algorithms[w.name] = list(result.algo.data)
        self._lines.add({"product": w.name, "algorithm": words, "cublaslt": self._version, "device": self._device})
        return result


class Contenders:
    def __init__(self, thin: ThinCalls, tuned: Tuned, beside: Path | None = None):
        """`beside`: a Python file with a function `of(workload name)` that returns a function of (a, b, out), or None; somebody else's
        kernels, say. It is known by the file's name."""
        self._thin, self._tuned = thin, tuned
        self.beside = beside.stem if beside else ""
        try:
            self._others = runpy.run_path(str(beside))["of"] if beside else lambda name: None
        except (OSError, KeyError) as error:
            refuse(
                f"{beside} cannot be measured beside: {error if isinstance(error, OSError) else 'it defines no function of(workload name)'}"
            )

    def has(self, w: Workload) -> bool:
        """Whether there is something to measure beside the usual contenders, where that was asked for."""
        return not self.beside or self._others(w.name) is not None

    def of(self, w: Workload, sets: Sequence[Bound], rivals: Sequence[str]) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
        """Functions of (a, b, out) by name, ours first; and the reasons why rivals are missing."""
        made: dict[str, Callable[..., Any]] = {OURS: lambda a, b, c: kw.matmul(a, b, out=c)}
        missing: dict[str, str] = {}
        for name in rivals:
            try:
                made[name] = self._rival(name, w, sets)
            except CandidateFault as fault:
                missing[name] = fault.evidence
        if (other := self._others(w.name)) is not None:
            try:
                verify(w, sets, {self.beside: other})
                made[self.beside] = other
            except (WrongResult, RuntimeError) as error:
                missing[self.beside] = str(error)
        return made, missing

    def _rival(self, name: str, w: Workload, sets: Sequence[Bound]) -> Callable[..., Any]:
        if name == TORCH:
            return lambda a, b, c: torch.matmul(a, b, out=c)
        if name == "cublas":
            return partial(self._thin.call, self._thin.cublas(w, sets[0]))
        alignments = tuple(min(one.names[f"align_{x}"] for one in sets) for x in "bac")
        problem = cublaslt.Problem(w, column_major(w, sets[0]), alignments, sets[0])  # pyright: ignore[reportArgumentType]
        result = self._tuned.of(w, problem, sets) if name == TUNED else problem.algorithms(1)[0]
        return partial(self._thin.call, self._thin.cublaslt(w, problem, sets[0], result))


def verify(w: Workload, sets: Sequence[Bound], contenders: Mapping[str, Callable[..., Any]]) -> None:
    """Each contender once, on a set of its own where there are enough. Raises WrongResult.

    Random rows against the float64 reference within the problem's bound, and the whole result against torch.matmul: fp16 results around
    sqrt(K) differ by a rounding or two, at most 0.02 sqrt(K), bf16's by eight times that; what was not written is a NaN."""
    problem, allowed = problem_of(w), 0.02 * math.sqrt(max(1, w.axes["K"])) * (8 if w.dtype == "bf16" else 1)
    for i, (name, call) in enumerate(contenders.items()):
        one = sets[i % len(sets)]
        a, b, c = factors(w, one)
        c.fill_(math.nan)
        call(a, b, c)
        of_inputs, pick = problem.sample_rows(w, {"c": c})
        inputs, rows = of_inputs({x: one.tensors[x] for x in "ab"}), pick({"c": c})
        part = problem.rows_workload(w, rows)
        judged = compare(problem, part, expect(problem, part, inputs), rows)
        if not judged.passed:
            said = judged.note or f"normalised error {judged.error:.3g}, at most {judged.bound:.3g}"
            raise WrongResult(f"{name} is wrong on {w.name}: {said}")
        largest = float(torch.matmul(a, b).sub_(c).abs_().max())
        if not largest <= allowed:
            raise WrongResult(f"{name} is wrong on {w.name}: it differs from torch.matmul by {largest:.3g}, at most {allowed:.3g} expected")
