"""Engines: for each GPU a Pack's Dispatcher and the launcher. `serve` is what the operators call (`runtime.ops.serve`).

Tensors of new sizes, strides or alignments are met once: the Dispatcher chooses, the launcher learns the launch or that the library is to
be called, and from then on only its C++ looks at such tensors. The library is cuBLASLt, called by the launcher as well, since PyTorch takes
longer to call it. Nothing here can make a call fail: where we have no pack and no compiler for the launcher, where cuBLASLt has no such
product, and while a CUDA graph is captured that meets something new, the answer is False and torch does it.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from pathlib import Path

import torch
from torch import Tensor

from kernelwright.problems.problem import DTYPE_NAMES
from kernelwright.records import Workload
from kernelwright.runtime import ops, pack_cache, pins
from kernelwright.runtime import pack as packs
from kernelwright.runtime.dispatch import Choice, Dispatcher
from kernelwright.runtime.launcher import Launcher, LaunchError, LauncherUnavailable, open_launcher, stored
from kernelwright.settings import settings
from kernelwright.targets.driver import DeviceFailure
from kernelwright.targets.target import CandidateFault, TargetUnavailable

_engines: dict[torch.device, Engine | None] = {}
_paths: list[Path] = [path for path in (settings().pack,) if path]
_lock = threading.RLock()
_epoch = itertools.count()
"""Of engines: what the launcher learnt for those of an earlier one is known by other numbers, and never launched again."""
_now = next(_epoch)


class Engine:
    """Of one device."""

    def __init__(self, pack: packs.Pack, device: torch.device, launcher: Launcher, sms: int, environment: dict[str, str] | None = None):
        """`environment`: in which `kw.warmup` measured what is pinned here; None where nothing is."""
        self.pack, self.device, self.sms, self.dispatcher = pack, device, sms, Dispatcher(pack)
        self.environment = environment or {}
        if environment is not None:
            self.dispatcher.pinned |= pins.pinned(pack, pins.read(environment))
        self._launcher, self._launch = launcher, launcher.launch
        self._vendor = device.type == "cuda"  # addresses that cuBLASLt may be given
        self._off = False
        self.epoch = _now

    def serve(self, a: Tensor, b: Tensor, out: Tensor, epilogue: str, bias: Tensor | None) -> bool:
        """Whether a kernel was enqueued that writes `out`."""
        if self._off:
            return False
        operation = self.operation(epilogue)
        tensors = [t for t in (a, b, bias, out) if t is not None]
        try:
            done = self._launch(operation, *tensors)
            if done is None:  # known, perhaps, but the stream, or the graph that is captured, has no workspace for it
                self._launcher.ready(operation, *tensors)
                done = self._launch(operation, *tensors)
            if done is None and self._meet(operation, epilogue, a, b, out, bias):
                done = self._launch(operation, *tensors)
        except (LaunchError, DeviceFailure) as error:
            self._off = True
            relearn()
            warnings.warn(f"kernelwright leaves {self.device} to PyTorch from now on: {error}", RuntimeWarning, stacklevel=2)
            return False
        return done is True

    def operation(self, epilogue: str) -> int:
        return self._launcher.operation(f"engine {self.epoch} {epilogue}")

    def hasten(self) -> None:
        """From now on the launcher is asked first, and answers for what engines of this time have met."""
        ops.numbers = {(activation, bias): self.operation(ops.epilogue_of(activation, bias)) for activation, bias in ops.numbers}
        ops.fast = self._launcher.product

    def choose(self, a: Tensor, b: Tensor, epilogue: str = "") -> Choice | None:
        """None where the two are no product of ours."""
        try:
            (left, ld_a), (right, ld_b) = stored(a), stored(b)
        except ValueError:
            return None
        w = Workload(
            problem="linear" if epilogue else "gemm",
            axes={"M": a.shape[0], "N": b.shape[1], "K": a.shape[1]},
            dtype=DTYPE_NAMES[a.dtype],
            layout=left + right,
            epilogue=epilogue,
        )
        return self.dispatcher.choose(w, {"ld_a": ld_a, "ld_b": ld_b})

    def _meet(self, operation: int, epilogue: str, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None) -> bool:
        """Whether to launch again: there is a kernel now."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # loading a kernel is not allowed now
        named = {name: t for name, t in zip(("a", "b", "bias", "c"), (a, b, bias, out), strict=True) if t is not None}
        choice = self.choose(a, b, epilogue)
        if choice is not None and choice.entry is not None and choice.entry.plan is not None:
            artifact = self.pack.artifact(choice.entry)
            assert artifact is not None, "a CUDA kernel has a cubin"
            try:
                kernels = self._launcher.kernels(artifact, self.device)
                self._launcher.register(operation, named, choice.entry.plan, kernels, choice.workload.axes, sms=self.sms)
                return True
            except (CandidateFault, OSError, ValueError):
                pass  # not for tensors like these, or its file is gone
        if choice is not None and epilogue in ("", "bias") and self._vendor:
            try:
                self._launcher.register_vendor(operation, a, b, out, bias)
                return True
            except (CandidateFault, TargetUnavailable, ValueError):
                pass  # PyTorch knows more ways
        self._launcher.register_library(operation, *named.values())
        return False


def use(path: str | Path) -> None:
    """Serves products from this Pack, before those used already. One that cannot be served from is a warning of one sentence, and PyTorch's
    turn. Raises PackError for what is no Pack."""
    try:
        pack = pack_cache.built(packs.load(path, built=False))
    except packs.PackError as error:
        if not (Path(path) / "manifest.json").is_file():
            raise
        warnings.warn(f"kernelwright does not use this pack: {error}", RuntimeWarning, stacklevel=3)
        return
    with _lock:
        _paths.insert(0, pack.path)
        _engines.clear()
        relearn()


def relearn() -> None:
    """What was learnt is void: everything is chosen anew when it is next met."""
    global _now
    with _lock:
        ops.fast = ops.unknown
        _now = next(_epoch)
        for engine in filter(None, _engines.values()):
            engine.epoch = _now
            engine.hasten()


def used() -> tuple[Path, ...]:
    """The packs that products are served from, on devices that they fit: the last named first, that of KERNELWRIGHT_PACK last."""
    return tuple(_paths)


def serve(a: Tensor, b: Tensor, out: Tensor, epilogue: str, bias: Tensor | None) -> bool:
    try:
        engine = _engines[a.device]
    except KeyError:
        engine = of(a.device)
    return engine is not None and engine.serve(a, b, out, epilogue, bias)


def of(device: torch.device) -> Engine | None:
    """The engine of a device; None where torch is alone."""
    with _lock:
        if device not in _engines:
            _engines[device] = opened = _open(device)
            if opened is not None:
                opened.hasten()
        return _engines[device]


def _open(device: torch.device) -> Engine | None:
    if device.type != "cuda" or not _paths:
        return None
    properties = torch.cuda.get_device_properties(device)
    target = f"cuda:sm_{properties.major}{properties.minor}"
    reasons = []
    for path in _paths:
        try:
            pack = packs.load(path, built=False)
            pack.check(target, properties.name)
            pack = pack_cache.built(pack)
            environment = pins.environment(pack, target, properties.name)
            return Engine(pack, device, open_launcher(), properties.multi_processor_count, environment)
        except (packs.PackError, LauncherUnavailable) as error:
            reasons.append(str(error))
    warnings.warn(f"kernelwright leaves {device} to PyTorch: {'; '.join(reasons)}", RuntimeWarning, stacklevel=2)
    return None
