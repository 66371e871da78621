"""`prune_`: makes a model's linear layers sparse, in place."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.sparse import sparsegpt
from kernelwright.sparse.calibration import Moments, calibrate
from kernelwright.sparse.linear import SKIP, elsewhere, owners_of, skipped
from kernelwright.sparse.scores import lowest, wanda

METHODS = {"magnitude": "layer", "wanda": "row", "sparsegpt": "layer"}
"""With the scope that each one's paper uses."""


@dataclass(frozen=True)
class PrunedLayer:
    """One layer's outcome."""

    name: str
    shape: tuple[int, int]
    sparsity: float
    error: float | None
    """Squared change of the outputs on the calibration data over their squared size; None without data or with wanda alone."""


@torch.no_grad()
def prune_(
    model: nn.Module,
    method: str = "wanda",
    sparsity: float = 0.5,
    calibration: Iterable[Any] | None = None,
    *,
    scope: str | None = None,
    skip: Sequence[str] = SKIP,
    errors: bool = False,
    block: int = sparsegpt.BLOCK,
    damping: float = sparsegpt.DAMPING,
) -> list[PrunedLayer]:
    """Sets `sparsity` of the weights of each nn.Linear in `model` to zero, but for those named in `skip` (a whole name or its last part)
    and those that share their weight with another module.

    method      "magnitude": the smallest (Han et al., NeurIPS 2015); needs no data
                "wanda": the smallest |w| * ||x||_2 (Sun et al., ICLR 2024)
                "sparsegpt": and changes those that stay to make up for it (Frantar and Alistarh, ICML 2023)
    scope       "row": every row loses exactly round(sparsity * columns), wanda's choice
                "layer": the layer loses exactly round(sparsity * weights), the choice of magnitude pruning and, one block of columns
                after the other, of sparsegpt
                None: that of the method's paper
    calibration batches for the model: a tensor, a tuple of positional or a dict of keyword arguments each; the papers use 128
                sequences of 2,048 tokens
    errors      also measure each layer's error on the data, which needs (columns, columns) floats, as sparsegpt does
    block       of sparsegpt: columns for which a mask is chosen at a time
    damping     of sparsegpt: what is added to the Hessian's diagonal, as a part of its mean

    Raises ValueError for what cannot be done, before anything is changed where that can be known. Warns where a good part of the weights is
    in other modules than nn.Linear (joined experts of mixture models).
    """
    if method not in METHODS:
        raise ValueError(f"no pruning method {method!r}; choose one of {', '.join(METHODS)}")
    if not 0 < sparsity < 1:
        raise ValueError(f"sparsity={sparsity} is not between 0 and 1; 0.5 sets half of the weights to zero")
    if scope not in (None, "row", "layer"):
        raise ValueError(f"scope={scope!r} is neither 'row' nor 'layer'")
    if calibration is None and (method != "magnitude" or errors):
        raise ValueError(f"{method} needs calibration data; pass calibration=[batches of the model's inputs]")
    if isinstance(calibration, Tensor | Mapping):
        raise ValueError("calibration is one batch; pass a list of batches, [batch] if it is the only one")
    if block < 1:
        raise ValueError(f"block={block} is no number of columns; the paper's is {sparsegpt.BLOCK}")
    if not (layers := _layers(model, skip)):
        other = next((f" {name} is none, for example." for name in elsewhere(model)), "")
        raise ValueError(f"this model has no nn.Linear to prune (those that are tied or named in skip are left alone).{other}")
    chosen = scope or METHODS[method]
    done: list[PrunedLayer] = []

    def prune_layer(name: str, layer: nn.Linear, moments: Moments | None) -> None:
        weight = layer.weight.detach()
        if method == "sparsegpt":
            assert moments is not None and moments.products is not None
            pruned = sparsegpt.prune(weight, moments.products, sparsity, chosen, block, damping).to(weight.dtype)
        else:
            scores = wanda(weight, moments.square_sums) if method == "wanda" and moments else weight.float().abs()
            pruned = weight.masked_fill(lowest(scores, sparsity, chosen), 0)
        error = output_error(weight, pruned, moments.products) if moments and moments.products is not None else None
        layer.weight.copy_(pruned)
        zeros = 1 - int(torch.count_nonzero(pruned)) / pruned.numel()
        done.append(PrunedLayer(name, (layer.out_features, layer.in_features), zeros, error))

    if method == "magnitude" and not errors:
        for name, layer in layers.items():
            prune_layer(name, layer, None)
    else:
        calibrate(model, layers, () if calibration is None else calibration, prune_layer, products=errors or method == "sparsegpt")
    others = {name: p.numel() for name, p in elsewhere(model).items() if name not in layers}
    if 10 * sum(others.values()) > sum(layer.weight.numel() for layer in layers.values()):
        name, share = max(others, key=lambda n: others[n]), sum(others.values()) / sum(p.numel() for p in model.parameters())
        said = f"{share:.0%} of this model's weights were left alone, as {name} and others are no nn.Linear"
        warnings.warn(said, stacklevel=3)  # no_grad is between
    return done


def output_error(weight: Tensor, pruned: Tensor, products: Tensor) -> float:
    """||(W - P) X||^2 / ||W X||^2, with products = X X^T."""
    change, weight = pruned.float() - weight.float(), weight.float()
    size = float(((weight @ products) * weight).sum())
    return float(((change @ products) * change).sum()) / size if size else 0.0


def _layers(model: nn.Module, skip: Sequence[str]) -> dict[str, nn.Linear]:
    owners = owners_of(model)
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not skipped(name, skip) and len(owners[id(layer.weight)]) == 1
    }
