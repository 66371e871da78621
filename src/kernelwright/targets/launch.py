"""From a LaunchPlan to the bytes of a launch, without a GPU: expressions evaluated, arguments packed, limits checked.

All faults found here are the candidate's: CandidateFault(LAUNCH_ERROR) with the reason, before anything reaches the driver.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.plan import PlanError, evaluate, unmet
from kernelwright.records import DTYPES, Arg, Launch, LaunchPlan, Outcome, ScalarArg, TensorArg, TensorMapArg, WorkspaceArg
from kernelwright.targets.target import CandidateFault

TENSOR_MAP_BYTES = 128
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024
PORTABLE_CLUSTER = 8
MAX_CLUSTER = 16
"""Blocks of a cluster on Hopper, with the non-portable size allowed."""
WORKSPACE = "<workspace>"
SWIZZLE_BYTES = {"none": None, "32B": 32, "64B": 64, "128B": 128}


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies and what it holds (one of DTYPES)."""

    address: int
    dtype: str


@dataclass(frozen=True)
class TensorMap:
    """Arguments of cuTensorMapEncodeTiled, checked."""

    dtype: str
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    l2_promotion: str


@dataclass(frozen=True)
class Packed:
    """One launch with every number known."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    pdl: bool
    args: tuple[bytes | TensorMap, ...]
    labels: tuple[str, ...]
    """What each argument is, for messages."""
    holds: tuple[str, ...]
    """Whose address each argument holds: a tensor's name, WORKSPACE, or "" for a number."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(TENSOR_MAP_BYTES if isinstance(a, TensorMap) else len(a) for a in self.args)


def fault(text: str) -> CandidateFault:
    return CandidateFault(Outcome.LAUNCH_ERROR, text)


def refuse_unmet(plan: LaunchPlan, names: Mapping[str, int]) -> None:
    """Raises CandidateFault(REFUSED) when the plan does not serve this Workload."""
    try:
        if reason := unmet(plan, names):
            raise CandidateFault(Outcome.REFUSED, reason)
    except PlanError as error:
        raise fault(str(error)) from None


def workspace_bytes(plan: LaunchPlan, names: Mapping[str, int]) -> int:
    size = _value(plan.workspace, names, "workspace")
    if size < 0:
        raise fault(f"the workspace {plan.workspace!r} is {size} bytes")
    return size


def pack(
    plan: LaunchPlan, names: Mapping[str, int], tensors: Mapping[str, Tensor], workspace: int, workspace_size: int
) -> tuple[Packed, ...]:
    """The plan's launches for one set of buffers. A launch whose grid has no block is left out: there is nothing to do.

    `workspace` is its address. Raises CandidateFault(LAUNCH_ERROR).
    """
    packed = []
    for launch in plan.launches:
        grid = _triple(launch.grid, names, f"{launch.kernel}: grid")
        if any(g < 0 for g in grid):
            raise fault(f"{launch.kernel}: the grid is {grid}")
        if 0 not in grid:
            packed.append(_pack_launch(launch, grid, names, tensors, workspace, workspace_size))
    return tuple(packed)


def _pack_launch(
    launch: Launch,
    grid: tuple[int, int, int],
    names: Mapping[str, int],
    tensors: Mapping[str, Tensor],
    workspace: int,
    workspace_size: int,
) -> Packed:
    args, labels = [], []
    for i, arg in enumerate(launch.args):
        label = f"{launch.kernel}: argument {i} ({_label(arg)})"
        args.append(_pack_arg(arg, label, names, tensors, workspace, workspace_size))
        labels.append(_label(arg))
    return Packed(
        kernel=launch.kernel,
        grid=grid,
        block=_triple(launch.block, names, f"{launch.kernel}: block"),
        cluster=launch.cluster,
        smem=_value(launch.smem, names, f"{launch.kernel}: smem"),
        pdl=launch.pdl,
        args=tuple(args),
        labels=tuple(labels),
        holds=tuple(_holds(arg) for arg in launch.args),
    )


def _holds(arg: Arg) -> str:
    match arg:
        case TensorArg() | TensorMapArg():
            return arg.name
        case WorkspaceArg():
            return WORKSPACE
        case ScalarArg():
            return ""


def _label(arg: Arg) -> str:
    match arg:
        case TensorArg():
            return f"tensor {arg.name}"
        case ScalarArg():
            return f"{arg.ctype} {arg.value}"
        case WorkspaceArg():
            return "workspace"
        case TensorMapArg():
            return f"tensor map of {arg.name}"


def _pack_arg(
    arg: Arg, label: str, names: Mapping[str, int], tensors: Mapping[str, Tensor], workspace: int, workspace_size: int
) -> bytes | TensorMap:
    match arg:
        case TensorArg():
            return struct.pack("<Q", _tensor(arg.name, tensors, label).address)
        case WorkspaceArg():
            offset = _value(arg.offset, names, label)
            if not 0 <= offset <= workspace_size:
                raise fault(f"{label}: offset {offset} is outside the workspace of {workspace_size} bytes")
            return struct.pack("<Q", workspace + offset)
        case ScalarArg():
            return _scalar(arg, names, label)
        case TensorMapArg():
            return _tensor_map(arg, _tensor(arg.name, tensors, label), names, label)


def _scalar(arg: ScalarArg, names: Mapping[str, int], label: str) -> bytes:
    value = arg.value if isinstance(arg.value, float) else _value(arg.value, names, label)
    if isinstance(value, float) and arg.ctype != "f32":
        if not value.is_integer():
            raise fault(f"{label}: {value} is no integer")
        value = int(value)
    try:
        return struct.pack({"i32": "<i", "i64": "<q", "f32": "<f"}[arg.ctype], value)
    except (struct.error, OverflowError):
        raise fault(f"{label}: {value} does not fit into {arg.ctype}") from None


def _tensor(name: str, tensors: Mapping[str, Tensor], label: str) -> Tensor:
    if name not in tensors:
        raise fault(f"{label}: there is no tensor {name!r}; this Workload has {', '.join(tensors)}")
    return tensors[name]


def _tensor_map(arg: TensorMapArg, tensor: Tensor, names: Mapping[str, int], label: str) -> TensorMap:
    """Checks what cuTensorMapEncodeTiled demands (CUDA driver API, "Tensor Map Object Management"), which it reports without a reason."""
    size = DTYPES[tensor.dtype]
    dims, strides, box = (tuple(_value(e, names, label) for e in part) for part in (arg.dims, arg.strides, arg.box))
    rank = len(dims)
    if not 1 <= rank <= 5 or len(strides) != rank - 1 or len(box) != rank:
        raise fault(
            f"{label}: {rank} dims, {len(strides)} strides and {len(box)} box sizes; it takes 1 to 5 dims, one stride fewer, as many boxes"
        )
    if bad := [d for d in dims if not 1 <= d <= 2**32]:
        raise fault(f"{label}: a dimension of {bad[0]} elements; add `> 0` of that axis to the plan's requires")
    if bad := [s for s in strides if s % 16 or not 0 < s < 2**40]:
        raise fault(f"{label}: a stride of {bad[0]} bytes; strides must be multiples of 16 (add it to the plan's requires)")
    if tensor.address % 16:
        raise fault(f"{label}: the tensor starts at a multiple of {tensor.address & -tensor.address} bytes; 16 are needed")
    if bad := [b for b in box if not 1 <= b <= 256]:
        raise fault(f"{label}: a box of {bad[0]} elements; 1 to 256 are allowed")
    inner, span = box[0] * size, SWIZZLE_BYTES[arg.swizzle]
    if inner % 16:
        raise fault(f"{label}: the box's inner dimension has {inner} bytes; it must be a multiple of 16")
    if span is not None and inner > span:
        raise fault(f"{label}: the box's inner dimension has {inner} bytes, more than the {span} of its swizzle")
    return TensorMap(tensor.dtype, tensor.address, dims, strides, box, arg.swizzle, arg.l2_promotion)


def _value(expr: int | str, names: Mapping[str, int], label: str) -> int:
    try:
        return evaluate(expr, names)
    except PlanError as error:
        raise fault(f"{label}: {error}") from None


def _triple(exprs: Sequence[int | str], names: Mapping[str, int], label: str) -> tuple[int, int, int]:
    x, y, z = (_value(e, names, label) for e in exprs)
    return x, y, z


# -------------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class KernelLimits:
    """What the device and the compiled kernel allow."""

    sm: int
    smem: int
    """Most dynamic shared memory of a block beside the kernel's static share, bytes."""
    threads: int
    """Most threads of a block, given the kernel's registers and launch bounds."""
    params: tuple[int, ...] | None
    """Size of each parameter, bytes; None where the driver cannot tell."""


def check(packed: Packed, limits: KernelLimits) -> None:
    """Raises CandidateFault(LAUNCH_ERROR) for a launch that the driver would refuse, or, worse, read arguments beyond."""
    name = packed.kernel
    if limits.params is not None and packed.sizes != limits.params:
        if len(packed.sizes) != len(limits.params):
            raise fault(f"{name}: the plan passes {len(packed.sizes)} arguments, the kernel takes {len(limits.params)}")
        i = next(i for i, (a, b) in enumerate(zip(packed.sizes, limits.params, strict=True)) if a != b)
        raise fault(f"{name}: argument {i} ({packed.labels[i]}) has {packed.sizes[i]} bytes, the kernel's parameter {limits.params[i]}")
    for what, sizes, most in (("block", packed.block, MAX_BLOCK), ("grid", packed.grid, MAX_GRID)):
        if any(not 1 <= n <= m for n, m in zip(sizes, most, strict=True)):
            raise fault(f"{name}: the {what} is {sizes}; at least 1 and at most {most} are allowed")
    threads = packed.block[0] * packed.block[1] * packed.block[2]
    if threads > limits.threads:
        why = "" if limits.threads == MAX_THREADS else " with its registers and launch bounds"
        raise fault(f"{name}: {threads} threads in a block; at most {limits.threads} are possible{why}")
    if not 0 <= packed.smem <= limits.smem:
        raise fault(f"{name}: {packed.smem} bytes of dynamic shared memory; the device has {limits.smem} for it")
    blocks = packed.cluster[0] * packed.cluster[1] * packed.cluster[2]
    if blocks != 1:
        if limits.sm < 90:
            raise fault(f"{name}: clusters need sm_90; this device is sm_{limits.sm}")
        if min(packed.cluster) < 1 or blocks > MAX_CLUSTER:
            raise fault(f"{name}: a cluster of {packed.cluster} blocks; 1 to {MAX_CLUSTER} in all are allowed")
        if any(g % c for g, c in zip(packed.grid, packed.cluster, strict=True)):
            raise fault(f"{name}: the grid {packed.grid} is no multiple of the cluster {packed.cluster}")
