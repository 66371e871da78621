"""Validators: is what a candidate wrote a right answer, whichever of many it is?

Each is a pure function of inputs and outputs. It works out itself what it judges by (losses, energies, ratios, lengths) and takes from the
outputs nothing but the answer. Outputs may hold anything: indices out of range, NaN, lengths beyond their buffers. All arithmetic is
float64, or exact in int64 and Python's integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["Finding", "Tensors", "beyond", "right", "wrong"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Finding:
    """What a validator saw."""

    passed: bool
    note: str = ""
    error: float = 0.0
    """The largest error met, in units of what rounding explains; 0 where the answer is exact."""
    bound: float = 0.0
    score: float | None = None
    """What an open challenge is scored by, as the judge measured it."""


def right(error: float = 0.0, bound: float = 0.0, *, score: float | None = None, note: str = "") -> Finding:
    return Finding(True, note, error, bound, score)


def wrong(note: str, error: float = math.inf, bound: float = 0.0) -> Finding:
    return Finding(False, note, error, bound)


def beyond(errors: torch.Tensor, bound: float) -> bool:
    """Whether any error is above the bound, or no number at all."""
    return not bool((errors <= bound).all())
