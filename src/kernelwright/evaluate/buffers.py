"""Buffers of a Workload with guard bands, poison and several sets.

Every byte that a candidate must not touch is 0xFF, which is a NaN in every float type: a read beyond a buffer spoils the result, a write
beyond it shows. Outputs are poisoned with the same byte, so an element left unwritten is a NaN as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kernelwright.problems.problem import TORCH_DTYPES, Problem, Tensors, TensorSpec
from kernelwright.records import DTYPES, Workload
from kernelwright.targets.target import Bound, Device

GUARD = 4096
"""Bytes before and after each tensor: a 4 KiB page, more than any tile row of our kernels."""
POISON = 0xFF
_ALIGN = 256


@dataclass(frozen=True)
class Shape:
    """How the buffers of a set deviate from plain contiguous, aligned ones."""

    pad: int = 0
    """Elements between the end of a row and the next row, for tensors of two or more axes."""
    offset: int = 0
    """Elements by which each tensor starts off its 256-byte boundary."""


class Buffers:
    """`sets` copies of a Workload's tensors in one allocation of the device."""

    def __init__(self, device: Device, problem: Problem, w: Workload, *, sets: int = 1, shape: Shape | None = None, sms: int = 1):
        shape = shape or Shape()
        self.problem, self.workload = problem, w
        self.specs = problem.tensors(w)
        self._extents: list[tuple[TensorSpec, int, int]] = []  # spec, row stride, offset in the set
        at = GUARD
        for spec in self.specs:
            row_stride = (spec.shape[-1] if spec.shape else 1) + (shape.pad if len(spec.shape) >= 2 else 0)
            itemsize = DTYPES[spec.dtype]
            rows = 1
            for n in spec.shape[:-1]:
                rows *= n
            start = at + shape.offset * itemsize
            size = rows * row_stride * itemsize
            self._extents.append((spec, row_stride, start))
            at = _round_up(start + size, _ALIGN) + GUARD
        self.set_bytes = _round_up(at, _ALIGN)
        self.flat = device.allocate(self.set_bytes * sets)
        self.flat.fill_(POISON)
        self.bounds = [self._bind(i, sms) for i in range(sets)]

    def _bind(self, index: int, sms: int) -> Bound:
        tensors: Tensors = {}
        names: dict[str, int] = dict(self.workload.axes)
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
            names[f"ld_{spec.name}"] = row_stride
            names[f"numel_{spec.name}"] = spec.numel
            names[f"align_{spec.name}"] = min(256, address & -address)
        return Bound(tensors=tensors, names=names)

    def __len__(self) -> int:
        return len(self.bounds)

    def inputs(self, index: int = 0) -> Tensors:
        return {s.name: self.bounds[index].tensors[s.name] for s in self.specs if s.role == "in"}

    def outputs(self, index: int = 0) -> Tensors:
        return {s.name: self.bounds[index].tensors[s.name] for s in self.specs if s.role == "out"}

    def fill(self, inputs: Mapping[str, torch.Tensor], index: int = 0) -> None:
        for name, value in inputs.items():
            self.bounds[index].tensors[name].copy_(value)

    def poison(self, indices: Sequence[int] | None = None) -> None:
        """Poisons the outputs of the sets; guard bands are left alone."""
        for index in range(len(self)) if indices is None else indices:
            for tensor in self.outputs(index).values():
                _poison(tensor)

    def disturbed(self, index: int = 0) -> str | None:
        """Names the tensor beside which a byte that nobody may write was written; None if all are intact.

        Destroys the contents of the set, so read the outputs first.
        """
        for tensor in self.bounds[index].tensors.values():
            _poison(tensor)
        area = self.flat[index * self.set_bytes : (index + 1) * self.set_bytes]
        if bool((area == POISON).all()):
            return None
        first = int((area != POISON).nonzero()[0])
        spec, _, start = min(self._extents, key=lambda e: abs(e[2] - first))
        at = first - start
        area.fill_(POISON)
        return f"byte {at:+d} from the start of {spec.name} was written, outside every element of it"


def _poison(tensor: torch.Tensor) -> None:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    tensor.view(integer).fill_(-1)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
