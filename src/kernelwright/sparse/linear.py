"""nn.Linear on a compressed weight, and the way of a whole model there and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.layouts import quad_bitmap
from kernelwright.sparse.canonical import NAMES, from_canonical, to_canonical
from kernelwright.sparse.compressed import LAYOUTS, Compressed, SparseError, compress
from kernelwright.sparse.product import linear

SKIP = ("lm_head",)
"""Left dense by default: pruning papers leave the output head alone, and it is often tied to the embedding."""


class SparseLinear(nn.Module):
    """Drop-in for nn.Linear: x (..., in_features) -> (..., out_features). The weight takes no gradient; x and bias do.

    Its tensors are buffers in a kernel's layout. `state_dict` holds the canonical form instead (`compressed`, `bitmask`, `shape`,
    `row_offsets`, `checksum`), so that a layout may change without making files unreadable; `load_state_dict` takes that or a dense
    `weight`."""

    def __init__(self, weight: Compressed, bias: Tensor | nn.Parameter | None = None) -> None:
        super().__init__()
        self.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias)
        self._chosen = weight.layout, weight.options
        self._set(weight)

    @classmethod
    def from_linear(cls, linear: nn.Linear, layout: str = quad_bitmap.NAME, **options: Any) -> SparseLinear:
        """Options as for `compress`. The bias is shared with `linear`. Raises SparseError."""
        made = cls(compress(linear.weight, layout, **options), linear.bias)
        made.train(linear.training)
        return made

    def to_linear(self) -> nn.Linear:
        """A dense layer with the same bits; it shares the bias."""
        with torch.device("meta"):
            dense = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        dense.weight = nn.Parameter(self.compressed.to_dense(), requires_grad=False)
        dense.bias = self.bias  # pyright: ignore[reportAttributeAccessIssue]
        return dense.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return linear(autocast(x, self.dtype), self.compressed, self.bias)

    @property
    def compressed(self) -> Compressed:
        parts = {name: self._buffers[name] for name in self._parts}
        return Compressed(self.layout, (self.out_features, self.in_features), self.dtype, self.nonzeros, parts, self._facts)  # pyright: ignore[reportArgumentType]

    @property
    def weight(self) -> Tensor:
        """Unpacked on every access; code that only asks for its dtype or device gets an answer too."""
        return self.compressed.to_dense()

    def _set(self, weight: Compressed) -> None:
        self.out_features, self.in_features = weight.shape
        self.layout, self.dtype, self.nonzeros = weight.layout, weight.dtype, weight.nonzeros
        self._facts, self._parts = weight.facts, tuple(weight.parts)
        for name, part in weight.parts.items():
            self.register_buffer(name, part, persistent=False)

    def _apply(self, fn, recurse: bool = True):
        """Also of .half(), .to(dtype) ..., which find no floating-point tensor here."""
        super()._apply(fn, recurse)
        if (dtype := fn(torch.empty(0, dtype=self.dtype)).dtype) != self.dtype:
            weight, (layout, options) = self.compressed, self._chosen
            if weight.device.type != "meta":
                weight = weight.cast(dtype)
                self._set(weight.as_layout(layout, **options) if dtype.itemsize in LAYOUTS[layout].SIZES else weight)
            self.dtype = dtype
        return self

    def _save_to_state_dict(self, destination, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, entry in to_canonical(self.compressed).items():
            destination[prefix + name] = entry

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs) -> None:
        entries = {name: state_dict[prefix + name] for name in NAMES if prefix + name in state_dict}
        dense = state_dict.get(prefix + "weight")
        try:
            if entries:
                self._load(from_canonical(entries, prefix + "weight"))
            elif dense is not None:
                self._load(compress(dense, self.layout, min_sparsity=0, **self.compressed.options))
            elif strict:
                missing_keys.append(prefix + "compressed")
        except SparseError as error:
            error_msgs.append(str(error))
        rest = {key: value for key, value in state_dict.items() if key not in {prefix + name for name in (*NAMES, "weight")}}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _fits(self, weight: Compressed) -> None:
        if weight.shape != (self.out_features, self.in_features) or weight.dtype != self.dtype:
            raise SparseError(
                f"a {weight.dtype} weight of {weight.shape} does not fit a layer of {self.dtype}, {(self.out_features, self.in_features)}"
            )

    def _load(self, weight: Compressed) -> None:
        self._fits(weight)
        mine = self.compressed
        self._set(weight.to(mine.device).as_layout(mine.layout, **mine.options))

    def extra_repr(self) -> str:
        weight = self.compressed
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, layout={self.layout}, "
            f"sparsity={weight.sparsity:.1%}, bytes_per_weight={weight.bytes_per_weight:.3f}"
        )


def autocast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Under autocast in the weight's dtype, whatever autocast's is: the weight is not cast at each call."""
    kind = x.device.type
    return x.to(dtype) if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) else x


def skipped(layer: str, skip: Sequence[str]) -> bool:
    """Whether `skip` has the layer's whole name or its last part."""
    return layer in skip or layer.rpartition(".")[2] in skip


def owners_of(model: nn.Module) -> dict[int, list[str]]:
    """By a parameter's id, which does not keep it alive: the modules that have it as their own."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    return owners


def elsewhere(model: nn.Module) -> dict[str, nn.Parameter]:
    """Matrices of modules that multiply, perhaps, but are no plain nn.Linear: GPT-2's Conv1D, joined experts, subclasses."""
    left_out = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd, SparseLinear)
    return {
        f"{module_name}.{name}".removesuffix(".weight").lstrip("."): parameter
        for module_name, module in model.named_modules()
        if type(module) is not nn.Linear and not isinstance(module, left_out)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim in (2, 3) and min(parameter.shape[-2:]) > 1 and parameter.is_floating_point()
    }


@dataclass(frozen=True)
class Conversion:
    """What `convert` did."""

    converted: tuple[str, ...]
    left: dict[str, str]
    """Layer -> why it stayed dense."""
    dense_bytes: int
    """Of the weights that were converted, before."""
    sparse_bytes: int


def convert(model: nn.Module, layout: str = quad_bitmap.NAME, *, skip: Sequence[str] = SKIP, **options: Any) -> Conversion:
    """Replaces each nn.Linear of `model` in place, and lets go of its dense weight. Layers named in `skip` (a whole name or its last
    part), those that share their weight with another module and those below `min_sparsity` stay dense; so do matrices elsewhere. Options as
    for `compress`. The own `save_pretrained` of a transformers model then writes the compressed weights.

    `revert` undoes it. Raises SparseError where no layer can be converted."""
    owners = owners_of(model)
    places: dict[nn.Linear, list[tuple[nn.Module, str, str]]] = {}
    for parent_name, parent in model.named_modules():
        for child_name, child in parent._modules.items():  # not named_children, which leaves out second names
            if type(child) is nn.Linear:
                places.setdefault(child, []).append((parent, child_name, f"{parent_name}.{child_name}".lstrip(".")))
    converted, left, before, after = [], {}, 0, 0
    while places:
        dense, where = places.popitem()
        name = where[0][2]
        if skipped(name, skip):
            left[name] = "skipped by name"
        elif others := [other for other in owners[id(dense.weight)] if other not in {w[2] for w in where}]:
            left[name] = f"shares its weight with {others[0]}"
        else:
            try:
                sparse = SparseLinear.from_linear(dense, layout, **options)
            except SparseError as error:
                left[name] = str(error)
                continue
            for parent, child_name, _ in where:
                setattr(parent, child_name, sparse)
            converted.append(name)
            before, after = before + dense.weight.nbytes, after + sparse.compressed.nbytes
        del dense  # or the last weight would outlive its layer here
    others = elsewhere(model)
    if not converted:
        reasons = [why for name, why in left.items() if not skipped(name, skip)]
        reasons += ["its layers are sparse already" for m in model.modules() if isinstance(m, SparseLinear)][:1]
        reasons += [f"{name} is no nn.Linear" for name in others] + [*left.values(), "it has no nn.Linear"]
        raise SparseError(f"no layer of this model was converted: {reasons[0]}")
    left |= dict.fromkeys(others, "is no nn.Linear")
    theirs = getattr(sys.modules.get("transformers"), "PreTrainedModel", None)
    if theirs is not None and isinstance(model, theirs):
        from kernelwright.sparse.hf import announce  # which imports this module

        announce(model)
    return Conversion(tuple(reversed(converted)), left, before, after)


def revert(model: nn.Module) -> int:
    """Puts a dense nn.Linear with the same bits in the place of each SparseLinear; returns how many."""
    from kernelwright.sparse.fuse import unfuse

    unfuse(model)
    made: dict[SparseLinear, nn.Linear] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, SparseLinear):
                if child not in made:
                    made[child] = child.to_linear()
                setattr(parent, name, made[child])
    return len(made)
