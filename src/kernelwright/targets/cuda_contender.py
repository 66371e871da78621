"""A candidate and a rival on the GPU: loaded on their sets of buffers, ready to run and be clocked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from kernelwright.problems.problem import DTYPE_NAMES
from kernelwright.records import LaunchPlan
from kernelwright.targets.cuda_chain import Predecessor
from kernelwright.targets.cuda_clock import Clock, CudaContender
from kernelwright.targets.driver import Module, Prepared
from kernelwright.targets.launch import Tensor, check, fault, pack, refuse_unmet, workspace_bytes
from kernelwright.targets.target import Bound, CandidateFault, Fresh, Run

GUARD = 256
"""Bytes before and after the workspace that nobody may write."""
GUARD_BYTE = 0xA5
GARBAGE = 0xFF
"""Fills a workspace that is not zeroed: a NaN in every float type, -1 in every integer."""


class Workspace:
    """`size` bytes, 256-byte aligned, between guard bands."""

    def __init__(self, size: int, zeroed: bool, allocate: Callable[[int], Any]):
        self.size, self._zeroed = size, zeroed
        self._flat = allocate(GUARD + -(-size // GUARD) * GUARD + GUARD) if size else None
        self.address = 0
        if self._flat is not None:
            self._flat.fill_(GUARD_BYTE)
            self._inside().fill_(0 if zeroed else GARBAGE)
            self.address = self._flat.data_ptr() + GUARD

    def _inside(self) -> Any:
        assert self._flat is not None
        return self._flat[GUARD : GUARD + self.size]

    def disturbed(self) -> str | None:
        """What was written that must not be; None if all is well."""
        if self._flat is None:
            return None
        for where, band in (("before", self._flat[:GUARD]), ("after", self._flat[GUARD + self.size :])):
            if bool((band != GUARD_BYTE).any()):
                return f"bytes {where} the workspace of {self.size} bytes were written"
        if self._zeroed and bool(self._inside().any()):
            return "the workspace was not left zeroed, as the plan promises (workspace_zeroed)"
        return None


def tensors_of(bound: Bound) -> Mapping[str, Tensor]:
    return {name: Tensor(t.data_ptr(), DTYPE_NAMES[t.dtype]) for name, t in bound.tensors.items()}


class Program(CudaContender):
    """A candidate: its launches for each set, prepared once."""

    only_launches = True

    def __init__(
        self,
        clock: Clock,
        plan: LaunchPlan,
        module: Module,
        sets: Sequence[Bound],
        *,
        allocate: Callable[[int], Any],
        release: Callable[[], None],
        warm_launches: int = 1,
        predecessor: Predecessor | None = None,
    ):
        """Raises CandidateFault (REFUSED, LAUNCH_ERROR, OUT_OF_MEMORY). `release` is called once, on close. Without `predecessor` the
        device knows no dependent launch."""
        for one in sets:
            refuse_unmet(plan, one.names)
        size = max((workspace_bytes(plan, one.names) for one in sets), default=0)
        self.workspace = Workspace(size, plan.workspace_zeroed, allocate)
        self._launches = [self._prepare(plan, module, one, size) for one in sets]
        self._sets = list(sets)  # keeps the buffers alive that the launches point to
        self._release: Callable[[], None] | None = release
        self.idle = not any(self._launches)
        self._predecessor = predecessor
        self.dependent = plan.dependent and predecessor is not None
        self.label = "kernel " + ", ".join(dict.fromkeys(launch.kernel for launch in plan.launches))
        super().__init__(clock, len(sets), warm_launches)

    def _prepare(self, plan: LaunchPlan, module: Module, one: Bound, size: int) -> list[Prepared]:
        prepared = []
        for packed in pack(plan, one.names, tensors_of(one), self.workspace.address, size):
            kernel = module.kernel(packed.kernel)
            check(packed, kernel.limits)
            prepared.append(Prepared(kernel, packed))
        return prepared

    def _enqueue(self, index: int, *, dependent: bool = False) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for i, launch in enumerate(self._launches[index]):
            # edges inside the plan are the candidate's own, wherever the device knows any
            launch.enqueue(stream, dependent=dependent or (i > 0 and self._predecessor is not None))

    def _enqueue_dependent(self, index: int) -> None:
        self._enqueue(index, dependent=True)

    def run(self, index: int = 0) -> None:
        self._enqueue(index)
        self.clock.synchronize(self.label)

    def run_dependent(self, inputs: Mapping[str, Any], index: int = 0) -> None:
        assert self._predecessor is not None, "only where `dependent`"
        with self.clock.faults(self.label):
            copies = []
            for name, to in self._sets[index].tensors.items():
                if name in inputs:
                    copies.append((to, inputs[name].to(to.dtype).contiguous()))
                else:
                    size = to.numel() * to.element_size()
                    copies.append((to, torch.full((size,), GARBAGE, dtype=torch.uint8, device=to.device)))
            writer, enqueued, table = self._predecessor.prepare(copies)
            writer.enqueue(torch.cuda.current_stream().cuda_stream)
            try:
                for _ in range(2):
                    self._enqueue_dependent(index)
            finally:
                enqueued.fill_(1)  # the host is done: the writer begins
            self.clock.synchronize(self.label)
            del table

    def disturbed(self) -> str | None:
        return self.workspace.disturbed()

    def close(self) -> None:
        super().close()
        self._launches = []
        if self._release is not None:
            self._release()
            self._release = None


class Trusted(CudaContender):
    """A rival: Python calls that enqueue on PyTorch's current stream."""

    label = "the rival"
    in_place = False

    def __init__(self, clock: Clock, runs: Sequence[Run], setup: Callable[[], None] | None, warm_launches: int = 1):
        self._runs = list(runs)
        super().__init__(clock, len(runs), warm_launches)
        with clock.faults(self.label):
            if setup is not None:
                setup()
            clock.warm_up(self._enqueue, self.count)
            self.captured = clock.capturable(self._enqueue)

    def _enqueue(self, index: int) -> object:
        return self._runs[index].call()

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        self._prepare(range(self.count))
        return super().sample(mode, launches, fresh)

    def _prepare(self, indices: Iterable[int]) -> None:
        with self.clock.faults(self.label):
            for index in indices:
                if prepare := self._runs[index].prepare:
                    prepare()

    def run(self, index: int = 0) -> None:
        self._prepare([index])
        with self.clock.faults(self.label):
            self._runs[index].store(self._runs[index].call())
            self.clock.synchronize(self.label)


def not_runnable(kind: str) -> CandidateFault:
    return fault(f"the cuda target runs CUDA and Python candidates, not {kind!r}")
