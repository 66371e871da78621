"""Molecular dynamics of a Lennard-Jones fluid: forces, motion and energy, worked out in float64 from the positions that were written.

Reduced units: mass, epsilon and sigma are 1. Two particles nearer than CUTOFF push each other apart with f(r) - f(CUTOFF), where
f(r) = 24 (2 r^-13 - r^-7) (shifted force, Toxvaerd and Dyre 2011: without the shift rounding decides whether a pair at the cutoff pushes at
all); the box is periodic. Velocity Verlet (Swope et al. 1982). Trajectories diverge exponentially, so a whole one is never compared: each
snapshot is judged by what float64 makes of the snapshot before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelwright.problems.validators import Finding, Tensors, right, wrong

CUTOFF = 2.5
FORCE_SHIFT = 24 * (2 * CUTOFF**-13 - CUTOFF**-7)
SHIFT = 4 * (CUTOFF**-12 - CUTOFF**-6)
STEP = 0.004
DRIFT = 2e-3
"""Change of the total energy a particle, in epsilon, over a run: seven times what was seen in 400 runs."""
BOUND = 4.0
"""Of an error over its scale: float32 showed up to 0.7 in 400 runs."""
_TOGETHER = 10
"""Steps for which one list of pairs is made."""


Differences = dict[str, tuple[torch.Tensor, float | torch.Tensor]]
"""By name: how far something is from what it should be, and the scale of that."""


@dataclass(frozen=True)
class Pairs:
    """Neighbours that may come nearer than the cutoff."""

    i: torch.Tensor
    j: torch.Tensor


def near(x: torch.Tensor, box: float, reach: float) -> Pairs:
    """All pairs nearer than `reach`, each once, of positions (n, 3) anywhere."""
    side = int(box / reach)
    if side < 3:
        j, i = torch.triu_indices(len(x), len(x), 1, device=x.device).flip(0).unbind()
        return _within(x, box, reach, i, j)
    place = torch.floor((x / box - torch.floor(x / box)) * side).long().clamp_max(side - 1)
    cell, order = ((place[:, 0] * side + place[:, 1]) * side + place[:, 2]).sort()
    starts = torch.searchsorted(cell, torch.arange(side**3 + 1, device=x.device))
    found_i, found_j = [], []
    for offset in torch.cartesian_prod(*[torch.arange(-1, 2)] * 3).tolist():
        beside = (place + torch.tensor(offset, device=x.device)) % side
        there = (beside[:, 0] * side + beside[:, 1]) * side + beside[:, 2]
        first, count = starts[there], starts[there + 1] - starts[there]
        i = torch.repeat_interleave(torch.arange(len(x), device=x.device), count)
        nth = torch.arange(len(i), device=x.device) - torch.repeat_interleave(count.cumsum(0) - count, count)
        j = order[first[i] + nth]
        found_i.append(i[i < j])
        found_j.append(j[i < j])
    return _within(x, box, reach, torch.cat(found_i), torch.cat(found_j))


def _within(x: torch.Tensor, box: float, reach: float, i: torch.Tensor, j: torch.Tensor) -> Pairs:
    d = separation(x[i] - x[j], box)
    keep = (d * d).sum(1) < reach * reach
    return Pairs(i[keep], j[keep])


def separation(d: torch.Tensor, box: float) -> torch.Tensor:
    """Differences of positions to the nearest image."""
    return d - box * torch.round(d / box)


def forces(x: torch.Tensor, box: float, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Forces (n, 3) and the potential energy, in x's type."""
    d = separation(x[pairs.i] - x[pairs.j], box)
    square = (d * d).sum(1)
    inside = square < CUTOFF * CUTOFF
    inverse = torch.where(inside, 1 / square, 0)
    sixth = inverse**3
    force = (24 * (2 * sixth * sixth - sixth) * inverse - FORCE_SHIFT * inverse.sqrt())[:, None] * d
    total = torch.zeros_like(x).index_add_(0, pairs.i, force).index_add_(0, pairs.j, -force)
    return total, torch.where(inside, 4 * (sixth * sixth - sixth) - SHIFT + FORCE_SHIFT * (square.sqrt() - CUTOFF), 0).sum()


def advance(
    x: torch.Tensor, v: torch.Tensor, box: float, steps: int, stiffest: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions and velocities after so many steps of velocity Verlet, in x's type; `stiffest` becomes the largest stiffness on the way."""
    pairs, f = Pairs(x[:0], x[:0]), torch.empty_like(x)
    for step in range(steps):
        if step % _TOGETHER == 0:
            # half as fast again as now, no pair that is left out comes nearer than the cutoff meanwhile
            together = min(_TOGETHER, steps - step)
            pairs = near(x, box, CUTOFF + max(0.1, 3 * together * STEP * float(v.norm(dim=1).max())))
            f, _ = forces(x, box, pairs)
        v = v + 0.5 * STEP * f
        x = x + STEP * v
        f, _ = forces(x, box, pairs)
        v = v + 0.5 * STEP * f
        if stiffest is not None:
            torch.maximum(stiffest, _stiffness(x, box, pairs), out=stiffest)
    return x, v


def molecular(inputs: Tensors, outputs: Tensors, *, every: int, unit: float = 2.0**-24) -> Finding:
    """Inputs position (n, 3), velocity (n, 3), box (1); outputs positions (s, n, 3), velocities (s, n, 3) after `every`, 2 `every` ...
    steps, positions up to whole boxes, and forces (s, n, 3) at those positions.

    `unit` is the unit roundoff that errors are measured in: of the type that the answer may compute in."""
    box = float(inputs["box"].double())
    x, v, f = (outputs[k].double() for k in ("positions", "velocities", "forces"))
    if not all(bool(torch.isfinite(t).all()) for t in (x, v, f)):
        return wrong("positions, velocities and forces are finite numbers; found others")
    before, speed = inputs["position"].double(), inputs["velocity"].double()
    pairs = near(before, box, CUTOFF)
    start = last = _energy(before, speed, box, pairs)
    worst = 0.0
    for s in range(len(x)):
        stiffest = torch.zeros(len(before), 1, dtype=before.dtype, device=before.device)
        want_x, want_v = advance(before, speed, box, every, stiffest)
        # what rounding explains: positions are rounded at every step, forces fall or rise steeply with them
        coordinate = unit * box
        in_motion = unit * (1 + want_v.abs().max()) * (every + 1) + STEP * every * stiffest * coordinate
        in_place = coordinate * (every + 1) + STEP * every * in_motion
        differences: Differences = {"positions": (separation(x[s] - want_x, box), in_place)}
        if found := _off(differences, s, every):
            return found  # before anything is made of positions that may all be one
        now = near(x[s], box, CUTOFF + 1e-3)
        want_f, _ = forces(x[s], box, now)
        stiff = _stiffness(x[s], box, now)
        differences |= {
            "velocities": (v[s] - want_v, in_motion),
            "forces": (f[s] - want_f, 2 * unit * want_f.abs().max() + stiff * coordinate),
        }
        if found := _off(differences, s, every):
            return found
        worst = max(worst, *(float((d.abs() / scale).max()) for d, scale in differences.values()))
        last = _energy(x[s], v[s], box, now)
        before, speed = x[s], v[s]
    if not abs(last - start) <= DRIFT * len(before):
        return wrong(f"the energy of a particle drifts by {(last - start) / len(before):.3g}, at most {DRIFT:.3g} is allowed")
    return right(worst, BOUND)


def _off(differences: Differences, snapshot: int, every: int) -> Finding | None:
    for name, (difference, scale) in differences.items():
        error = float((difference.abs() / scale).max())
        if not error <= BOUND:
            row = int(difference.abs().amax(1).argmax())
            note = f"{name} of snapshot {snapshot} are not what {every} steps from the one before lead to: particle {row} is off by "
            return wrong(note + f"{float(difference.abs().max()):.3g}", error, BOUND)
    return None


def _energy(x: torch.Tensor, v: torch.Tensor, box: float, pairs: Pairs) -> float:
    return float(forces(x, box, pairs)[1] + 0.5 * (v * v).sum())


def _stiffness(x: torch.Tensor, box: float, pairs: Pairs) -> torch.Tensor:
    """How much a particle's force changes with a position, at most, (n, 1): the sum over its neighbours of the potential's second
    derivative."""
    d = separation(x[pairs.i] - x[pairs.j], box)
    square = (d * d).sum(1)
    inverse = torch.where(square < CUTOFF * CUTOFF, 1 / square, 0)
    sixth = inverse**3
    each = inverse * (624 * sixth * sixth + 168 * sixth)
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    return total.index_add_(0, pairs.i, each).index_add_(0, pairs.j, each)[:, None]
