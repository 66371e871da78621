"""Kernels for compressed weights, from the packs in use (`kw.use`, KERNELWRIGHT_PACK): those of the problem `spmm`.

A pack says for a weight's shape, dtype and share of zeros which kernel was the fastest at each number of activation rows that was measured,
or that a dense product was. From one row up to the last measured number before dense won, our kernels serve; a number between two measured
ones takes the kernel of the larger. Nothing is guessed for shapes that were not measured: there the weight is unpacked and multiplied
densely. A kernel that unpacks (problem `unpack`) serves weights of every shape: beside it there are only PyTorch's operations, which take
ten times as long and more."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kernelwright.layouts import quad_bitmap
from kernelwright.problems import spmm
from kernelwright.problems.problem import DTYPE_NAMES
from kernelwright.runtime import engine, pack_cache
from kernelwright.runtime import pack as packs
from kernelwright.runtime.launcher import Launcher, LaunchError, LauncherUnavailable, open_launcher
from kernelwright.sparse.compressed import Compressed
from kernelwright.targets.driver import DeviceFailure
from kernelwright.targets.target import CandidateFault

Key = tuple[int, int, str, str, int, str]
"""Of a weight and an epilogue: rows, columns, dtype, layout, values in a word of 32 weights, epilogue."""


@dataclass
class Served:
    """What serves on one device."""

    launcher: Launcher
    sms: int
    kernels: dict[Key, list[tuple[int, packs.Entry]]]
    """Ascending by activation rows, cut off where dense was faster."""
    unpacking: dict[tuple[str, str, int], list[packs.Entry]]
    """By dtype, layout and values in a word of 32 weights."""
    folders: dict[str, packs.Pack]
    """Candidate to the pack that has it."""
    number: int = field(default_factory=itertools.count().__next__)
    """In the launcher's names of operations: what an earlier set of packs taught it is not asked for again."""
    off: bool = False

    def most(self, weight: Compressed, epilogue: str = "") -> int:
        """Activation rows."""
        found = [] if self.off or not _readable(weight) else self.kernels.get(_key(weight, epilogue), [])
        return found[-1][0] if found else 0

    def run(self, x: Tensor, weight: Compressed, bias: Tensor | None, out: Tensor, epilogue: str = "") -> bool:
        """Whether kernels were enqueued that write `out`. The epilogue is none or swiglu, whose bias no other kernel could add."""
        plain = self.kernels.get(_key(weight, epilogue), []) if bias is None or not epilogue else []
        fused = self.kernels.get(_key(weight, f"bias+{epilogue}".rstrip("+")), []) if bias is not None else []
        kernels = fused if fused and fused[-1][0] >= x.shape[0] else plain
        at = bisect.bisect_left(kernels, x.shape[0], key=lambda k: k[0])
        if self.off or at == len(kernels) or (facts := _numbers(weight)) is None:
            return False
        entry = kernels[at][1]
        tensors = {"x": x, "records": weight.parts["records"].view(torch.int32), "offsets": weight.parts["offsets"], "facts": facts}
        if kernels is fused and bias is not None:
            tensors["bias"] = bias
        tensors["y"] = out
        try:
            if not self._launched(entry, tensors, {"N": x.shape[0], "M": weight.shape[0], "K": weight.shape[1]}):
                return False
        except (LaunchError, DeviceFailure) as error:
            self._give_up(error)
            return False
        if kernels is plain and bias is not None:
            out += bias
        return True

    def unpack(self, weight: Compressed, out: Tensor) -> bool:
        """Whether a kernel was enqueued that writes the dense weight into `out`."""
        entries = self.unpacking.get((DTYPE_NAMES[weight.dtype], weight.layout, _expected(weight)), [])
        if self.off or not entries or not _readable(weight) or (facts := _numbers(weight)) is None:
            return False
        entry = min(entries, key=lambda e: abs(math.log(math.prod(weight.shape) / math.prod(e.workload.axes.values()))))
        tensors = {
            "records": weight.parts["records"].view(torch.int32),
            "offsets": weight.parts["offsets"],
            "facts": facts,
            "w": out,
        }
        try:
            return self._launched(entry, tensors, {"M": weight.shape[0], "K": weight.shape[1]})
        except (LaunchError, DeviceFailure) as error:
            self._give_up(error)
            return False

    def _give_up(self, error: Exception) -> None:
        self.off = True
        warnings.warn(f"kernelwright multiplies sparse weights densely from now on: {error}", RuntimeWarning, stacklevel=3)

    def _launched(self, entry: packs.Entry, tensors: dict[str, Tensor], axes: dict[str, int]) -> bool:
        operation = self.launcher.operation(f"sparse {self.number} {entry.candidate}")
        done = self.launcher.launch(operation, *tensors.values())
        if done is None:
            self.launcher.ready(operation, *tensors.values())
            done = self.launcher.launch(operation, *tensors.values())
        device = tensors["records"].device
        if done is None and not _capturing(device):  # which forbids loading kernels
            artifact = self.folders[entry.candidate].artifact(entry)
            assert artifact is not None and entry.plan is not None, "a CUDA kernel has a cubin and a plan"
            try:
                kernels = self.launcher.kernels(artifact, device)
                self.launcher.register(operation, tensors, entry.plan, kernels, axes, sms=self.sms)
            except (CandidateFault, OSError, ValueError):
                self.launcher.register_library(operation, *tensors.values())  # not for tensors like these, or its file is gone
            done = self.launcher.launch(operation, *tensors.values())
        return done is True


PROBLEMS = (spmm.Spmm.name, spmm.Unpack.name)
_facts: dict[tuple[torch.device, int, int], Tensor] = {}
_served: dict[tuple[torch.device, tuple[Path, ...]], Served | None] = {}


def crossover(weight: Compressed, epilogue: str = "") -> int:
    """The most activation rows at which a kernel was measured to be faster than dense; 0 where none serves this weight."""
    served = _of(weight)
    return served.most(weight, epilogue) if served else 0


def run(x: Tensor, weight: Compressed, bias: Tensor | None, out: Tensor, epilogue: str = "") -> bool:
    served = _of(weight)
    return served is not None and served.run(x, weight, bias, out, epilogue)


def unpack(weight: Compressed, out: Tensor) -> bool:
    served = _of(weight)
    return served is not None and served.unpack(weight, out)


def _of(weight: Compressed) -> Served | None:
    key = (weight.device, engine.used())
    if key not in _served:
        if _capturing(weight.device):
            return None
        _served[key] = _open(*key)
    return _served[key]


def _open(device: torch.device, paths: tuple[Path, ...]) -> Served | None:
    if device.type != "cuda" or not paths:
        return None
    of = torch.cuda.get_device_properties(device)
    fitting = []
    for path in paths:
        with contextlib.suppress(packs.PackError):
            pack = packs.load(path, built=False)
            pack.check(f"cuda:sm_{of.major}{of.minor}", of.name)
            if any(e.workload.problem in PROBLEMS for e in pack.entries):
                fitting.append(pack_cache.built(pack))
    try:
        return serving(fitting, open_launcher(), of.multi_processor_count) if fitting else None
    except LauncherUnavailable as error:
        warnings.warn(f"kernelwright multiplies sparse weights densely on {device}: {error}", RuntimeWarning, stacklevel=2)
        return None


def serving(fitting: list[packs.Pack], launcher: Launcher, sms: int) -> Served:
    """Of these packs; the first that knows a weight and an epilogue serves them."""
    kernels: dict[Key, list[tuple[int, packs.Entry]]] = {}
    unpacking: dict[tuple[str, str, int], list[packs.Entry]] = {}
    folders: dict[str, packs.Pack] = {}
    for pack in fitting:
        mine: dict[Key, dict[int, packs.Entry]] = {}
        for e in pack.entries:
            w = e.workload
            if w.problem not in PROBLEMS:
                continue
            kept = spmm.weights(w)
            layout = spmm.LAYOUTS[kept.layout].NAME
            if w.problem == spmm.Spmm.name:
                mine.setdefault((w.axes["M"], w.axes["K"], w.dtype, layout, kept.expected, w.epilogue), {})[w.axes["N"]] = e
            elif not e.rival:
                unpacking.setdefault((w.dtype, layout, kept.expected), []).append(e)
            folders.setdefault(e.candidate, pack)
        for key, by_rows in mine.items():
            ours = itertools.takewhile(lambda pair: not pair[1].rival, sorted(by_rows.items()))
            kernels.setdefault(key, list(ours))
    return Served(launcher, sms, kernels, unpacking, folders)


def _readable(weight: Compressed) -> bool:
    """Whether it is packed in the order that our kernels read."""
    return weight.layout != quad_bitmap.NAME or weight.facts["order"] == quad_bitmap.ORDERS.index("tile")


def _expected(weight: Compressed) -> int:
    """Values in a word of 32 weights, which kernels of quad-bitmap have compiled in."""
    return weight.facts.get("expected", round(32 * (1 - weight.sparsity)))


def _key(weight: Compressed, epilogue: str) -> Key:
    return (*weight.shape, DTYPE_NAMES[weight.dtype], weight.layout, _expected(weight), epilogue)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _numbers(weight: Compressed) -> Tensor | None:
    """The facts that a kernel reads, on the device: weights that agree in them share one. None for new ones while a CUDA graph is captured,
    which their copy to the device would break."""
    key = (weight.device, *spmm.kernel_facts(weight.facts))
    if key not in _facts:
        if _capturing(weight.device):
            return None
        _facts[key] = torch.tensor(key[1:], dtype=torch.int32, device=weight.device)
    return _facts[key]
