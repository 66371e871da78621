"""Applications and open challenges of the suite `experts`: problems whose answers a validator judges (problems/validators/).

`application.py` says how to add one. docs/applications.md lists all.
"""

from __future__ import annotations

from kernelwright.problems.applications import compression, dynamics, graphs, modular, satisfiability, tours, training
from kernelwright.problems.applications.application import Application

__all__ = ["APPLICATIONS", "CHALLENGES", "Application"]

_DOMAINS = (training, dynamics, satisfiability, graphs, compression, modular, tours)
_ALL: tuple[Application, ...] = tuple(problem() for domain in _DOMAINS for problem in domain.PROBLEMS)

APPLICATIONS = tuple(p for p in _ALL if p.kind == "application")
CHALLENGES = tuple(p for p in _ALL if p.kind == "challenge")
"""Scored by what the judge measures of an answer, within a time; no expert is known."""
