"""A weight as it is kept on disk and in a state_dict: free of any kernel's layout, with a version and a checksum.

    compressed    (nonzeros,)               the values, row by row, in the weight's dtype
    bitmask       (rows, ceil(columns/8))   uint8, column 8 i + b is bit b of byte i
    shape         (2,)                      int64
    row_offsets   (rows,)                   int64, where each row's values begin
    checksum      (33,)                     uint8: the format's version, then SHA-256 over dtype, shape, bitmask and values

The first four are compressed-tensors' "sparse-bitmask" (vllm-project/compressed-tensors, the README of its sparse compressors), so that its
checkpoints can be read and it can read ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from kernelwright.layouts import bitmask
from kernelwright.layouts.bits import count_bits, dtype_name, raw
from kernelwright.sparse.compressed import Compressed, SparseError

VERSION = 1
NAMES = ("compressed", "bitmask", "shape", "row_offsets", "checksum")
REQUIRED = ("compressed", "bitmask", "shape")


def to_canonical(weight: Compressed) -> dict[str, Tensor]:
    """By NAMES; on the weight's device."""
    flat = weight.as_layout(bitmask.NAME)
    values, mask = flat.parts["values"].view(flat.dtype), flat.parts["bitmask"]
    counts = count_bits(mask).sum(1, dtype=torch.int64)
    return {
        "compressed": values,
        "bitmask": mask,
        "shape": torch.tensor(flat.shape, dtype=torch.int64, device=flat.device),
        "row_offsets": counts.cumsum(0) - counts,
        "checksum": torch.cat([torch.tensor([VERSION], dtype=torch.uint8), digest(values, mask, flat.shape)]).to(flat.device),
    }


def from_canonical(entries: Mapping[str, Tensor], name: str = "the weight") -> Compressed:
    """In layout "bitmask". Entries without a checksum (written by other tools) are checked for what a damaged file would get wrong.
    Raises SparseError."""
    if missing := [entry for entry in REQUIRED if entry not in entries]:
        raise SparseError(f"{name} is not whole: {', '.join(missing)} is missing; write the file again")
    values, mask = entries["compressed"].detach().contiguous(), entries["bitmask"].detach().contiguous()
    if (checksum := entries.get("checksum")) is not None and checksum.numel() and int(checksum[0]) != VERSION:
        raise SparseError(f"{name} is in version {int(checksum[0])} of the format, this kernelwright reads {VERSION}; upgrade it")
    shape = tuple(entries["shape"].reshape(-1).tolist())
    if entries["shape"].is_floating_point() or len(shape) != 2 or min(shape) < 1:
        raise SparseError(f"{name} is damaged: its shape {shape} is not that of a matrix; write it again")
    if mask.dtype != torch.uint8 or mask.shape != (shape[0], -(-shape[1] // 8)):
        raise SparseError(f"{name} is damaged: shape {shape} and a bitmask of {tuple(mask.shape)} do not belong together; write it again")
    counts = count_bits(mask).sum(1, dtype=torch.int64)
    if values.ndim != 1 or int(counts.sum()) != values.numel():
        raise SparseError(f"{name} is damaged: {int(counts.sum())} bits are set for {values.numel()} values; write it again")
    if shape[1] % 8 and bool((mask[:, -1] >> shape[1] % 8).any()):
        raise SparseError(f"{name} is damaged: bits are set past its last column; write it again")
    if (begins := entries.get("row_offsets")) is not None and not torch.equal(begins.to(torch.int64), counts.cumsum(0) - counts):
        raise SparseError(f"{name} is damaged: its row_offsets do not fit its bitmask; write it again")
    if checksum is not None and not torch.equal(checksum[1:].cpu(), digest(values, mask, shape)):
        raise SparseError(f"{name} is damaged: its checksum is wrong; copy or write it again")
    return Compressed(bitmask.NAME, (shape[0], shape[1]), values.dtype, values.numel(), {"values": raw(values), "bitmask": mask}, {})


def digest(values: Tensor, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """uint8 (32,) on the CPU."""
    hashed = hashlib.sha256(f"{dtype_name(values.dtype)} {shape[0]} {shape[1]}\n".encode())
    for part in (mask, values):
        hashed.update(raw(part).contiguous().view(-1).cpu().numpy().data.cast("B"))
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def blank(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Empty entries with the right dtypes: places for a loader that assigns tensors by name."""
    dtypes = (dtype, torch.uint8, torch.int64, torch.int64, torch.uint8)
    return {name: torch.empty(0, dtype=kind, device=device) for name, kind in zip(NAMES, dtypes, strict=True)}
