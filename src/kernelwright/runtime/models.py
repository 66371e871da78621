"""`kw.accelerate`: the linear layers of a PyTorch model, Hugging Face transformers' among them, computed by `kw.linear`.

    report = kw.accelerate(model)       # in place; `with kw.accelerate(model):` for a while
    print(report)                       # what changed, what was left to torch and why
    print(report.explain(tokens=(1, 8, 512)))
    report.undo()

A layer stays the same object with the same parameters: only its class becomes a subclass with another forward. So names, state_dict keys,
hooks, tied weights, moves between devices and dtypes, deepcopy and LoRA wrappers around it are as they were, and torch.compile sees one
operator. Code that reads a layer's weight without calling it (torch.nn.MultiheadAttention) never meets us.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from kernelwright.runtime import api, ops

_TRANSFORMERS = "transformers.pytorch_utils"
"""Home of Conv1D, GPT-2's linear layer, whose weight is stored (in, out)."""


class Linear(nn.Linear):
    """torch.nn.Linear, computed by kw.linear."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        return api.linear(input, weight, self.bias) if _ours(input, weight) else super().forward(input)


@cache
def _conv1d(base: type[nn.Module]) -> type[nn.Module]:
    """Of transformers' Conv1D, which need not be installed: the same, computed by kw.linear."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        return api.linear(x, weight.t(), self.bias) if _ours(x, weight) else base.forward(self, x)

    return type("Conv1D", (base,), {"__module__": __name__, "__doc__": base.__doc__, "forward": forward})


def __getattr__(name: str) -> type[nn.Module]:
    """Conv1D, where a pickle of a whole model asks for its class."""
    if name == "Conv1D":
        return _conv1d(importlib.import_module(_TRANSFORMERS).Conv1D)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _ours(x: Tensor, weight: Tensor) -> bool:
    """Neither is a tensor subclass with products of its own: sharded, quantised or nested, perhaps since `accelerate`."""
    return type(x) in ops.PLAIN and type(weight) in ops.PLAIN


@dataclass(frozen=True)
class Layer:
    """One that is served, until it is undone."""

    name: str
    """In the model, as `named_modules` has it."""
    module: nn.Module
    was: type[nn.Module] | None
    """Its class before; None where an earlier `accelerate` had changed it."""

    @property
    def weight(self) -> Tensor:
        """(in, out), as the right factor of the product."""
        weight = self.module.get_parameter("weight")
        return weight.t() if isinstance(self.module, nn.Linear) else weight

    @property
    def served(self) -> bool:
        return type(self.module) in _classes().values()

    @property
    def epilogue(self) -> str:
        return "" if getattr(self.module, "bias", None) is None else "bias"

    @property
    def shape(self) -> str:
        inner, outer = self.weight.shape
        return f"{inner} -> {outer} {_short(self.weight.dtype)}{' with bias' if self.epilogue else ''}"


@dataclass(frozen=True)
class Report:
    """What `accelerate` did to a model. As a context manager it undoes that at the end."""

    layers: tuple[Layer, ...]
    """All that are served since."""
    left: tuple[tuple[str, str], ...]
    """(name, reason) of the linear layers that torch keeps."""

    @property
    def changed(self) -> tuple[Layer, ...]:
        """By this call."""
        return tuple(layer for layer in self.layers if layer.was is not None)

    def undo(self) -> None:
        """Gives the layers that this call changed their class back. Warns of one whose class was changed by somebody else since."""
        for layer in self.layers:
            now = type(layer.module)
            if layer.was is None or now is layer.was:
                continue
            if now is _classes().get(layer.was):
                layer.module.__class__ = layer.was
            else:
                warnings.warn(f"{layer.name} is a {now.__name__} now and was left as it is: undo that first", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        new = len(self.changed)
        count = f"{len(self.layers)} {'layer' if len(self.layers) == 1 else 'layers'} served by kw.linear"
        lines = [f"{count}{'' if new == len(self.layers) else f' ({new} of them new)'}, {len(self.left)} left to torch"]
        lines += _table((layer.name, layer.shape) for layer in self.layers)
        lines += _table((name, f"left: {reason}") for name, reason in self.left)
        return "\n".join(lines)

    def explain(self, tokens: Iterable[int] = (1, 8, 512)) -> str:
        """For each kind of layer and each number of tokens (rows of its input): which kernel of the packs in use is called, and why."""
        if ops.serve is ops.nobody:
            return "kernelwright is disabled: torch computes every layer."
        kinds: dict[tuple[object, ...], list[Layer]] = {}
        for layer in filter(lambda layer: layer.served, self.layers):
            w = layer.weight
            kinds.setdefault((w.device, w.dtype, w.shape, w.stride(), layer.epilogue), []).append(layer)
        served, lines = dict.fromkeys(tokens, 0), []
        for same in kinds.values():
            lines.append(f"{len(same)} x {same[0].shape}: {', '.join(dict.fromkeys(_pattern(layer.name) for layer in same))}")
            choices = {rows: _choice(same[0], rows) for rows in served}
            for rows, (kernel, _) in choices.items():
                served[rows] += len(same) * kernel
            lines += dict.fromkeys(f"  {why}" for _, why in choices.values())
        return "\n".join([*(f"{rows} tokens: a kernel for {n} of {len(self.layers)} layers" for rows, n in served.items()), *lines])


def accelerate(model: nn.Module) -> Report:
    """Has kw.linear compute every torch.nn.Linear and every transformers Conv1D of `model` whose weight is fp16 or bf16, in place.

    Again for a model that was accelerated, it takes what is new. Cast and quantise before: layers are judged by their dtype now, and
    torch.ao.quantization looks for torch.nn.Linear itself. TorchScript's `script` (not `trace`) needs it undone; a whole model that is
    pickled needs kernelwright where it is loaded, its state_dict does not. Raises TypeError for what is no torch.nn.Module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"kw.accelerate takes a torch.nn.Module, not a {type(model).__name__}")
    classes = _classes()
    layers: list[Layer] = []
    left: list[tuple[str, str]] = []
    for name, module in model.named_modules():
        kind, name = type(module), name or "the model itself"
        if kind in classes.values():
            layers.append(Layer(name, module, None))
        elif kind in classes:
            if reason := _unserved(module):
                left.append((name, reason))
            else:
                module.__class__ = classes[kind]
                layers.append(Layer(name, module, kind))
        elif isinstance(module, nn.Linear) or _computes(module):
            left.append((name, f"a {kind.__module__}.{kind.__qualname__}, which may compute in its own way"))
    return Report(tuple(layers), tuple(left))


def _classes() -> dict[type[nn.Module], type[nn.Module]]:
    """What each class becomes."""
    theirs = getattr(sys.modules.get(_TRANSFORMERS), "Conv1D", None)
    return {nn.Linear: Linear} if theirs is None else {nn.Linear: Linear, theirs: _conv1d(theirs)}


def _unserved(module: nn.Module) -> str | None:
    """Why torch keeps a layer of a class that we know."""
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is no parameter but made from others (weight_norm, pruning, FSDP)"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.is_meta:
        return "its weight is on the meta device"
    if weight.layout != torch.strided:
        return "its weight is sparse"
    if weight.dtype not in ops.HALF:
        return f"its weight is {_short(weight.dtype)}: our kernels multiply fp16 and bf16"
    if "forward" in vars(module):
        return "its forward was replaced on the object itself"
    return None


def _computes(module: nn.Module) -> bool:
    """Whether this is somebody else's linear layer, quantised perhaps, and no wrapper around one."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return "Linear" in type(module).__name__ and len(own) > 0


def _choice(layer: Layer, rows: int) -> tuple[bool, str]:
    """Whether a kernel of ours is called, and why."""
    from kernelwright.runtime import engine

    weight = layer.weight
    serving = engine.of(weight.device)
    if serving is None:
        return False, f"no pack serves {weight.device}; name one with kw.use"
    x = torch.empty((rows, weight.shape[0]), dtype=weight.dtype, device="meta")
    choice = serving.choose(x, weight, layer.epilogue)
    if choice is None:
        return False, "the weight's strides are those of no matrix"
    return not choice.library, choice.explain()


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Layers of one kind, in all blocks of a model, in one line."""
    counts: dict[tuple[str, str], int] = {}
    for name, said in rows:
        key = (_pattern(name), said)
        counts[key] = counts.get(key, 0) + 1
    width = max((len(name) for name, _ in counts), default=0)
    return [f"  {n:>4} x {name:<{width}}  {said}" for (name, said), n in counts.items()]


def _pattern(name: str) -> str:
    """layers.3.mlp.up_proj is one of layers.*.mlp.up_proj."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
