"""Answers to satisfiability: an assignment is checked clause by clause, unsatisfiability by a proof of reverse unit propagation.

A proof is a list of clauses, each of which follows from the formula and the clauses before it by unit propagation once its literals are set
to false (Goldberg and Novikov 2003); the last is the empty one. All its clauses are checked at once, each in a column of its own. Deletions
and clauses that only keep satisfiability (DRAT) are not part of the form.
"""

from __future__ import annotations

import torch

from kernelwright.problems.validators import Finding, Tensors, right, wrong

UNSATISFIABLE, SATISFIABLE, OPEN = 0, 1, 2
LONGEST = 4096
"""Clauses of a proof, at most: what the check of one costs stays bounded."""
_AT_ONCE = 1 << 24
"""Literals looked at in one step of propagation: 16 MB for each byte that is kept of one."""


def parse(proof: torch.Tensor, length: int, variables: int) -> list[list[int]] | str:
    """The clauses of the first `length` int32 of a proof, each ended by 0; or why they are none. What is beyond is not looked at."""
    if not 0 < length <= len(proof):
        return f"a proof of {length} numbers; from 1 to {len(proof)} are possible"
    clauses: list[list[int]] = [[]]
    for literal in proof[:length].tolist():
        if abs(literal) > variables:
            return f"the proof has the literal {literal}; there are {variables} variables"
        if literal:
            clauses[-1].append(literal)
        else:
            clauses.append([])
    if clauses.pop():
        return "the proof's last clause is not ended by 0"
    if len(clauses) > LONGEST:
        return f"the proof has {len(clauses)} clauses; at most {LONGEST} are checked"
    if not clauses or clauses[-1]:
        return "the proof does not end with the empty clause"
    return clauses


def propagates(clauses: torch.Tensor, lemmas: list[list[int]], variables: int) -> int | None:
    """The first lemma that does not follow from the clauses (n, width; 0 fills up) and the lemmas before it by unit propagation; None if
    all do."""
    device = clauses.device
    # a clause names a literal once: twice the same would look like two that are free
    listed = [list(dict.fromkeys(c)) for c in lemmas]
    width = max(clauses.shape[1], max(len(c) for c in listed))
    given = torch.nn.functional.pad(_distinct(clauses.long()), (0, width - clauses.shape[1]))
    added = torch.tensor([c + [0] * (width - len(c)) for c in listed], dtype=torch.int64, device=device).view(-1, width)
    every = torch.cat([given, added])
    batch = max(1, _AT_ONCE // max(1, every.numel()))
    for first in range(0, len(lemmas), batch):
        some = added[first : first + batch]
        # of the literal l, value[., l]: true 1, false -1, free 0; the literal 0 is false, and -l is found from the end
        value = torch.zeros(len(some), 2 * variables + 1, dtype=torch.int8, device=device)
        rows = torch.arange(len(some), device=device)
        usable = torch.arange(len(every), device=device) < len(given) + first + rows[:, None]
        value.scatter_(1, some % (2 * variables + 1), -1)
        value.scatter_(1, -some % (2 * variables + 1), 1)
        value[:, 0] = -1
        refuted = torch.zeros(len(some), dtype=torch.bool, device=device)
        tautology = (value.gather(1, some % (2 * variables + 1)) != -1).any(1)  # holds both a literal and its opposite
        refuted |= tautology
        while bool((~refuted).any()):
            seen = value[:, every % (2 * variables + 1)]
            free = (seen == 0).sum(-1)
            unsatisfied = usable & ~(seen == 1).any(-1)
            refuted |= (unsatisfied & (free == 0)).any(1)
            row, clause = (unsatisfied & (free == 1) & ~refuted[:, None]).nonzero(as_tuple=True)
            if not len(row):
                break
            literal = every[clause, (seen[row, clause] == 0).int().argmax(-1)]
            # both signs of one variable may come up at once: set first to last, one clause is false in the next step
            value[row, literal % (2 * variables + 1)] = 1
            value[row, -literal % (2 * variables + 1)] = -1
        if not bool(refuted.all()):
            return first + int((~refuted).nonzero()[0])
    return None


def _distinct(clauses: torch.Tensor) -> torch.Tensor:
    """Repeated literals of a clause replaced by 0."""
    ordered = clauses.sort(1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return ordered.masked_fill(repeated, 0)


def solved(inputs: Tensors, outputs: Tensors, *, open_allowed: bool = False) -> Finding:
    """Input clauses (batch, n, 3), literals 1 to V and their negatives; outputs verdict (batch), assignment (batch, V) of 0 and 1, proof
    (batch, capacity), proof_length (batch). Assignments count where the verdict is SATISFIABLE, proofs where it is UNSATISFIABLE. Where
    OPEN is allowed, the score is how many are solved."""
    clauses, verdict, assignment = inputs["clauses"].long(), outputs["verdict"], outputs["assignment"]
    variables = assignment.shape[1]
    known = (verdict == SATISFIABLE) | (verdict == UNSATISFIABLE) | ((verdict == OPEN) & open_allowed)
    if not bool(known.all()):
        return wrong(f"verdict {int(verdict[~known][0])} of instance {int((~known).nonzero()[0])} is none")
    claimed = verdict == SATISFIABLE
    marks = assignment[claimed]
    if bool(((marks != 0) & (marks != 1)).any()):
        return wrong("an assignment has a value that is neither 0 nor 1")
    of_clause = clauses[claimed]
    holds = (marks.gather(1, (of_clause.abs() - 1).flatten(1)).view_as(of_clause) == 1) == (of_clause > 0)
    left = (~holds.any(-1)).sum(1)
    if bool(left.any()):
        first = int(left.nonzero()[0])
        return wrong(f"the assignment of instance {int(claimed.nonzero()[first])} leaves {int(left[first])} clauses unsatisfied")
    refuted = (verdict == UNSATISFIABLE).nonzero().flatten()
    for b in refuted.tolist():
        lemmas = parse(outputs["proof"][b].cpu(), int(outputs["proof_length"][b]), variables)
        if isinstance(lemmas, str):
            return wrong(f"instance {b} is called unsatisfiable: {lemmas}")
        bad = propagates(clauses[b], lemmas, variables)
        if bad is not None:
            return wrong(f"instance {b} is called unsatisfiable: clause {bad} of its proof does not follow by unit propagation")
    count = int((verdict != OPEN).sum())
    return right(score=float(count) if open_allowed else None, note=f"{int(claimed.sum())} satisfiable, {len(refuted)} refuted")
