"""Runs a model on calibration data and hands each nn.Linear its inputs' second moments, block by block.

A transformer's blocks are one nn.ModuleList whose members are called one after the other, each with the last one's output. Then only one block's
moments are in memory, and each block sees what the pruned blocks before it put out: the procedure of the SparseGPT and Wanda papers. A model that is
not such a chain is run once as a whole, and all layers see the dense model's activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Moments:
    """Of one layer's inputs, fp32: `square_sums` (columns), and, where they are asked for, `products` (columns, columns) = sum of x x^T."""

    def __init__(self, layer: nn.Linear, products: bool) -> None:
        device = layer.weight.device
        self.tokens = 0
        self.square_sums = torch.zeros(layer.in_features, device=device)
        self.products = torch.zeros(layer.in_features, layer.in_features, device=device) if products else None

    def add(self, x: Tensor) -> None:
        x = x.detach().reshape(-1, x.shape[-1]).float()
        self.tokens += x.shape[0]
        if self.products is None:
            self.square_sums += x.square().sum(0)
        else:
            self.products.addmm_(x.t(), x)
            self.square_sums = self.products.diagonal()


Use = Callable[[str, nn.Linear, Moments], None]
"""(name, layer, moments): prunes the layer."""


@torch.no_grad()
def calibrate(model: nn.Module, layers: Mapping[str, nn.Linear], data: Iterable[Any], use: Use, products: bool) -> bool:
    """Calls `use` once for each of `layers`. A batch of `data` is a tensor, a tuple of positional or a dict of keyword arguments of `model`.
    Returns whether it went block by block. Raises ValueError for layers that saw no data."""
    names = {layer: name for name, layer in layers.items()}
    batches = list(data)
    if not batches:
        raise ValueError("the calibration data is empty; give some batches of the model's inputs")
    blocks = _blocks(model, names)
    with _inference(model):
        calls = _capture(model, blocks, batches) if blocks else None
        for group in blocks if calls else [model]:
            mine = {layer: Moments(layer, products) for layer in group.modules() if isinstance(layer, nn.Linear) and layer in names}
            again = (lambda block=group: _run_block(block, calls)) if calls else (lambda: [_call(model, batch) for batch in batches])
            with _watched(mine):
                again()
            for layer, moments in mine.items():
                if not moments.tokens:
                    raise ValueError(f"{names[layer]} saw no calibration data; give data that reaches it, or name it in skip")
                use(names[layer], layer, moments)
            if calls:
                for call, hidden in zip(calls, again(), strict=True):
                    call.hidden = hidden
        if calls:
            inside = {layer for block in blocks for layer in block.modules()}
            if rest := {name: layer for name, layer in layers.items() if layer not in inside}:
                mine = {layer: Moments(layer, products) for layer in rest.values()}
                with _watched(mine):
                    for batch in batches:
                        _call(model, batch)
                for name, layer in rest.items():
                    if not mine[layer].tokens:
                        raise ValueError(f"{name} saw no calibration data; give data that reaches it, or name it in skip")
                    use(name, layer, mine[layer])
    return calls is not None


class _Captured:
    """One batch on its way: the hidden states, and each block's other arguments."""

    def __init__(self) -> None:
        self.hidden: Any = None
        self.arguments: dict[nn.Module, tuple[tuple, dict]] = {}


def _blocks(model: nn.Module, names: Mapping[nn.Linear, str]) -> list[nn.Module]:
    """The members of the nn.ModuleList that holds most of the layers' weights."""

    def held(modules: nn.ModuleList) -> int:
        return sum(m.weight.numel() for m in modules.modules() if m in names)  # pyright: ignore

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    best = max(lists, key=held, default=None)
    return list(best) if best is not None and held(best) else []


def _capture(model: nn.Module, blocks: list[nn.Module], batches: list[Any]) -> list[_Captured] | None:
    """Runs the dense model once; None where its blocks are not a chain."""
    captured, chain = [], True
    for batch in batches:
        call, last = _Captured(), None
        order: list[nn.Module] = []

        def before(block, args, kwargs, call=call, order=order):
            nonlocal chain, last
            if not args or (order and args[0] is not last):
                chain = False
                return
            if not order:
                call.hidden = args[0]
            order.append(block)
            call.arguments[block] = (args[1:], kwargs)

        def after(block, args, output):
            nonlocal last
            last = _hidden(output)

        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(after).remove)
            _call(model, batch)
        if not chain or order != blocks:
            return None
        captured.append(call)
    return captured


def _run_block(block: nn.Module, calls: list[_Captured]) -> list[Any]:
    return [_hidden(block(call.hidden, *call.arguments[block][0], **call.arguments[block][1])) for call in calls]


def _hidden(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


@contextmanager
def _watched(moments: Mapping[nn.Linear, Moments]):
    with ExitStack() as stack:
        for layer, its in moments.items():
            stack.callback(layer.register_forward_pre_hook(lambda _, args, its=its: its.add(args[0])).remove)
        yield


@contextmanager
def _inference(model: nn.Module):
    """In eval mode and without a cache of keys and values, which a second run of a block would append to."""
    training = {m: m.training for m in model.modules()}
    config = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    model.eval()
    if cached:
        config.use_cache = False
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
        if cached:
            config.use_cache = cached
