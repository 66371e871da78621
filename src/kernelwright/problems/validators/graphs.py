"""Certificates of graph searches. A graph is CSR: the edges of vertex u are `targets[offsets[u]:offsets[u + 1]]`.

Distances with a parent for each vertex prove themselves (McConnell et al., Certifying algorithms, 2011): no edge can shorten a distance, so
none is too long; each vertex hangs by a tight edge on a parent, and as weights are 1 or more, the way up ends at the source, so none is too
short. A vector of ranks proves itself by its residual.
"""

from __future__ import annotations

import torch

from kernelwright.problems.validators import Finding, Tensors, beyond, right, wrong

FAR = 2**30
"""Distance of what cannot be reached; its parent is itself."""
DAMPING = 0.85


def edge_sources(offsets: torch.Tensor) -> torch.Tensor:
    """The vertex that each edge leaves, int64."""
    vertices = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(vertices, offsets.diff().long())


def shortest_paths(inputs: Tensors, outputs: Tensors) -> Finding:
    """Inputs offsets (V + 1), targets (E), source (1), and weights (E) of 1 or more (BFS has none); outputs distance (V), parent (V)."""
    distance, parent = outputs["distance"].long(), outputs["parent"].long()
    tails, heads = edge_sources(inputs["offsets"]), inputs["targets"].long()
    weights = inputs["weights"].long() if "weights" in inputs else torch.ones_like(heads)
    source, vertices = int(inputs["source"]), torch.arange(len(distance), device=distance.device)
    if bool(((distance < 0) | (distance > FAR)).any()) or bool(((parent < 0) | (parent >= len(distance))).any()):
        return wrong(f"distances go from 0 to {FAR}, parents are vertices; found others")
    if int(distance[source]) != 0 or int(parent[source]) != source:
        return wrong("the source has distance 0 and is its own parent; found otherwise")
    reached = distance < FAR
    shorter = reached[tails] & (distance[tails] + weights < distance[heads])
    if bool(shorter.any()):
        edge = int(shorter.nonzero()[0])
        u, v = int(tails[edge]), int(heads[edge])
        way = int(distance[u] + weights[edge])
        return wrong(f"{int(shorter.sum())} edges lead to a shorter way, first to vertex {v} by {u}: {way}, not {int(distance[v])}")
    tight = reached[tails] & (parent[heads] == tails) & (distance[tails] + weights == distance[heads])
    hangs = torch.zeros_like(reached)
    hangs[heads[tight]] = True
    hangs[source] = True
    if bool((reached & ~hangs).any()):
        v = int((reached & ~hangs).nonzero()[0])
        return wrong(f"no edge leads from vertex {int(parent[v])}, the parent of {v}, to it in a distance of {int(distance[v])}")
    if bool((parent != vertices)[~reached].any()):
        return wrong("a vertex out of reach must be its own parent; found another")
    return right()


def ranks_after_a_step(inputs: Tensors, rank: torch.Tensor) -> torch.Tensor:
    """One step of PageRank in rank's type: damping 0.85, and the ranks of vertices without edges are spread over all."""
    offsets, heads = inputs["offsets"], inputs["targets"].long()
    degree = offsets.diff()
    each = torch.where(degree > 0, rank / degree.clamp_min(1), torch.zeros_like(rank))
    given = torch.zeros_like(rank).index_add_(0, heads, each[edge_sources(offsets)])
    lost = torch.where(degree > 0, torch.zeros_like(rank), rank).sum()
    return (1 - DAMPING) / len(rank) + DAMPING * (given + lost / len(rank))


RESIDUAL = 1e-5
"""Of each rank, relative: the ranks are then off by at most RESIDUAL / (1 - DAMPING) in all, of 1."""


def pagerank(inputs: Tensors, outputs: Tensors) -> Finding:
    """Inputs offsets, targets; output rank (V): it must be what one more step in float64 makes of it."""
    rank = outputs["rank"].double()
    if not bool((torch.isfinite(rank) & (rank > 0)).all()):
        return wrong("ranks are finite and above zero; found others")
    after = ranks_after_a_step(inputs, rank)
    residual = float(((after - rank).abs() / after).max()) if len(rank) else 0.0
    if not residual <= RESIDUAL:
        return wrong(f"another step changes a rank by {residual:.3g} of itself", residual / RESIDUAL, 1.0)
    if beyond((rank.sum() - 1).abs(), RESIDUAL / (1 - DAMPING)):
        return wrong(f"the ranks sum to {float(rank.sum()):.9g}, not to 1")
    return right(residual / RESIDUAL, 1.0)


def independent_set(inputs: Tensors, outputs: Tensors) -> Finding:
    """Inputs offsets, targets of an undirected graph, each edge in both directions; output member (V), 0 or 1. The score is the size."""
    member = outputs["member"]
    if bool(((member != 0) & (member != 1)).any()):
        return wrong("members are marked 1, others 0; found other marks")
    both = (member[edge_sources(inputs["offsets"])] == 1) & (member[inputs["targets"].long()] == 1)
    if bool(both.any()):
        edge = int(both.nonzero()[0])
        return wrong(f"{int(both.sum())} edges join members, first one to vertex {int(inputs['targets'][edge])}")
    return right(score=float(member.sum()))


def tour(inputs: Tensors, outputs: Tensors) -> Finding:
    """Input place (n, 2); output order (n), a permutation. The score is the length of the closed tour."""
    order, place = outputs["order"].long(), inputs["place"].double()
    if not torch.equal(order.sort().values, torch.arange(len(place), device=order.device)):
        return wrong("the order names a place twice, or leaves one out")
    way = place[order]
    return right(score=float((way - way.roll(-1, 0)).norm(dim=1).sum()))
