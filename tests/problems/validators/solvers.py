"""Plain solutions that share no code with the validators: the right answers that these must accept."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence

import torch

FAR = 2**30


def random_graph(draw: random.Random, vertices: int, edges: int) -> tuple[list[int], list[int], list[int]]:
    """(offsets, targets, weights) with loops, multiple edges and vertices out of reach."""
    out: list[list[int]] = [[] for _ in range(vertices)]
    for _ in range(edges):
        out[draw.randrange(vertices)].append(draw.randrange(vertices))
    offsets = [0]
    for row in out:
        offsets.append(offsets[-1] + len(row))
    targets = [v for row in out for v in row]
    return offsets, targets, [draw.randint(1, 9) for _ in targets]


def dijkstra(offsets: Sequence[int], targets: Sequence[int], weights: Sequence[int], source: int) -> tuple[list[int], list[int]]:
    distance, parent = [FAR] * (len(offsets) - 1), list(range(len(offsets) - 1))
    distance[source] = 0
    heap = [(0, source)]
    while heap:
        d, u = heapq.heappop(heap)
        if d > distance[u]:
            continue
        for e in range(offsets[u], offsets[u + 1]):
            if d + weights[e] < distance[targets[e]]:
                distance[targets[e]], parent[targets[e]] = d + weights[e], u
                heapq.heappush(heap, (d + weights[e], targets[e]))
    return distance, parent


def ranks(offsets: Sequence[int], targets: Sequence[int], damping: float = 0.85) -> list[float]:
    """PageRank from the linear system."""
    n = len(offsets) - 1
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for u in range(n):
        edges = targets[offsets[u] : offsets[u + 1]]
        for v in edges:
            matrix[v, u] += 1 / len(edges)
        if not edges:
            matrix[:, u] = 1 / n
    ones = torch.full((n,), (1 - damping) / n, dtype=torch.float64)
    return torch.linalg.solve(torch.eye(n, dtype=torch.float64) - damping * matrix, ones).tolist()


def compress(values: Sequence[float], bound: float) -> bytes:
    """Every block of 64 under predictor 2, the difference from its neighbour; written from the format's description."""
    header, body = bytearray(), bytearray()
    q = [round(v / (2 * bound)) for v in values]
    for at in range(0, len(q), 64):
        block = q[at : at + 64]
        block += [block[-1]] * (64 - len(block))
        differences = [0] + [b - a for a, b in itertools.pairwise(block)]
        codes = [2 * d if d >= 0 else -2 * d - 1 for d in differences]
        width = max(codes).bit_length()
        header.append(2 << 6 | width)
        body += (block[0] % 2**32).to_bytes(4, "little")
        body += sum(code << (i * width) for i, code in enumerate(codes)).to_bytes(8 * width, "little")
    return bytes(header + body)


def dpll(clauses: Sequence[Sequence[int]], variables: int) -> tuple[dict[int, bool] | None, list[int]]:
    """(assignment, []) or (None, proof): at a conflict the decisions that led to it cannot all hold, which is a clause of the proof."""
    proof: list[int] = []

    def propagate(assigned: dict[int, bool]) -> bool:
        changed = True
        while changed:
            changed = False
            for clause in clauses:
                if any(assigned.get(abs(x)) == (x > 0) for x in clause):
                    continue
                free = {x for x in clause if abs(x) not in assigned}
                if not free:
                    return False
                if len(free) == 1:
                    x = free.pop()
                    assigned[abs(x)] = x > 0
                    changed = True
        return True

    def search(decisions: list[int]) -> dict[int, bool] | None:
        assigned = {abs(x): x > 0 for x in decisions}
        if propagate(assigned):
            free = next((v for v in range(1, variables + 1) if v not in assigned), None)
            if free is None:
                return assigned
            for x in (free, -free):
                if (found := search([*decisions, x])) is not None:
                    return found
        proof.extend([-x for x in decisions] + [0])
        return None

    found = search([])
    return found, [] if found else proof


def fluid(side: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(positions, velocities, box) of 4 side^3 particles on a disturbed lattice."""
    box = (4 * side**3 / 0.8) ** (1 / 3)
    cells = torch.cartesian_prod(*[torch.arange(side)] * 3)
    base = torch.tensor([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    x = ((cells[:, None] + base).reshape(-1, 3) + 0.25) * (box / side)
    return x + 0.04 * torch.randn(x.shape, generator=draw), torch.randn(x.shape, generator=draw), box


def pushes(x: torch.Tensor, box: float) -> torch.Tensor:
    """Lennard-Jones forces of all pairs within 2.5, by differentiating the potential."""
    leaf = x.double().requires_grad_()
    d = leaf[:, None] - leaf[None]
    d = d - box * torch.round(d.detach() / box)
    square = (d * d).sum(-1) + torch.eye(len(x)) * 100
    near = square < 2.5**2
    slope = 24 * (2 * 2.5**-13 - 2.5**-7)
    energy = torch.where(near, 2 * (square**-6 - square**-3) + slope / 2 * square.sqrt(), 0).sum()
    return -torch.autograd.grad(energy, leaf)[0]


def simulate(x: torch.Tensor, v: torch.Tensor, box: float, every: int, snapshots: int, dt: float = 0.004) -> dict[str, torch.Tensor]:
    """Velocity Verlet in float32, forces worked out anew at each step."""
    found: dict[str, list[torch.Tensor]] = {"positions": [], "velocities": [], "forces": []}
    f = pushes(x, box).float()
    for step in range(every * snapshots):
        half = v + f * (dt / 2)
        x = (x + half * dt) % box
        f = pushes(x, box).float()
        v = half + f * (dt / 2)
        if step % every == every - 1:
            for name, t in (("positions", x), ("velocities", v), ("forces", f)):
                found[name].append(t)
    return {name: torch.stack(ts) for name, ts in found.items()}
