"""Layers that see the same input as one product: q, k and v of attention; gate and up of a gated MLP, with its silu and its product.

A product of few activation rows with a small weight is over before all multiprocessors are busy with it: one launch for three weights
costs little more than one of the three. The layers stay where they are and save, load and revert under their own names; their weights are
one, which lies in a module beside them (`joined`), and unpacking one of them unpacks all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.layouts import TURN, in_turn
from kernelwright.problems.spmm import apart
from kernelwright.sparse.compressed import Compressed, compress
from kernelwright.sparse.linear import SparseLinear, autocast
from kernelwright.sparse.product import swiglu

SIBLINGS = (("q_proj", "k_proj", "v_proj"),)
GATED = ("gate_proj", "up_proj")
CLOSE = 0.05
"""Relative difference at which an MLP does something else than down(silu(gate(x)) * up(x)): 16-bit roundings make a tenth of that."""


class Joined(SparseLinear):
    """The weight of several layers: theirs one below the other, or 16 rows of either in turn. Of `state_dict` it has no part: the layers
    themselves have."""

    def __init__(self, layers: Sequence[SparseLinear], turns: bool) -> None:
        dense = [layer.compressed.to_dense() for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        join = (lambda two: in_turn(*two)) if turns else torch.cat
        first = layers[0].compressed
        weight = compress(join(dense), first.layout, min_sparsity=0, **first.options)
        super().__init__(weight, nn.Parameter(join(biases), requires_grad=False) if biases else None)
        self.sizes, self.turns = [layer.out_features for layer in layers], turns
        self._kept: tuple[Tensor, dict[int, Tensor]] | None = None

    def part_of(self, whole: Tensor, index: int) -> Tensor:
        """Rows of the layer of this number, in a tensor of all rows."""
        return whole.unflatten(0, (-1, 2, TURN))[:, index].flatten(0, 1) if self.turns else whole.split(self.sizes)[index]

    def result(self, x: Tensor, index: int) -> Tensor:
        """Of one of the layers. The first that is asked for an x computes all, and each takes its own away: who is asked again computes
        again, as x may have been written to meanwhile."""
        kept = self._kept
        if kept is None or kept[0] is not x or index not in kept[1]:
            y = self(x)
            parts = [t.view(*y.shape[:-1], -1) for t in apart(y.flatten(0, -2))] if self.turns else y.split(self.sizes, -1)
            kept = (x, dict(enumerate(parts)))
        own = kept[1].pop(index)
        self._kept = kept if kept[1] else None
        return own

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs) -> None:
        pass


class Part(SparseLinear):
    """One of the layers, in its old place."""

    def __init__(self, whole: Joined, index: int, layer: SparseLinear) -> None:
        nn.Module.__init__(self)
        self.__dict__["_whole"] = whole  # which is a module of the parent, not of each part
        self.index, self.bias = index, layer.bias
        self.out_features, self.in_features = layer.out_features, layer.in_features
        self.train(layer.training)

    @property
    def layout(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__dict__["_whole"].layout

    @property
    def dtype(self) -> torch.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__dict__["_whole"].dtype

    def _apply(self, fn: Any, recurse: bool = True) -> Part:
        nn.Module._apply(self, fn, recurse)  # the weight is cast with the joined one
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.__dict__["_whole"].result(x, self.index)

    @property
    def compressed(self) -> Compressed:
        whole: Joined = self.__dict__["_whole"]
        weight = whole.compressed
        own = whole.part_of(weight.to_dense(), self.index).contiguous()
        return compress(own, weight.layout, min_sparsity=0, **weight.options)

    def _load(self, weight: Compressed) -> None:
        """Its rows of the joined weight become these."""
        self._fits(weight)
        whole: Joined = self.__dict__["_whole"]
        dense = whole.compressed.to_dense()
        dense[self._rows(dense)] = weight.to_dense().to(dense.device)
        whole._set(compress(dense, whole.layout, min_sparsity=0, **whole.compressed.options))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        whole: Joined = self.__dict__["_whole"]
        if self.bias is not None and whole.bias is not None:  # a copy: 16 rows in turn are no view
            whole.bias.data[self._rows(whole.bias)] = self.bias.data.to(whole.bias)

    def _rows(self, whole: Tensor) -> Tensor:
        """Which of the joined ones are its own."""
        return self.__dict__["_whole"].part_of(torch.arange(whole.shape[0], device=whole.device), self.index)

    def separate(self) -> SparseLinear:
        return SparseLinear(self.compressed, self.bias).train(self.training)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, joined with its neighbours"


def fuse(model: nn.Module) -> list[str]:
    """Joins the SparseLinear layers q_proj, k_proj and v_proj of a module, and gate_proj and up_proj of one that computes
    down_proj(silu(gate_proj(x)) * up_proj(x)); in place. Returns the names of the modules whose layers were joined. `unfuse` undoes it.

    The three of a name are expected to be called with the same tensor, one after the other, as models do: other callers get the right
    result, too, for three times the work."""
    done = []
    for name, parent in list(model.named_modules()):
        for names in SIBLINGS:
            if _alike(layers := [parent._modules.get(one) for one in names]):
                _join(parent, names, layers, turns=False)
                done.append(name)
        layers = [parent._modules.get(one) for one in GATED]
        if _alike(layers) and _gate(parent, layers):
            done.append(name)
    return done


def unfuse(model: nn.Module) -> None:
    """Gives each layer its own weight back."""
    for parent in list(model.modules()):
        if isinstance(parent._modules.get("joined"), Joined):
            for name, child in parent._modules.items():
                if isinstance(child, Part):
                    parent._modules[name] = child.separate()
            del parent.joined
            if getattr(type(parent), "before_fusing", None):
                parent.__class__ = type(parent).before_fusing  # pyright: ignore[reportAttributeAccessIssue]


def _alike(layers: Sequence[Any]) -> bool:
    if not all(type(layer) is SparseLinear for layer in layers):
        return False
    kinds = {(layer.in_features, layer.layout, layer.dtype, layer.bias is None, layer.compressed.device) for layer in layers}
    return len(kinds) == 1


def _join(parent: nn.Module, names: Sequence[str], layers: Sequence[Any], turns: bool) -> None:
    parent.joined = Joined(layers, turns)
    for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
        parent._modules[name] = Part(parent.joined, index, layer)


def _gate(parent: nn.Module, layers: Sequence[Any]) -> bool:
    """Whether the module turned out to compute what its name promises: it is asked once."""
    if layers[0].out_features != layers[1].out_features or layers[0].out_features % TURN or "down_proj" not in parent._modules:
        return False
    x = torch.randn(2, layers[0].in_features, device=layers[0].compressed.device).to(layers[0].dtype)
    with torch.no_grad():
        try:
            before = parent(x).float()
        except (RuntimeError, TypeError, ValueError):
            return False
        old = type(parent)
        _join(parent, GATED, layers, turns=True)
        parent.__class__ = _gated(old)
        after = parent(x).float()
    if before.shape == after.shape and bool((after - before).norm() <= CLOSE * before.norm()):
        return True
    parent.__class__ = old
    del parent.joined
    for name, layer in zip(GATED, layers, strict=True):
        parent._modules[name] = layer
    return False


@cache
def _gated(old: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(autocast(x, self.joined.dtype), self.joined.compressed, self.joined.bias))

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # the class has no place in a module where pickle would find it
        return _unpickled, (old,), self.__getstate__()

    changed = {"forward": forward, "__reduce_ex__": __reduce_ex__, "before_fusing": old, "__module__": old.__module__}
    return type(old.__name__, (old,), changed)


def _unpickled(old: type[nn.Module]) -> nn.Module:
    return nn.Module.__new__(_gated(old))
