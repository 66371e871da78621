"""From a plan to the bytes of a launch: no GPU involved."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.records import Launch, LaunchPlan, Outcome, ScalarArg, TensorArg, TensorMapArg, WorkspaceArg
from kernelwright.targets.launch import KernelLimits, Packed, Tensor, TensorMap, check, pack, refuse_unmet, workspace_bytes
from kernelwright.targets.target import CandidateFault

NAMES = {"M": 300, "N": 200, "K": 64, "ld_a": 64, "ld_b": 200, "ld_c": 200, "align_a": 256, "sms": 132}
TENSORS = {"a": Tensor(0x7F0000000000, "fp16"), "b": Tensor(0x7F0000100000, "fp16"), "c": Tensor(0x7F0000200000, "fp16")}
LIMITS = KernelLimits(sm=90, smem=232448, threads=1024, params=None)


def plan(**changes) -> LaunchPlan:
    outer = {k: changes.pop(k) for k in ("workspace", "workspace_zeroed", "requires") if k in changes}
    launch = {"kernel": "k", "args": (), "grid": (1, 1, 1), "block": (128, 1, 1)} | changes
    return LaunchPlan(launches=(Launch(**launch),), **outer)


def one(p: LaunchPlan, names=NAMES, workspace: int = 0x1000, size: int = 0) -> Packed:
    (packed,) = pack(p, names, TENSORS, workspace, size)
    return packed


def refused(text: str, action) -> None:
    with pytest.raises(CandidateFault, match=text) as caught:
        action()
    assert caught.value.outcome is Outcome.LAUNCH_ERROR


def test_arguments_are_packed_in_order():
    packed = one(
        plan(
            args=(
                TensorArg(name="b"),
                ScalarArg(ctype="i32", value="cdiv(K, 32)"),
                ScalarArg(ctype="i64", value="M * N * 100000"),
                ScalarArg(ctype="f32", value=0.5),
                ScalarArg(ctype="f32", value="N"),
                WorkspaceArg(offset="256 * 2"),
            ),
            grid=("cdiv(M, 128)", "cdiv(N, 64)", 1),
            smem="K * 1024",
        ),
        size=1024,
    )
    assert packed.args == (
        struct.pack("<Q", TENSORS["b"].address),
        struct.pack("<i", 2),
        struct.pack("<q", 300 * 200 * 100000),
        struct.pack("<f", 0.5),
        struct.pack("<f", 200.0),
        struct.pack("<Q", 0x1000 + 512),
    )
    assert packed.sizes == (8, 4, 8, 4, 4, 8)
    assert (packed.grid, packed.block, packed.smem) == ((3, 4, 1), (128, 1, 1), 65536)


def test_a_tensor_map_is_evaluated():
    arg = TensorMapArg(name="a", dims=("K", "M"), strides=("ld_a * 2",), box=(64, 128), swizzle="128B", l2_promotion="256B")
    packed = one(plan(args=(arg,)))
    assert packed.args == (TensorMap("fp16", TENSORS["a"].address, (64, 300), (128,), (64, 128), "128B", "256B"),)
    assert packed.sizes == (128,)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dims": ("K", 0)}, "dimension of 0 elements"),
        ({"strides": (100,)}, "stride of 100 bytes"),
        ({"strides": ()}, "2 dims, 0 strides"),
        ({"box": (64, 300)}, "box of 300"),
        ({"box": (4, 64)}, "8 bytes; it must be a multiple of 16"),
        ({"box": (128, 64)}, "256 bytes, more than the 128"),
        ({"name": "z"}, "no tensor 'z'"),
        ({"dims": ("Q", 1)}, "unknown name 'Q'"),
    ],
)
def test_bad_tensor_maps_are_explained(changes: dict, text: str):
    arg = {"name": "a", "dims": ("K", "M"), "strides": (128,), "box": (64, 64), "swizzle": "128B"} | changes
    refused(text, lambda: one(plan(args=(TensorMapArg(**arg),))))


def test_a_misaligned_tensor_has_no_map():
    arg = TensorMapArg(name="a", dims=("K", "M"), strides=(128,), box=(64, 64))
    refused("multiple of 8 bytes", lambda: pack(plan(args=(arg,)), NAMES, {"a": Tensor(0x1008, "fp16")}, 0, 0))


@given(
    value=st.integers(-(2**70), 2**70),
    ctype=st.sampled_from(["i32", "i64"]),
)
def test_integers_fit_or_are_refused(value: int, ctype):
    bits = {"i32": 32, "i64": 64}[ctype]
    p = plan(args=(ScalarArg(ctype=ctype, value=value),))
    if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        assert int.from_bytes(one(p).args[0], "little", signed=True) == value  # pyright: ignore[reportArgumentType]
    else:
        refused("does not fit", lambda: one(p))


@given(st.integers(0, 4000), st.integers(0, 4000), st.integers(1, 300))
def test_an_empty_grid_launches_nothing(m: int, n: int, tile: int):
    names = NAMES | {"M": m, "N": n}
    launched = pack(plan(grid=(f"cdiv(M, {tile})", f"cdiv(N, {tile})", 1)), names, TENSORS, 0, 0)
    assert bool(launched) == (m > 0 and n > 0)
    if launched:
        assert launched[0].grid[0] * tile >= m > (launched[0].grid[0] - 1) * tile


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"grid": ("M - 500", 1, 1)}, "grid is"),
        ({"grid": ("M // 0", 1, 1)}, "cannot evaluate"),
        ({"args": (ScalarArg(ctype="i32", value=0.5),)}, "no integer"),
        ({"args": (TensorArg(name="weights"),)}, "this Workload has a, b, c"),
        ({"args": (WorkspaceArg(offset=4096),)}, "outside the workspace"),
        ({"smem": "nothing"}, "unknown name"),
    ],
)
def test_bad_plans_are_explained(changes: dict, text: str):
    refused(text, lambda: one(plan(**changes)))


def test_workspace_sizes():
    assert workspace_bytes(plan(workspace="M * N * 4"), NAMES) == 240000
    refused("-1 bytes", lambda: workspace_bytes(plan(workspace=-1), NAMES))


def test_unmet_requirements_refuse():
    refuse_unmet(plan(requires=("K % 8 == 0",)), NAMES)
    with pytest.raises(CandidateFault, match="K % 128") as caught:
        refuse_unmet(plan(requires=("K % 128 == 0",)), NAMES)
    assert caught.value.outcome is Outcome.REFUSED
    refused("unknown name", lambda: refuse_unmet(plan(requires=("Z > 0",)), NAMES))


@pytest.mark.parametrize(
    ("changes", "limits", "text"),
    [
        ({"block": (1024, 2, 1)}, {}, "2048 threads"),
        ({"block": (0, 1, 1)}, {}, "block is"),
        ({"block": (1, 1, 65)}, {}, "block is"),
        ({"block": (512, 1, 1)}, {"threads": 384}, "registers and launch bounds"),
        ({"grid": (1, 65536, 1)}, {}, "grid is"),
        ({"smem": 232449}, {}, "232449 bytes of dynamic shared memory"),
        ({"smem": -1}, {}, "dynamic shared memory"),
        ({"cluster": (2, 1, 1), "grid": (3, 1, 1)}, {}, "no multiple of the cluster"),
        ({"cluster": (32, 1, 1), "grid": (32, 1, 1)}, {}, "1 to 16"),
        ({"cluster": (2, 1, 1), "grid": (2, 1, 1)}, {"sm": 80}, "clusters need sm_90"),
        ({"args": (TensorArg(name="a"),)}, {"params": (8, 4)}, "passes 1 arguments, the kernel takes 2"),
        (
            {"args": (TensorArg(name="a"), ScalarArg(ctype="i32", value="K"))},
            {"params": (8, 8)},
            r"argument 1 \(i32 K\) has 4 bytes, the kernel's parameter 8",
        ),
    ],
)
def test_limits_are_checked_before_the_driver_sees_a_launch(changes: dict, limits: dict, text: str):
    from dataclasses import replace

    refused(text, lambda: check(one(plan(**changes)), replace(LIMITS, **limits)))


def test_a_good_launch_passes():
    p = plan(args=(TensorArg(name="a"), ScalarArg(ctype="i32", value="K")), cluster=(2, 1, 1), grid=(4, 1, 1), smem=200000)
    check(one(p), KernelLimits(sm=90, smem=232448, threads=1024, params=(8, 4)))
