"""Named lists of Workloads."""

from __future__ import annotations

SUITES: dict[str, str] = {}
