"""Graph analytics: breadth-first search, shortest paths, PageRank; and the challenge of large independent sets."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.problems.applications.application import Application, but, within
from kernelwright.problems.experts.expert import Sizes
from kernelwright.problems.problem import Tensors
from kernelwright.problems.validators import Finding
from kernelwright.problems.validators import graphs as check
from kernelwright.problems.validators.graphs import FAR, edge_sources
from kernelwright.records import Workload

LONGEST_CHAIN = 300


def compressed(tails: torch.Tensor, heads: torch.Tensor, vertices: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(offsets, targets) of edges in any order."""
    order = (tails * vertices + heads).argsort()
    degree = torch.bincount(tails, minlength=vertices)
    return torch.cat([degree.new_zeros(1), degree.cumsum(0)]), heads[order]


class Search(Application):
    """A directed graph with a source."""

    judged_by = check
    domain = "graphs"
    axes = ("vertices", "edges")
    outputs = {"distance": "vertices : int32", "parent": "vertices : int32"}
    dtypes = ("int32",)
    full = ((1 << 20, 1 << 24), (1 << 22, 1 << 24))
    tiny = ((60, 200), (1, 1), (17, 9))
    adversarial = ("chain", "apart")
    tolerance = "exact: each edge is relaxed, each parent's edge tight"
    largest_weight = 1

    def refuses(self, w: Workload) -> str | None:
        if min(w.axes.values()) < 1 or max(w.axes.values()) > 1 << 28:
            return "has 1 to 2^28 vertices and edges"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        """Edges from anywhere, rather to popular vertices; `chain` begins with a path, from `apart`'s source no edge leads away."""
        names = torch.randperm(n.vertices, generator=rng, device=device)
        tails = torch.randint(n.vertices, (n.edges,), generator=rng, device=device)
        popular = (torch.rand(n.edges, generator=rng, device=device) ** 2 * n.vertices).long().clamp_max(n.vertices - 1)
        heads = names[popular]
        source = torch.randint(n.vertices, (1,), generator=rng, device=device)
        if case == "chain":
            length = min(n.vertices - 1, n.edges, LONGEST_CHAIN)
            tails[:length], heads[:length] = names[:length], names[1 : length + 1]
            if length:
                source = names[:1]
        elif case == "apart":
            heads = torch.where(tails == source, source, heads)
        offsets, targets = compressed(tails, heads, n.vertices)
        weights = torch.randint(1, self.largest_weight + 1, (n.edges,), generator=rng, device=device)
        return {"offsets": offsets, "targets": targets, "weights": weights, "source": source}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return check.shortest_paths(inputs, outputs)

    def solve(self, n: Sizes, **inputs: torch.Tensor) -> Any:
        """Edges are relaxed all at once until nothing changes; then each vertex takes the last tight edge."""
        heads = inputs["targets"].long()
        tails = edge_sources(inputs["offsets"])
        weights = inputs.get("weights", torch.ones_like(inputs["targets"]))
        distance = torch.full((n.vertices,), FAR, dtype=torch.int32, device=heads.device)
        distance[inputs["source"].long()] = 0
        while True:
            by_edge = (distance[tails] + weights).clamp_max(FAR)
            nearer = distance.scatter_reduce(0, heads, by_edge, "amin")
            if torch.equal(nearer, distance):
                break
            distance = nearer
        parent = torch.arange(n.vertices, dtype=torch.int32, device=heads.device)
        tight = (distance[tails] < FAR) & (distance[tails] + weights == distance[heads])
        return distance, parent.scatter_reduce(0, heads[tight], tails[tight].int(), "amax", include_self=False)

    @staticmethod
    def _too_soon(p: Search, n: Sizes, **x: torch.Tensor) -> Any:
        """The farthest vertices are called out of reach."""
        distance, parent = p.solve(n, **x)
        cut = distance == torch.where(distance < FAR, distance, -1).max()
        return torch.where(cut, FAR, distance), torch.where(cut, torch.arange(n.vertices, dtype=torch.int32), parent)

    mistakes = {
        "stops too soon": _too_soon,
        "each vertex its own parent": lambda p, n, **x: but(o := p.solve(n, **x), 1, torch.arange(n.vertices)),
        "the next vertex is the source": lambda p, n, source, **x: p.solve(n, source=(source + 1) % n.vertices, **x),
        "the first half of the edges": lambda p, n, targets, **x: p.solve(
            n, targets=torch.where(torch.arange(n.edges) < n.edges // 2, targets, x["source"]), **x
        ),
    }


_GRAPH = {"offsets": "vertices+1 : int32", "targets": "edges : int32"}


class BreadthFirst(Search):
    title, formula = "bfs", "edges from a source to each vertex, and a tree of parents; 2^30 and itself where there is no way"
    inputs = {**_GRAPH, "source": "1 : int32"}
    read = ("offsets",)


class ShortestPaths(Search):
    title, formula = "sssp", "least sum of weights (1 to 100) from a source to each vertex, and a tree of parents; 2^30 and itself for none"
    inputs = {**_GRAPH, "weights": "edges : int32", "source": "1 : int32"}
    read = ("offsets",)
    largest_weight = 100
    mistakes = {
        **Search.mistakes,
        "all weights alike": lambda p, n, weights, **x: p.solve(n, weights=torch.ones_like(weights), **x),
    }


class PageRank(Search):
    title, formula = "pagerank", "ranks at damping 0.85 with residual 1e-5 at most; ranks of vertices without edges go to all"
    inputs, outputs = _GRAPH, {"rank": "vertices"}
    dtypes, unit = ("fp32",), "vector"
    tolerance = "another step in float64 changes no rank by more than 1e-5 of itself"
    read = ("offsets", "targets")

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        return check.pagerank(inputs, outputs)

    def solve(self, n: Sizes, **inputs: torch.Tensor) -> Any:
        """Power iteration; in float64, as on a GPU sums of many float32, in another order each time, would hardly settle."""
        rank = torch.full((n.vertices,), 1 / n.vertices, dtype=torch.float64, device=inputs["targets"].device)
        while True:
            after = check.ranks_after_a_step(inputs, rank)
            if bool(((after - rank).abs() <= 2e-6 * after).all()):
                return after
            rank = after

    mistakes = {
        "three steps": lambda p, n, **x: _stepped(n, 3, **x),
        "the ranks of vertices without edges are lost": lambda p, n, **x: (r := p.solve(n, **x)) * (1 - 0.5 * (x["offsets"].diff() == 0)),
        "scaled to the number of vertices": lambda p, n, **x: p.solve(n, **x) * n.vertices,
        "edges turned round": lambda p, n, offsets, targets: p.solve(
            n, **dict(zip(("offsets", "targets"), compressed(targets.long(), edge_sources(offsets), n.vertices), strict=True))
        ),
    }


def _stepped(n: Sizes, steps: int, **inputs: torch.Tensor) -> torch.Tensor:
    rank = torch.full((n.vertices,), 1 / n.vertices)
    for _ in range(steps):
        rank = check.ranks_after_a_step(inputs, rank)
    return rank


class IndependentSet(Application):
    judged_by = check
    title, kind, domain = "challenge-independent-set", "challenge", "graphs"
    formula = "as many vertices as can be found, no two of them joined by an edge"
    score = "share of the vertices"
    axes = ("vertices", "edges", "ms")
    inputs, outputs = _GRAPH, {"member": "vertices : int32"}
    dtypes = ("int32",)
    full = ((4000, 40000, 500), (100_000, 1_000_000, 1000))
    tiny = ((60, 200, 300), (2, 2, 300))
    tolerance = "exact: no edge joins two members"
    read = ("offsets",)

    def refuses(self, w: Workload) -> str | None:
        if w.axes["vertices"] < 2 or w.axes["edges"] < 2 or w.axes["edges"] % 2 or w.axes["ms"] < 1:
            return "has 2 or more vertices, an even number of edges (each in both directions), and 1 ms or more"
        return None

    def instance(self, n: Sizes, case: str, rng: torch.Generator, device: Any) -> Tensors:
        a = torch.randint(n.vertices, (n.edges // 2,), generator=rng, device=device)
        b = (a + 1 + torch.randint(n.vertices - 1, a.shape, generator=rng, device=device)) % n.vertices
        offsets, targets = compressed(torch.cat([a, b]), torch.cat([b, a]), n.vertices)
        return {"offsets": offsets, "targets": targets}

    def judge(self, n: Sizes, inputs: Tensors, outputs: Tensors) -> Finding:
        found = check.independent_set(inputs, outputs)
        return found if found.score is None else check.right(score=found.score / n.vertices)

    def solve(self, n: Sizes, offsets: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Vertices that come before all their neighbours join, again and again (Luby 1986), those of few neighbours first; the best of as
        many orders as there is time for."""
        tails, heads = edge_sources(offsets), targets.long()
        more, best = within(n.ms), torch.zeros(n.vertices, dtype=torch.int32, device=heads.device)
        while True:
            member = torch.zeros(n.vertices, dtype=torch.bool, device=heads.device)
            left = ~member
            while bool(left.any()):
                inner = left[tails] & left[heads]
                degree = torch.zeros(n.vertices, device=heads.device).index_add_(
                    0, tails[inner], torch.ones_like(tails[inner], dtype=torch.float)
                )
                rank = torch.where(left, degree + torch.rand(n.vertices, device=heads.device), torch.inf)
                first = torch.full_like(rank, torch.inf).scatter_reduce(0, tails[inner], rank[heads[inner]], "amin")
                joins = left & (rank < first)
                member |= joins
                gone = joins.clone()
                gone[heads[joins[tails]]] = True
                left &= ~gone
            if int(member.sum()) > int(best.sum()):
                best = member.int()
            if not more():
                return best

    mistakes = {
        "everybody": lambda p, n, **x: torch.ones(n.vertices, dtype=torch.int32),
        "the last vertex too": lambda p, n, **x: torch.where(torch.arange(n.vertices) >= n.vertices - 20, 1, p.solve(n, **x)),
        "members counted twice": lambda p, n, **x: 2 * p.solve(n, **x),
        "those outside": lambda p, n, **x: 1 - p.solve(n, **x),
    }


PROBLEMS = (BreadthFirst, ShortestPaths, PageRank, IndependentSet)
