"""What `kw.warmup` measured, kept in the user's cache: one file for each Pack and kind of GPU.

It counts in the environment it was measured in alone. Another driver, PyTorch, kernelwright, Pack or GPU: it is measured anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from kernelwright import __version__
from kernelwright.records import Record, Workload
from kernelwright.runtime.dispatch import Pinned
from kernelwright.runtime.pack import Pack
from kernelwright.settings import settings

_DRIVER = Path("/sys/module/nvidia/version")
"""Of Linux's kernel module, without a library to load."""


class Pin(Record, frozen=True, kw_only=True):
    """One choice."""

    workload: Workload
    candidate: str
    """Id of a kernel of the Pack; empty for the library."""
    own_us: float | None
    """Of the fastest kernel, device time, cold."""
    vendor_us: float
    measured: str
    """Date, ISO 8601."""


class Pins(Record, frozen=True, kw_only=True):
    environment: dict[str, str]
    pins: tuple[Pin, ...] = ()


def environment(pack: Pack, target: str, device: str) -> dict[str, str]:
    """All that a choice depends on."""
    try:
        driver = _DRIVER.read_text().strip()
    except OSError:
        driver = "unknown"
    made = {"target": target, "device": device, "driver": driver, "pack": pack.manifest.checksum}
    return made | {"torch": str(torch.__version__), "CUDA": str(torch.version.cuda), "kernelwright": __version__}


def read(environment: dict[str, str]) -> tuple[Pin, ...]:
    """Those measured in this environment; none where there is no such file, or one that cannot be read."""
    try:
        found = Pins.from_json(_path(environment).read_bytes())
    except (OSError, ValueError):
        return ()
    return found.pins if found.environment == environment else ()


def write(environment: dict[str, str], pins: Iterable[Pin]) -> None:
    """Beside those that are there; the newer one of a Workload stays. Raises OSError."""
    merged = {pin.workload: pin for pin in (*read(environment), *pins)}
    path = _path(environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(f".{path.name}.{os.getpid()}")
    partly.write_text(Pins(environment=environment, pins=tuple(merged.values())).to_json())
    partly.replace(path)


def pinned(pack: Pack, pins: Iterable[Pin]) -> dict[Workload, Pinned]:
    """For the Pack's Dispatcher."""
    kernels = {candidate: entries[0] for candidate, entries in pack.kernels().items()}
    return {
        pin.workload: Pinned(kernels.get(pin.candidate), f"measured on {pin.measured}", pin.own_us, pin.vendor_us)
        for pin in pins
        if not pin.candidate or pin.candidate in kernels
    }


def folder() -> Path:
    return settings().home / "warmup"


def _path(environment: dict[str, str]) -> Path:
    """Of a Pack and a kind of GPU: what was measured with another driver or PyTorch is replaced, not kept."""
    key = "\0".join(environment[name] for name in ("pack", "target", "device"))
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
