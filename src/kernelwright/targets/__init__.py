"""Where candidates run: `cpu`, `cuda` and `fake`. Each target is compiled for without the device and opened in a judge process."""

from __future__ import annotations

from kernelwright.targets.target import Target, TargetUnavailable

NAMES = ("cpu", "cuda", "fake")


def target(name: str) -> Target:
    """The target of that name: `cpu`, `cuda` (the device that is there), `cuda:sm_80`, `cuda:sm_90`, `fake`, or `auto` for the best that
    works.

    Raises ValueError for other names. A target that cannot run here is returned all the same; ask `unavailable()`.
    """
    if name == "cpu":
        from kernelwright.targets.cpu import CpuTarget

        return CpuTarget()
    if name == "fake":
        from kernelwright.targets.fake import FakeTarget

        return FakeTarget()
    if name == "cuda" or name.startswith("cuda:sm_"):
        from kernelwright.targets.cuda import CudaTarget

        return CudaTarget(name.partition(":")[2] or None)
    if name == "auto":
        cuda = target("cuda")
        return cuda if cuda.unavailable() is None else target("cpu")
    raise ValueError(f"unknown target {name!r}; choose one of auto, {', '.join(NAMES)}, cuda:sm_80, cuda:sm_90")


def usable(name: str) -> Target:
    """The same, but raises TargetUnavailable with the reason when it cannot run here."""
    one = target(name)
    if reason := one.unavailable():
        raise TargetUnavailable(f"target {one.name} cannot be used here: {reason}")
    return one
