"""Expert rivals of the suite `experts`: by problem, the library calls that a kernel has to beat. Each is verified like a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.problems import problem_of
from kernelwright.problems.experts import EXPERT, Expert
from kernelwright.records import Workload
from kernelwright.rivals.experts.expert_rival import ExpertRival
from kernelwright.rivals.experts.expert_rival import load as load_one
from kernelwright.rivals.experts.kernels import KERNELS
from kernelwright.rivals.experts.modules import MODULES
from kernelwright.targets.target import Bound, Run

RIVALS: dict[str, tuple[ExpertRival, ...]] = {**KERNELS, **MODULES}
"""Title of the problem to its experts, the foremost first."""

__all__ = ["RIVALS", "ExpertRival", "experts_of", "load"]


def experts_of(w: Workload) -> tuple[ExpertRival, ...]:
    """Of a Workload; none for one that is not of the suite."""
    return RIVALS.get(w.problem.removeprefix(EXPERT), ()) if w.problem.startswith(EXPERT) else ()


def load(name: str, w: Workload, sets: Sequence[Bound]) -> tuple[list[Run], Callable[[], None] | None]:
    """Raises ValueError for an unknown expert, CandidateFault (REFUSED) for one that cannot serve here."""
    problem = problem_of(w)
    for rival in experts_of(w):
        if rival.name == name and isinstance(problem, Expert):
            return load_one(rival, problem, w, sets)
    known = ", ".join(r.name for r in experts_of(w)) or "none"
    raise ValueError(f"no expert {name!r} for {w.name}; there are: {known}")
