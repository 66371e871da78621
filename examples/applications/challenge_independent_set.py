"""The vertex of fewest neighbours joins, again and again:
kernelwright verify examples/applications/challenge_independent_set.py --problem expert:challenge-independent-set:200x800x500"""

import itertools

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, vertices, edges, ms):
        super().__init__()
        self.vertices = vertices

    def forward(self, offsets, targets):
        ends, heads = offsets.tolist(), targets.tolist()
        beside = [set(heads[a:b]) for a, b in itertools.pairwise(ends)]
        left, member = set(range(self.vertices)), torch.zeros(self.vertices, dtype=torch.int32)
        while left:
            v = min(left, key=lambda u: (len(beside[u]), u))
            member[v] = 1
            for u in beside[v] | {v}:
                for w in beside[u]:
                    beside[w].discard(u)
                left.discard(u)
        return member.to(targets.device)
