"""Who writes Candidates given the history. One interface, several proposers: see `kernelwright.propose.proposer`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from kernelwright.families.family import DeviceFacts, Family
from kernelwright.propose.proposer import Context, MissingExtra, Proposer, score
from kernelwright.records import Trial, Workload

__all__ = ["NAMES", "Context", "MissingExtra", "Proposer", "kind", "make", "proposers", "score"]

_CLASSES = {
    "evolve": "kernelwright.propose.evolve:Evolve",
    "llm": "kernelwright.propose.llm:Llm",
    "mix": "kernelwright.propose.mix:Mix",
    "policy": "kernelwright.propose.policy:PolicyProposer",
    "random": "kernelwright.propose.uniform:Random",
    "tpe": "kernelwright.propose.tpe:Tpe",
}

NAMES = tuple(_CLASSES)


def proposers() -> dict[str, type[Proposer]]:
    """Every proposer by name. Importing one never needs its extra; making one may raise MissingExtra."""
    return {name: _load(path) for name, path in _CLASSES.items()}


def make(
    name: str,
    workload: Workload,
    families: Sequence[Family],
    device: DeviceFacts,
    seed: int = 0,
    history: Iterable[Trial] = (),
    context: Context | None = None,
) -> Proposer:
    """The proposer of that name. Raises ValueError with the known names, MissingExtra, and SettingsError where no endpoint is set."""
    return kind(name)(workload, families, device, seed, history, context)


def kind(name: str) -> type[Proposer]:
    """Raises ValueError with the known names."""
    if name not in _CLASSES:
        raise ValueError(f"unknown proposer {name!r}; choose one of {', '.join(_CLASSES)}")
    return _load(_CLASSES[name])


def _load(path: str) -> type[Proposer]:
    module, _, cls = path.partition(":")
    return getattr(importlib.import_module(module), cls)
