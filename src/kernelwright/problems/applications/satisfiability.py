"""Random 3-SAT near its threshold: decided, with assignments and proofs; and as much of it as can be decided in time."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, but, within
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding, right, satisfiability
from kernelwright.problems.validators.satisfiability import OPEN, SATISFIABLE, UNSATISFIABLE, solved
from kernelwright.records import Workload


class Satisfiability(Application):
    judged_by = satisfiability
    title, domain = "sat", "satisfiability"
    formula = "each formula satisfied by an assignment, or refuted by a proof of reverse unit propagation (validators/satisfiability.py)"
    axes = ("batch", "variables", "clauses", "proof")
    inputs = {"clauses": "batch clauses 3"}
    outputs = {"verdict": "batch", "assignment": "batch variables", "proof": "batch proof", "proof_length": "batch"}
    dtypes = ("int32",)
    full = ((64, 50, 213, 32768), (256, 40, 170, 16384))
    tiny = ((3, 12, 55, 2048), (1, 3, 20, 64), (2, 5, 4, 64))
    adversarial = ("satisfiable", "overfull")
    tolerance = "exact: every clause of an assignment, every step of a proof"
    read = ("clauses",)
    undecided_allowed = False

    def refuses(self, w: Workload) -> str | None:
        if w.axes["variables"] < 3 or min(w.axes.values()) < 1:
            return "has 3 or more variables, and 1 or more of everything else"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        """Three different variables a clause; `satisfiable` keeps a hidden assignment, `overfull` is about the first eight variables."""
        shape, variables = (n.batch, n.clauses, 3), min(n.variables, 8) if case == "overfull" else n.variables
        keys = torch.rand(n.batch, n.clauses, variables, generator=rng, device=device)
        picked = keys.topk(3, dim=-1).indices
        sign = torch.randint(2, shape, generator=rng, device=device) * 2 - 1
        if case == "satisfiable":
            hidden = torch.randint(2, (n.batch, 1, n.variables), generator=rng, device=device) * 2 - 1
            kept = hidden.expand(-1, n.clauses, -1).gather(2, picked)
            sign[..., :1] = torch.where((sign == kept).any(-1, keepdim=True), sign[..., :1], kept[..., :1])
        return {"clauses": (picked + 1) * sign}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return solved(inputs, outputs, open_allowed=self.undecided_allowed)

    def solve(self, n: Sizes, clauses: torch.Tensor) -> Any:
        return search(clauses.long(), n.variables, n.proof)

    mistakes = {
        "everything is satisfiable": lambda p, n, clauses: but(o := p.solve(n, clauses), 0, torch.ones_like(o[0])),
        "everything is refuted": lambda p, n, clauses: but(o := p.solve(n, clauses), 0, torch.zeros_like(o[0])),
        "half of the clauses": lambda p, n, clauses: p.solve(n, clauses[:, : n.clauses // 2]),
        "proofs without their first clauses": lambda p, n, clauses: but(o := p.solve(n, clauses), 2, o[2].roll(-16, 1)),
        "signs turned over": lambda p, n, clauses: but(o := p.solve(n, clauses), 1, 1 - o[1]),
    }


class SatisfiabilityInTime(Satisfiability):
    title, kind = "challenge-sat", "challenge"
    formula = "as many formulas decided as can be, each with its assignment or proof; verdict 2 leaves one open"
    score = "share of formulas decided"
    axes = ("batch", "variables", "clauses", "proof", "ms")
    full = ((64, 100, 426, 262144, 500), (64, 200, 852, 262144, 1000))
    tiny = ((3, 12, 55, 2048, 300), (2, 5, 4, 64, 300))
    adversarial = ()
    undecided_allowed = True

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        found = super().judge(n, inputs, outputs)
        return found if found.score is None else right(score=found.score / n.batch, note=found.note)

    def solve(self, n: Sizes, clauses: torch.Tensor) -> Any:
        return search(clauses.long(), n.variables, n.proof, n.ms)


def search(clauses: torch.Tensor, variables: int, capacity: int, ms: int = 0) -> tuple[torch.Tensor, ...]:
    """Backtracking (Davis, Logemann and Loveland 1962) on all formulas at once, a step for each together, with the choice of Jeroslow and
    Wang.

    Where propagation meets a false clause, the decisions cannot all hold: that clause goes into the proof, and the last decision that was
    not turned over is. Turned ones follow from earlier clauses of the proof by propagation. Returns the outputs of `Satisfiability`."""
    batch, device = len(clauses), clauses.device
    size = 2 * variables + 1
    at = clauses % size  # literal l at l, its opposite at the mirrored place
    decision = torch.zeros(batch, variables, dtype=torch.int64, device=device)
    turned = torch.zeros(batch, variables, dtype=torch.bool, device=device)
    depth = torch.zeros(batch, dtype=torch.int64, device=device)
    levels, rows = torch.arange(variables, device=device), torch.arange(batch, device=device)
    verdict = torch.full((batch,), OPEN, device=device)
    assignment = torch.zeros(batch, variables, dtype=torch.int64, device=device)
    proof = torch.zeros(batch, capacity + variables + 2, dtype=torch.int32, device=device)
    length = torch.zeros(batch, dtype=torch.int64, device=device)
    running = torch.ones(batch, dtype=torch.bool, device=device)
    more = within(ms) if ms else lambda: True
    while bool(running.any()) and more():
        taken = torch.where(levels < depth[:, None], decision, 0)
        value = torch.zeros(batch, size, dtype=torch.int8, device=device)
        value.scatter_(1, taken % size, 1).scatter_(1, -taken % size, -1)
        value[:, 0] = 0
        while True:
            seen = value.gather(1, at.flatten(1)).view_as(at)
            free, satisfied = (seen == 0).sum(-1), (seen == 1).any(-1)
            unit = ((free == 1) & ~satisfied)[..., None] & (seen == 0)
            literal = torch.where(unit, clauses, 0).flatten(1)
            if not bool((literal != 0)[running].any()):
                break
            value.scatter_(1, literal % size, 1)
            # of two opposite units both are false from here, and both clauses
            value.scatter_(1, -literal % size, -1)
            value[:, 0] = 0
        conflict = running & ((free == 0) & ~satisfied).any(1)
        done = running & ~conflict & satisfied.all(1)
        verdict[done] = SATISFIABLE
        assignment[done] = (value[done][:, 1 : variables + 1] == 1).long()
        decides = running & ~conflict & ~done
        # the literal that most and shortest clauses ask for
        asked = torch.where((seen == 0) & ~satisfied[..., None], 0.5 ** free[..., None].float(), 0.0)
        weight = torch.zeros(batch, size, device=device).scatter_add_(1, at.flatten(1), asked.flatten(1))
        choice = weight.argmax(1)
        choice = torch.where(choice > variables, choice - size, choice)
        decision[rows[decides], depth[decides]] = choice[decides]
        turned[rows[decides], depth[decides]] = False
        depth += decides
        standing = (levels < depth[:, None]) & ~turned & conflict[:, None]
        places = length[:, None] + standing.cumsum(1) - 1
        proof[rows[:, None].expand_as(places)[standing], places[standing]] = -decision[standing].int()
        count = standing.sum(1)
        length += torch.where(conflict, count + 1, 0)  # ended by a zero, which is there
        last = torch.where(standing, levels, -1).amax(1)
        refuted = conflict & (last < 0)
        verdict[refuted] = UNSATISFIABLE
        back = conflict & ~refuted
        decision[rows[back], last[back]] *= -1
        turned[rows[back], last[back]] = True
        depth = torch.where(back, last + 1, depth)
        running &= ~(done | refuted)
        overflow = running & (length > capacity)
        length[overflow] = 0
        running &= ~overflow
    fits = length <= capacity
    verdict = torch.where((verdict == UNSATISFIABLE) & ~fits, OPEN, verdict)
    return verdict.int(), assignment.int(), proof[:, :capacity], length.clamp_max(capacity).int()


PROBLEMS = (Satisfiability, SatisfiabilityInTime)
