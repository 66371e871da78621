"""Our own kernels, a folder each: space.py (legal configs), the kernel source (real code), render.py (config -> Candidate)."""

from __future__ import annotations

import importlib

from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.records import Workload

__all__ = ["NAMES", "Config", "DeviceFacts", "Family", "Space", "families_for", "family"]

_CLASSES = {
    "chain_cpu": ("cpu", "kernelwright.families.chain_cpu:ChainCpu"),
    "chain_cuda": ("cuda", "kernelwright.families.chain_cuda:ChainCuda"),
    "gemm_cpu": ("cpu", "kernelwright.families.gemm_cpu:GemmCpu"),
    "gemm_sm80": ("cuda", "kernelwright.families.gemm_sm80:GemmSm80"),
    "gemm_sm90_persistent": ("cuda", "kernelwright.families.gemm_sm90.family:Persistent"),
    "gemm_sm90_ring": ("cuda", "kernelwright.families.gemm_sm90.family:Ring"),
    "gemm_sm90_tiny": ("cuda", "kernelwright.families.gemm_sm90.family:Tiny"),
    "gemm_sm90_whole_k": ("cuda", "kernelwright.families.gemm_sm90.family:WholeK"),
    "spmm_quad": ("cuda", "kernelwright.families.spmm.family:Streams"),
    "spmm_three_layer": ("cuda", "kernelwright.families.spmm.family:ThreeLayer"),
    "spmm_quad_sm90": ("cuda", "kernelwright.families.spmm.family:Tiles"),
    "unpack_quad": ("cuda", "kernelwright.families.spmm.family:Unpack"),
    "scripted": ("fake", "kernelwright.families.scripted:Scripted"),
}
"""Name to the kind of target and the class; a Family for another kind of target is not even imported."""

NAMES = tuple(_CLASSES)


def family(name: str) -> Family:
    """The Family of that name. Raises ValueError with the known names."""
    if name not in _CLASSES:
        raise ValueError(f"unknown family {name!r}; choose one of {', '.join(_CLASSES)}")
    module, _, cls = _CLASSES[name][1].partition(":")
    return getattr(importlib.import_module(module), cls)()


def families_for(w: Workload, device: DeviceFacts) -> tuple[list[Family], dict[str, str]]:
    """The Families that write kernels for this Workload on this device, and why its others do not."""
    able, refused = [], {}
    for name, (kind, _) in _CLASSES.items():
        if not device.target.startswith(kind):
            continue
        one = family(name)
        reason = one.refuses(w, device)
        if reason is None:
            able.append(one)
        else:
            refused[name] = reason
    return able, refused
