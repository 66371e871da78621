"""PageRank with a sparse product: kernelwright verify examples/applications/pagerank.py --problem expert:pagerank:1000x8000 --target cpu"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, vertices, edges):
        super().__init__()
        self.vertices = vertices

    def forward(self, offsets, targets):
        n = self.vertices
        degree = offsets.diff()
        tails = torch.repeat_interleave(torch.arange(n, device=targets.device), degree)
        share = (0.85 / degree.clamp_min(1))[tails]
        step = torch.sparse_coo_tensor(torch.stack([targets.long(), tails]), share, (n, n)).coalesce()
        stuck = degree == 0
        rank = torch.full((n,), 1 / n, device=targets.device)
        for _ in range(200):
            lost = 0.85 * rank[stuck].sum() / n
            after = torch.mv(step, rank) + lost + 0.15 / n
            if bool(((after - rank).abs() <= 2e-6 * after).all()):
                break
            rank = after
        return after
