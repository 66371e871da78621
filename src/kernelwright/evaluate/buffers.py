"""Buffers of a Workload with guard bands, poison and several sets.

Every byte that a candidate must not touch is 0xFF, which is a NaN in every float type: a read beyond a buffer spoils the result, a write
beyond it shows. Outputs are poisoned with the same byte, so an element left unwritten is a NaN as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernelwright.plan import Names
from kernelwright.problems.problem import TORCH_DTYPES, Problem, Tensors, TensorSpec
from kernelwright.records import DTYPES, Workload
from kernelwright.targets.target import Bound

GUARD = 4096
"""Bytes before and after each tensor: a 4 KiB page, more than any tile row of our kernels."""
POISON = 0xFF
_ALIGN = 256
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by element size: as integers, the poison is -1."""


class Allocates(Protocol):
    """A Device, or whatever else has memory."""

    def allocate(self, size: int) -> Any: ...


@dataclass(frozen=True)
class Shape:
    """How the buffers of a set deviate from plain contiguous, aligned ones."""

    pad: int = 0
    """Elements between the end of a row and the next row, for tensors of two or more axes."""
    offset: int = 0
    """Elements by which each tensor starts off its 256-byte boundary."""
    fenced: bool = False
    """Each tensor ends where a page does, and the next one can not even be read, on a device that can forbid it."""


class Buffers:
    """`sets` copies of a Workload's tensors in one allocation of the device."""

    def __init__(self, device: Allocates, problem: Problem, w: Workload, *, sets: int = 1, shape: Shape | None = None, sms: int = 1):
        shape = shape or Shape()
        self.problem, self.workload = problem, w
        self.specs = problem.tensors(w)
        self._extents: list[tuple[TensorSpec, int, int]] = []  # spec, row stride, offset in the set
        self._fences: list[int] = []
        at = GUARD
        for spec in self.specs:
            row_stride = (spec.shape[-1] if spec.shape else 1) + (shape.pad if len(spec.shape) >= 2 else 0)
            itemsize = DTYPES[spec.dtype]
            rows = 1
            for n in spec.shape[:-1]:
                rows *= n
            start = at + shape.offset * itemsize
            size = rows * row_stride * itemsize
            if shape.fenced:
                start = _round_up(start + size, GUARD) - size
                self._fences.append(start + size)
            self._extents.append((spec, row_stride, start))
            at = _round_up(start + size, _ALIGN) + GUARD
        self.set_bytes = _round_up(at, GUARD if shape.fenced else _ALIGN)
        self.flat = device.allocate(self.set_bytes * sets)
        self.flat.fill_(POISON)
        stacked = {spec.name: self._stacked(spec, row_stride, start, sets) for spec, row_stride, start in self._extents}
        self._outputs = [stacked[spec.name] for spec in self.specs if spec.role == "out"]
        self._alterable = [stacked[name] for name in problem.alterable(w) if stacked[name].numel()]
        self.bounds: list[Bound] = []
        for index in range(sets):
            self.bounds.append(self._bind(index, sms))

    def _bind(self, index: int, sms: int) -> Bound:
        tensors: Tensors = {}
        names = Names(self.workload.axes)
        names["sms"] = sms
        for spec, row_stride, start in self._extents:
            view = self.flat[index * self.set_bytes + start :].view(torch.uint8)
            dtype = TORCH_DTYPES[spec.dtype]
            itemsize = DTYPES[spec.dtype]
            usable = view[: view.numel() // itemsize * itemsize]
            strides = [1] * len(spec.shape)
            for axis in range(len(spec.shape) - 2, -1, -1):
                strides[axis] = row_stride if axis == len(spec.shape) - 2 else strides[axis + 1] * spec.shape[axis + 1]
            tensors[spec.name] = usable.view(dtype).as_strided(spec.shape, strides)
            address = tensors[spec.name].data_ptr() if spec.numel else 256
            names |= spec.names(row_stride, min(256, address & -address))
        # sets are alike but for their addresses: they share one dictionary where its values agree
        if self.bounds and self.bounds[0].names == names:
            names = self.bounds[0].names
        fences = tuple(self.flat.data_ptr() + index * self.set_bytes + at for at in self._fences)
        return Bound(tensors=tensors, names=names, fences=fences)

    def __len__(self) -> int:
        return len(self.bounds)

    def inputs(self, index: int = 0) -> Tensors:
        return {s.name: self.bounds[index].tensors[s.name] for s in self.specs if s.role == "in"}

    def outputs(self, index: int = 0) -> Tensors:
        return {s.name: self.bounds[index].tensors[s.name] for s in self.specs if s.role == "out"}

    def fill(self, inputs: Mapping[str, torch.Tensor], index: int = 0) -> None:
        for name, value in inputs.items():
            self.bounds[index].tensors[name].copy_(value)

    def _stacked(self, spec: TensorSpec, row_stride: int, start: int, sets: int) -> torch.Tensor:
        """The elements of one tensor in all sets as integers: (sets, rows, row length)."""
        itemsize = DTYPES[spec.dtype]
        length = spec.shape[-1] if spec.shape else 1
        shape = (sets, spec.numel // length if length else 0, length)
        usable = self.flat[start:]
        whole = usable[: usable.numel() // itemsize * itemsize].view(INTEGERS[itemsize])
        return whole.as_strided(shape, (self.set_bytes // itemsize, row_stride, 1))

    def alter(self, rng: random.Random) -> bool:
        """Other inputs in all sets: one random column of each is rotated by a row, the whole row of those that have but one. False where
        the problem does not allow that its values change places.

        What was a result of the inputs as they were is then wrong in every row, and in one column of a product: what was kept of it is of
        no use, unless the candidate reads all inputs to find out, which is what it wanted to save. The distribution stays the same, and it
        costs microseconds where drawing anew costs milliseconds."""
        for view in self._alterable:
            rows, length = view.shape[-2:]
            if rows > 1:
                column = view[..., rng.randrange(length)]
                column.copy_(column.roll(1, dims=-1))
            else:
                view.copy_(view.roll(1, dims=-1))
        return bool(self._alterable)

    def untouched(self, first: int, end: int) -> bool:
        """Whether the outputs of the sets from `first` to before `end` hold nothing but poison."""
        return all(bool((tensor[first:end] == -1).all()) for tensor in self._outputs)

    def touch(self, sets: int) -> None:
        """Reads the first so many sets."""
        self.flat[: sets * self.set_bytes].view(torch.int64).max()

    def poison(self, sets: int | None = None) -> None:
        """Poisons the outputs of the first so many sets, or of all; guard bands are left alone."""
        for tensor in self._outputs:
            tensor[:sets].fill_(-1)

    def disturbed(self, index: int = 0) -> str | None:
        """Names the tensor beside which a byte that nobody may write was written, and restores the guards; None if all are intact."""
        guards = list(self._guards(index))
        if bool((torch.cat([guard.flatten() for guard in guards]) == POISON).all()):
            return None
        guard = next(guard for guard in guards if bool((guard != POISON).any()))
        place = (guard != POISON).nonzero()[0]
        first = guard.storage_offset() + sum(int(i) * stride for i, stride in zip(place, guard.stride(), strict=True))
        first -= self.flat.storage_offset() + index * self.set_bytes
        spec, _, start = min(self._extents, key=lambda e: abs(e[2] - first))
        for guard in guards:
            guard.fill_(POISON)
        return f"byte {first - start:+d} from the start of {spec.name} was written, outside every element of it"

    def _guards(self, index: int) -> Iterator[torch.Tensor]:
        """The bytes of a set that belong to no element: before, between and after the tensors, and after each of their rows."""
        begin = index * self.set_bytes
        free = begin
        for spec, row_stride, start in self._extents:
            yield self.flat[free : begin + start]
            free = begin + start
            if spec.numel:
                itemsize, length = DTYPES[spec.dtype], spec.shape[-1] if spec.shape else 1
                rows = spec.numel // length
                if row_stride > length:
                    shape, strides = (rows - 1, (row_stride - length) * itemsize), (row_stride * itemsize, 1)
                    yield self.flat.as_strided(shape, strides, self.flat.storage_offset() + free + length * itemsize)
                free += ((rows - 1) * row_stride + length) * itemsize
        yield self.flat[free : begin + self.set_bytes]


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
