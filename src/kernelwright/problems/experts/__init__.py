"""The suite `experts`: kernels and modules with sound inputs, several shapes each, and rivals written by experts.

`expert.py` says how to add one; the files beside it hold one domain each. docs/experts.md lists all.
"""

from __future__ import annotations

from kernelwright.problems.experts import convolution, fourier, movement, normalisation, ordering, products, reductions
from kernelwright.problems.experts.expert import EXPERT, Expert

__all__ = ["EXPERT", "EXPERTS", "Expert"]

_DOMAINS = (products, convolution, reductions, ordering, movement, normalisation, fourier)

EXPERTS: tuple[Expert, ...] = tuple(problem() for domain in _DOMAINS for problem in domain.PROBLEMS)
"""The table of the suite: kernels, then modules."""
