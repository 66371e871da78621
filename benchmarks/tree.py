"""A classification tree by Gini impurity (Breiman, Friedman, Olshen, Stone: CART, 1984): what dispatch is compared with."""

from __future__ import annotations

import numpy as np

LEAF = 4
"""Samples in a leaf, at least."""

Node = list | tuple[int, float, "Node", "Node"]
"""A leaf: labels, the most frequent first. Else feature, limit, what is not above it, what is."""


def grow(features: np.ndarray, labels: np.ndarray) -> Node:
    """A classification tree by Gini impurity (Breiman, Friedman, Olshen, Stone: CART, 1984)."""
    counts = np.bincount(labels)
    leaf = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    if len(labels) < 2 * LEAF or len(leaf) == 1:
        return leaf
    found: tuple[float, int, float] | None = None
    onehot = np.eye(len(counts))[labels]
    for feature in range(features.shape[1]):
        order = np.argsort(features[:, feature], kind="stable")
        x, below = features[order, feature], np.cumsum(onehot[order], axis=0)
        sizes, total = np.arange(1, len(labels) + 1), below[-1]
        purity = (below[:-1] ** 2).sum(1) / sizes[:-1] + ((total - below[:-1]) ** 2).sum(1) / sizes[:-1][::-1]
        cuts = np.flatnonzero((np.diff(x) > 1e-9) & (sizes[:-1] >= LEAF) & (sizes[:-1][::-1] >= LEAF))
        if len(cuts):
            cut = cuts[np.argmax(purity[cuts])]
            if found is None or purity[cut] > found[0]:
                found = (float(purity[cut]), feature, float(x[cut] + x[cut + 1]) / 2)
    if found is None:
        return leaf
    _, feature, limit = found
    low = features[:, feature] <= limit
    return feature, limit, grow(features[low], labels[low]), grow(features[~low], labels[~low])
