"""Runs a model on calibration data and hands each nn.Linear its inputs' second moments, block by block.

A transformer's blocks are one nn.ModuleList whose members are called one after the other, each with the last one's output. Then only one
block's moments are in memory, and each block sees what the pruned blocks before it put out: the procedure of the SparseGPT and Wanda
papers. A model that is not such a chain is run once as a whole, and all layers see the dense model's activations."""

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
    """Calls `use` once for each of `layers`. A batch of `data` is a tensor, a tuple of positional or a dict of keyword arguments of
    `model`. Returns whether it went block by block. Raises ValueError for layers that saw no data."""
    batches = list(data)
    if not batches:
        raise ValueError("the calibration data is empty; give some batches of the model's inputs")
    blocks = _blocks(model, set(layers.values()))
    rest = dict(layers)
    with _inference(model):
        calls = _capture(model, blocks, batches, layers)
        for block in blocks if calls else ():
            inside = set(block.modules())
            mine = {name: rest.pop(name) for name, layer in layers.items() if layer in inside}
            _visit(mine, lambda block=block: _run_block(block, calls), use, products)
            for call, hidden in zip(calls, _run_block(block, calls), strict=True):
                call.hidden = hidden
        _visit(rest, lambda: [_call(model, batch) for batch in batches], use, products)
    return bool(calls)


def _adding(moments: Moments) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return lambda _, args: moments.add(args[0])


def _visit(layers: Mapping[str, nn.Linear], run: Callable[[], Any], use: Use, products: bool) -> None:
    """Runs the data through these layers and prunes them."""
    if not layers:
        return
    moments = {name: Moments(layer, products) for name, layer in layers.items()}
    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(_adding(moments[name])).remove)
        run()
    _busy(name for name in layers if not moments[name].tokens)
    for name, layer in layers.items():
        if not bool(moments[name].square_sums.isfinite().all()):  # every score would be, and any weight could go
            raise ValueError(f"{name} saw NaN or infinity on the calibration data; prune in a wider dtype, or give other data")
        use(name, layer, moments.pop(name))


class _Captured:
    """One batch on its way: the hidden states, and each block's other arguments. The methods are hooks of the dense run."""

    def __init__(self) -> None:
        self.hidden: Any = None
        self.arguments: dict[nn.Module, tuple[tuple, dict]] = {}
        self.chain = True
        self._last: Any = None

    def before(self, block: nn.Module, args: tuple, kwargs: dict) -> None:
        if not args or block in self.arguments or (self.arguments and args[0] is not self._last):
            self.chain = False
            return
        if not self.arguments:
            self.hidden = args[0]
        self.arguments[block] = (args[1:], kwargs)

    def after(self, block: nn.Module, args: tuple, output: Any) -> None:
        self._last = _hidden(output)


def _blocks(model: nn.Module, layers: set[nn.Linear]) -> list[nn.Module]:
    """The members of the nn.ModuleList that holds most of the layers' weights."""

    def held(modules: nn.ModuleList) -> int:
        return sum(m.weight.numel() for m in modules.modules() if isinstance(m, nn.Linear) and m in layers)

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    best = max(lists, key=held, default=None)
    return list(best) if best is not None and held(best) else []


def _capture(model: nn.Module, blocks: list[nn.Module], batches: list[Any], layers: Mapping[str, nn.Linear]) -> list[_Captured]:
    """Runs the dense model once; nothing where it has no blocks or they are not a chain. Raises for layers that saw no data before any is
    pruned."""
    captured = []
    if not blocks:
        return captured
    idle, saw = {layer: name for name, layer in layers.items()}, set()
    for batch in batches:
        call = _Captured()
        with ExitStack() as stack:
            for layer in idle:
                stack.callback(layer.register_forward_pre_hook(lambda layer, _: saw.add(layer)).remove)
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(call.before, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(call.after).remove)
            _call(model, batch)
        if not call.chain or list(call.arguments) != blocks:
            return []
        captured.append(call)
    _busy(name for layer, name in idle.items() if layer not in saw)
    return captured


def _busy(idle: Iterable[str]) -> None:
    for name in idle:
        raise ValueError(f"{name} saw no calibration data; give data that reaches it, or name it in skip")


def _run_block(block: nn.Module, calls: list[_Captured]) -> list[Any]:
    return [_hidden(block(call.hidden, *call.arguments[block][0], **call.arguments[block][1])) for call in calls]


def _hidden(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


@contextmanager
def _inference(model: nn.Module):
    """In eval mode and without a cache of keys and values, which a second run of a block would append to."""
    training = {m: m.training for m in model.modules()}
    configs: list[Any] = [getattr(m, "config", None) for m in model.modules()]  # T5's decoder has its own
    cached = {id(c): c for c in configs if getattr(c, "use_cache", None)}
    model.eval()
    for config in cached.values():
        config.use_cache = False
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
        for config in cached.values():
            config.use_cache = True
