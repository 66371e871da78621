"""Which tensors of an answer are the problem's parameters, and how other values get into them. In the candidate's own process.

KernelBench makes `Model` and `ModelNew` under one seed, so that both draw the same weights whatever they call them; a quarter of CUDA-L1's
answers have names of their own, one in six keeps tensors that it computed from the weights when it was made (transposed, scaled, folded).
Here every launch has other weights. So an answer is made under a seed as well, and its tensors are found

- by the value that they have in the problem's module under that seed, then by their name, then, where many hold the same constant (ones of
  norms, zeros of biases), by their order;
- where some were computed, by making it again: wherever its constructor has drawn what the problem's did, it finds the new values instead,
  and what it made of them is copied into the instance that runs.

What this does NOT serve: constants (a norm's ones) that a constructor folds into other tensors, and constructors that draw in another
order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelwright.problems.kernelbench import slots

SEED = 0
Values = Mapping[str, torch.Tensor]


def seeded(make: Callable[[], Any], device: str, given: TorchFunctionMode | None = None) -> Any:
    """What `make` returns under SEED, on the device; the generators are afterwards as they were."""
    with torch.random.fork_rng(devices=[torch.device(device)] if device != "cpu" else []), torch.device(device):
        torch.manual_seed(SEED)
        with given or contextlib.nullcontext():
            return make()


def _held(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those, and tensors that are plain attributes."""
    yield from slots(model).items()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _constant(t: torch.Tensor) -> bool:
    return bool((t == t.flatten()[0]).all()) if t.numel() else True


def names(known: Values, model: torch.nn.Module) -> dict[str, str]:
    """For each parameter of the problem that the answer has under the same seed, its path in the answer."""
    free, found = slots(model), {}

    def take(path: str, theirs: str | None) -> None:
        if theirs is not None:
            found[path] = theirs
            del free[theirs]

    def left() -> list[tuple[str, torch.Tensor]]:
        return [(path, value) for path, value in known.items() if path not in found]

    for path, value in left():
        take(path, path if path in free and _same(free[path], value) else None)
    for path, value in left():
        take(path, None if _constant(value) else next((p for p, t in free.items() if _same(t, value)), None))
    for path, value in left():
        take(path, path if path in free and free[path].shape == value.shape and free[path].dtype == value.dtype else None)
    for _, value in left():  # constants: the first of ours is the first of theirs, where there are as many
        ours, theirs = [p for p, t in left() if _same(t, value)], [p for p, t in free.items() if _same(t, value)]
        if len(ours) == len(theirs):
            for pair in zip(ours, theirs, strict=True):
                take(*pair)
    return found


class _Given(TorchFunctionMode):
    """While a module is made: what is drawn as the problem's module drew it gets the new values."""

    def __init__(self, known: Values, values: Values):
        super().__init__()
        self._known = {path: t for path, t in known.items() if not _constant(t)}
        self._values = values
        self.met: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            alike = [path for path, value in self._known.items() if _same(out, value)]
            # met ones again too: what torch.empty returns may hold what an earlier instance has left there, and is drawn afterwards
            if path := next((p for p in alike if p not in self.met), next(iter(alike), None)):
                with torch.no_grad():
                    out.copy_(self._values[path])
                self.met.add(path)
        return out


class Parameters:
    """The plan for one answer. `known`: the problem's parameters under SEED, `make` makes an instance of the answer; both before they are
    cast to another type."""

    def __init__(self, known: Values, make: Callable[[], torch.nn.Module], device: str):
        self._known, self._make, self._device = known, make, device
        first = seeded(make, device)
        held = {path: t.clone() for path, t in _held(first)}
        self._names = {path: path for path in known} if _takes(first, known) else names(known, seeded(make, device))
        missing = [path for path in known if path not in self._names]
        own = {path: t for path, t in held.items() if path not in self._names.values() and t.is_floating_point()}
        self.computed: tuple[str, ...] = ()
        """Tensors that its constructor computes from parameters."""
        if own or missing:
            halves = _Given(known, {path: t / 2 for path, t in known.items()})
            other = dict(_held(seeded(make, device, given=halves)))
            changed = [path for path, t in own.items() if path in other and not _same(other[path], t)]
            again = dict(_held(seeded(make, device))) if changed else {}
            # not what was left uninitialised
            self.computed = tuple(path for path in changed if path in again and _same(again[path], own[path]))
            missing = [path for path in missing if path not in halves.met]
        self.missing = tuple(missing)
        """Parameters that nothing of the answer was found to be."""

    def load(self, model: torch.nn.Module, values: Values, cast: Callable[[torch.nn.Module], torch.nn.Module]) -> tuple[str, ...]:
        """Gives an instance these values of the problem's parameters; those that it does not take."""
        if self.computed:
            fresh = dict(_held(cast(seeded(self._make, self._device, given=_Given(self._known, values)))))
            held = dict(_held(model))
            with torch.no_grad():
                for path in self.computed:
                    held[path].copy_(fresh[path])
        loaded = model.load_state_dict({self._names.get(path, path): t for path, t in values.items()}, strict=False)
        left, places = [], slots(model)
        for path in getattr(loaded, "unexpected_keys", ()):
            if path in places and path in self._names.values():  # a buffer that is no part of its state dict
                places[path].copy_(values[next(ours for ours, theirs in self._names.items() if theirs == path)])
            elif path in self.missing:
                left.append(path)
        return tuple(left)


def _takes(model: torch.nn.Module, known: Values) -> bool:
    """Whether its state dict has the problem's names, or it has a hook that takes them."""
    try:
        return not getattr(model.load_state_dict(dict(known), strict=False), "unexpected_keys", ())
    except RuntimeError:  # of other shapes
        return False
