"""What a rival of the suite `experts` is: a library's call for one problem, as its best user would write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.problems.experts import Expert
from kernelwright.records import Outcome, Workload
from kernelwright.targets.target import Bound, CandidateFault, Run


@dataclass(frozen=True)
class ExpertRival:
    """`call(n, o, **inputs)` returns the outputs as the problem's methods do. `o` holds the output buffers by name: what it returns of them
    is in its place already, everything else is copied there, outside the clock."""

    name: str
    library: str
    """Who does the work, and through which call."""
    call: Callable[..., Any]
    prepare: Callable[..., Any] | None = None
    """`prepare(n, o, **inputs)` before each sample, outside the clock: weights in the library's own layout. `call` gets what it returned, a
    tensor or a tuple of them, as `kept`."""
    cuda_only: str = ""
    """Why it is skipped on a CPU, as a clause."""
    compiled: bool = False
    """Compiled by torch.compile on a GPU; on a CPU, where compiling takes longer than everything else, it runs as it is."""


def load(rival: ExpertRival, problem: Expert, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None]]:
    """Raises CandidateFault (REFUSED) where it cannot serve, with the reason."""
    on_gpu = next(iter(sets[0].tensors.values())).is_cuda
    if rival.cuda_only and not on_gpu:
        raise CandidateFault(Outcome.REFUSED, f"{rival.name} has no CPU counterpart here: {rival.cuda_only}")
    call = torch.compile(rival.call, dynamic=False) if rival.compiled and on_gpu else rival.call
    calls = [_Call(rival, call, problem, w, one) for one in sets]

    def setup() -> None:
        """Autotuning, compiling, and memory for prepared weights; what this version of a library lacks shows here."""
        if rival.compiled and on_gpu:
            import torch._dynamo

            torch._dynamo.config.recompile_limit = 10_000  # one function serves many Workloads; beyond the limit it would run uncompiled
        try:
            for one in calls:
                one.prepare_first()
            calls[0].store(calls[0]())
        except (AttributeError, TypeError, ValueError, AssertionError, LookupError) as error:
            raise CandidateFault(Outcome.LAUNCH_ERROR, f"{rival.name}: {type(error).__name__}: {error}") from error

    return [Run(call=one, store=one.store, prepare=one.prepare if rival.prepare else None) for one in calls], setup


class _Call:
    """A rival on one set of buffers."""

    def __init__(self, rival: ExpertRival, call: Callable[..., Any], problem: Expert, w: Workload, one: Bound):
        specs = problem.tensors(w)
        self._inputs, self._outputs = ({s.name: one.tensors[s.name] for s in specs if s.role == role} for role in ("in", "out"))
        self._rival, self._call, self._problem, self._n = rival, call, problem, problem.sizes(w)
        self._kept: Any = None
        self._extra: dict[str, Any] = {}

    def __call__(self) -> Any:
        return self._call(self._n, self._outputs, **self._inputs, **self._extra)

    def store(self, results: Any) -> None:
        for name, result in self._problem.named(results).items():
            if result is not self._outputs[name]:
                self._outputs[name].copy_(result)

    def prepare_first(self) -> None:
        if self._rival.prepare is not None:
            found = self._rival.prepare(self._n, self._outputs, **self._inputs)
            self._kept = tuple(t.clone() for t in found) if isinstance(found, tuple) else found.clone()
            self._extra = {"kept": self._kept}

    def prepare(self) -> None:
        """Into the same memory each time: a captured graph holds its addresses."""
        assert self._rival.prepare is not None
        found = self._rival.prepare(self._n, self._outputs, **self._inputs)
        for mine, new in zip(self._kept, found, strict=True) if isinstance(found, tuple) else ((self._kept, found),):
            mine.copy_(new)
