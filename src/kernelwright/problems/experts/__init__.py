"""The suite `experts`: kernels and modules with sound inputs, several shapes each, and rivals written by experts.

`expert.py` says how to add one; the files beside it hold one domain each. docs/experts.md lists all.
"""

from __future__ import annotations

from kernelwright.problems.experts import (
    attention,
    convolution,
    feedforward,
    fourier,
    linears,
    movement,
    normalisation,
    ordering,
    products,
    reductions,
    sequence,
    training,
)
from kernelwright.problems.experts.expert import EXPERT, Expert

__all__ = ["EXPERT", "EXPERTS", "Expert"]

_DOMAINS = (
    (products, convolution, reductions, ordering, movement, normalisation, fourier),
    (attention, feedforward, sequence, linears, training),
)
"""Of kernels, and of modules."""

EXPERTS: tuple[Expert, ...] = tuple(problem() for domains in _DOMAINS for domain in domains for problem in domain.PROBLEMS)
"""The table of the suite: kernels, then modules."""
