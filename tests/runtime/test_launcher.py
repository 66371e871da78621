"""The launcher against a CUDA driver that records what it is asked."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, fake_bindings, kernels

from kernelwright.families import family
from kernelwright.families.family import DeviceFacts
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorArg, TensorMapArg, WorkspaceArg
from kernelwright.runtime.launcher import Launcher, LaunchError, LauncherUnavailable, stored
from kernelwright.targets.launch import Tensor, pack, workspace_bytes
from kernelwright.targets.target import CandidateFault

pytest.importorskip("cuda.bindings.driver")

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
AXES = {"M": 64, "N": 32, "K": 48}
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6


@pytest.fixture
def cuda(cuda: FakeCuda) -> FakeCuda:
    cuda.lib.fake_reset()
    return cuda


@pytest.fixture
def launcher(cuda: FakeCuda) -> Launcher:
    return Launcher(str(cuda.path), cuda.exchange())


def matrices(dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    shapes = {"a": ("M", "K"), "b": ("K", "N"), "c": ("M", "N")}
    return {name: torch.empty(*(AXES[axis] for axis in shape), dtype=dtype) for name, shape in shapes.items()}


A, B, C = (TensorArg(name=name) for name in "abc")
MAP_A = TensorMapArg(name="a", dims=("K", "M"), strides=("ld_a * 2",), box=(16, 64), swizzle="32B")


def plan_of(*args, launches: int = 1, workspace: int = 0, zeroed: bool = True, pdl: bool = False) -> LaunchPlan:
    one = Launch(kernel="k", args=args, grid=("M", 1, 1), block=(128, 1, 1), pdl=pdl)
    return LaunchPlan(launches=(one,) * launches, workspace=workspace, workspace_zeroed=zeroed)


def register(launcher: Launcher, cuda: FakeCuda, op: int, tensors: Mapping[str, torch.Tensor], plan: LaunchPlan, **options) -> None:
    sizes = {"tensormap": 128, "scalar": 4}
    found = {launch.kernel: [sizes.get(a.__struct_config__.tag, 8) for a in launch.args] for launch in plan.launches}
    launcher.register(op, tensors, plan, kernels(cuda, found), AXES, sms=132, **options)


def words(record) -> list[int]:
    """Parameters of 8 bytes each."""
    raw = bytes(record.params[: record.size])
    return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]


# ------------------------------------------------------------------------------------------------------------- parameters

RENDERED = [
    (name, text)
    for name in ("gemm_sm90_persistent", "gemm_sm90_ring", "gemm_sm90_whole_k", "gemm_sm90_tiny", "gemm_sm80", "chain_cuda")
    for text in (
        *(f"gemm:256x512x256:fp16:{layout}" for layout in ("nn", "nt", "tn", "tt")),
        "gemm:64x64x4096:bf16:nt",
        "linear:256x512x256:fp16:nt:bias+residual+gelu",
        "chain:softmax:64x128",
    )
    if not family(name).refuses(resolve(text), H200) and family(name).seeds(resolve(text), H200)
]


@pytest.mark.parametrize(("name", "text"), RENDERED)
def test_kernels_receive_the_bytes_that_the_plan_packs(launcher, cuda, name, text):
    """Once with the tensors it was registered with, once with others like them."""
    w = resolve(text)
    letters = dict(zip("ab", w.layout, strict=False))
    specs = problem_of(w).tensors(w)

    def tensors(pad: int) -> dict[str, torch.Tensor]:
        """As a caller has them: a transposed operand is a view of the matrix that is stored."""
        made = {}
        for s in specs:
            rows = torch.empty(*s.shape[:-1], s.shape[-1] + (pad if len(s.shape) > 1 else 0), dtype=TORCH_DTYPES[s.dtype])
            made[s.name] = rows[..., : s.shape[-1]]
        return made

    plans = {c.plan for c in (family(name).render(config, w, H200) for config in family(name).seeds(w, H200)) if c.plan}
    for number, plan in enumerate(plans):
        for pad in (0, 8):
            first, second = tensors(pad), tensors(pad)
            names = {**w.axes, "sms": 132}
            for s in specs:
                names |= {f"ld_{s.name}": s.shape[-1] + (pad if len(s.shape) > 1 else 0), f"numel_{s.name}": first[s.name].numel()}
                names[f"align_{s.name}"] = 16
            size = workspace_bytes(plan, names)

            def packed(of, address, plan=plan, names=names, size=size):
                return pack(plan, names, {s.name: Tensor(of[s.name].data_ptr(), s.dtype) for s in specs}, address, size)

            cuda.lib.fake_reset()
            sizes = {p.kernel: p.sizes for p in packed(first, 0)}
            op = launcher.operation(f"{text} {number} {pad}")
            views = [{n: t.t() if letters.get(n) == "t" else t for n, t in of.items()} for of in (first, second)]
            launcher.register(op, views[0], plan, kernels(cuda, sizes), w.axes, sms=132)
            for of, view in zip((first, second), views, strict=True):
                before = len(cuda.launches())
                assert launcher.launch(op, *view.values()) is True
                block = launcher._workspaces.get((0, 0, plan.workspace_zeroed, False))
                assert size == 0 or (block is not None and block.numel() >= size and not (plan.workspace_zeroed and block.any()))
                expected = packed(of, block.data_ptr() if block is not None and size else 0)
                got = cuda.launches()[before:]
                assert len(got) == len(expected) > 0
                for place, (one, wanted) in enumerate(zip(got, expected, strict=True)):
                    assert bytes(one.params[: one.size]) == cuda.params(fake_bindings(cuda), wanted)
                    assert (tuple(one.grid), tuple(one.block), one.smem) == (wanted.grid, wanted.block, wanted.smem)
                    attributes = {} if wanted.cluster == (1, 1, 1) else {CLUSTER_DIMENSION: wanted.cluster}
                    attributes |= {PROGRAMMATIC_SERIALIZATION: (1, 0, 0)} if place and wanted.pdl else {}  # between launches of a plan
                    assert {one.ids[i]: tuple(one.values[i]) for i in range(one.attributes)} == attributes


def test_every_kind_of_plan_is_among_the_rendered():
    kinds = set()
    for name, text in RENDERED:
        w = resolve(text)
        for config in family(name).seeds(w, H200):
            plan = family(name).render(config, w, H200).plan
            assert plan is not None
            kinds |= {type(a) for launch in plan.launches for a in launch.args} | {len(plan.launches)}
            kinds.add((plan.workspace != 0, plan.workspace_zeroed))
    assert {TensorMapArg, WorkspaceArg, ScalarArg, TensorArg, 2, (True, True), (True, False)} <= kinds


# ------------------------------------------------------------------------------------------------------------------- keys


def off_by(t: torch.Tensor, elements: int) -> torch.Tensor:
    return torch.empty(t.numel() + 64, dtype=t.dtype)[elements : elements + t.numel()].view(t.shape)


def padded(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape[0], t.shape[1] + 8, dtype=t.dtype)[:, : t.shape[1]]


def transposed(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape[1], t.shape[0], dtype=t.dtype).t()


@pytest.mark.parametrize("which", ["a", "b", "c"])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.to(torch.bfloat16),
        lambda t: t.to(torch.float32),
        lambda t: t[:-1],
        lambda t: t[:, :-1].contiguous(),
        padded,
        transposed,
        lambda t: off_by(t, 4),
        lambda t: t[None],
        lambda t: t.flatten(),
        lambda t: t.to("meta"),
        lambda t: t.to_sparse(),
        lambda t: t.as_subclass(type("Other", (torch.Tensor,), {})),
    ],
    ids=["bf16", "fp32", "rows", "cols", "ld", "layout", "align", "rank1", "vector", "meta", "sparse", "subclass"],
)
def test_another_tensor_is_unknown(launcher, cuda, which, change):
    t = matrices()
    op = launcher.operation("gemm")
    register(launcher, cuda, op, t, plan_of(A, B, C))
    assert launcher.launch(op, *t.values()) is True
    t[which] = change(t[which])
    assert launcher.launch(op, *t.values()) is None
    assert len(cuda.launches()) == 1


def test_another_operation_device_or_number_of_tensors_is_unknown(launcher, cuda):
    t = matrices()
    op = launcher.operation("linear:bias")
    assert launcher.operation("linear:gelu") != op == launcher.operation("linear:bias")
    register(launcher, cuda, op, t, plan_of(A, B, C))
    assert launcher.launch(launcher.operation("linear:gelu"), *t.values()) is None
    assert launcher.launch(op, t["a"], t["b"]) is None
    assert launcher.launch(op, *t.values(), t["c"]) is None
    cuda.lib.fake_device(1)
    assert launcher.launch(op, *t.values()) is None
    cuda.lib.fake_device(0)
    assert launcher.launch(op, *t.values()) is True
    with torch._subclasses.FakeTensorMode():  # pyright: ignore[reportAttributeAccessIssue]
        assert launcher.launch(op, *matrices().values()) is None
    for wrong in ((op,), (op, *[t["a"]] * 9)):
        with pytest.raises(TypeError, match="1 to 8 tensors"):
            launcher.launch(*wrong)
    assert launcher.launch(op, 3, t["b"], t["c"]) is None


def test_parameters_of_a_module_are_plain_tensors(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(A, B, C))
    assert launcher.launch(0, t["a"], torch.nn.Parameter(t["b"]), t["c"]) is True


def test_what_the_library_serves_is_known_as_such(launcher, cuda):
    t = matrices()
    launcher.register_library(7, *t.values())
    assert launcher.launch(7, *t.values()) is False
    assert launcher.launch(7, t["a"], t["b"], padded(t["c"])) is None
    assert cuda.launches() == []


def test_a_plan_that_does_not_take_the_tensors_is_refused(launcher, cuda):
    t = matrices()
    plan = plan_of(A, B, C).replace(requires=("ld_b % 64 == 0",))
    with pytest.raises(CandidateFault, match="it requires ld_b"):
        register(launcher, cuda, 0, t, plan)
    with pytest.raises(CandidateFault, match="align_a"):
        register(launcher, cuda, 0, t | {"a": off_by(t["a"], 4)}, plan_of(A, B, C).replace(requires=("align_a % 16 == 0",)))
    with pytest.raises(ValueError, match=r"contiguous\(\)"):
        register(launcher, cuda, 0, t | {"a": torch.empty(64, 96, dtype=torch.float16)[:, ::2]}, plan_of(A, B, C))
    with pytest.raises(ValueError, match="4 axes"):
        launcher.register_library(0, torch.empty(1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="48 parameters"):
        register(launcher, cuda, 0, t, plan_of(*[A] * 49))
    assert launcher.launch(0, *t.values()) is None


def test_how_tensors_are_stored():
    x = torch.empty(6, 8)
    assert stored(x) == ("n", 8) and stored(x.t()) == ("t", 8) and stored(x[:, :4]) == ("n", 8) and stored(x[:, :4].t()) == ("t", 8)
    assert stored(x[0]) == ("n", 8) and stored(x[:1]) == ("n", 8) and stored(torch.empty(5)) == ("n", 5)
    assert stored(torch.empty(2, 3, 4)) == ("n", 4) and stored(torch.empty(2, 3, 8)[..., :4]) == ("n", 8)
    for bad in (x[:, ::2], x[:, 0], torch.empty(3, 2, 4).transpose(0, 1), torch.empty(1, 8).expand(6, 8), torch.empty(2, 4, 3).mT):
        with pytest.raises(ValueError, match="not served"):
            stored(bad)


# ---------------------------------------------------------------------------------------- streams, workspaces, captures


def test_launches_go_to_the_current_stream_in_the_context_they_were_made_in(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(A, B, C))
    for stream, context in ((0, 1), (0x700, 1), (0x800, 2), (0x700, 0)):
        cuda.lib.fake_stream(stream)
        cuda.lib.fake_context(context)
        assert launcher.launch(0, *t.values()) is True
        assert cuda.lib.fake_current_context() == context
    assert [(r.stream, r.context) for r in cuda.launches()] == [(0, 1), (0x700, 1), (0x800, 1), (0x700, 1)]
    cuda.lib.fake_context(0)
    with pytest.raises(LaunchError, match="no CUDA context"):
        register(launcher, cuda, 1, t, plan_of(A, B, C))


def test_each_stream_has_its_own_workspace(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(C, WorkspaceArg(offset=256), workspace=1024))
    assert launcher.launch(0, *t.values()) is True
    cuda.lib.fake_stream(0x700)
    assert launcher.launch(0, *t.values()) is None
    launcher.ready(0, *t.values())
    assert launcher.launch(0, *t.values()) is True
    first, second = (launcher._workspaces[0, s, True, False] for s in (0, 0x700))
    assert not first.any() and not second.any()
    assert [words(r)[1] for r in cuda.launches()] == [first.data_ptr() + 256, second.data_ptr() + 256]
    # another plan shares what is large enough and of its kind
    register(launcher, cuda, 1, t, plan_of(C, WorkspaceArg(), workspace=512))
    assert launcher._workspaces[0, 0x700, True, False] is second
    register(launcher, cuda, 2, t, plan_of(C, WorkspaceArg(), workspace=4096))
    third = launcher._workspaces[0, 0x700, True, False]
    register(launcher, cuda, 3, t, plan_of(C, WorkspaceArg(), workspace=512, zeroed=False))
    assert third.numel() == 4096 and launcher._workspaces[0, 0x700, False, False] is not third
    for op in (0, 1, 2, 3):
        assert launcher.launch(op, *t.values()) is True
    assert words(cuda.launches()[2])[1] == third.data_ptr() + 256


def test_a_captured_graph_has_a_workspace_of_its_own(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(C, WorkspaceArg(), workspace=1024))
    register(launcher, cuda, 1, t, plan_of(A, B, C))
    outside = launcher._workspaces[0, 0, True, False].data_ptr()
    seen = []
    for capture in (11, 12):
        cuda.lib.fake_capture(0, 1, capture)
        assert launcher.launch(0, *t.values()) is None
        assert launcher.launch(1, *t.values()) is True
        kept = launcher._workspaces.get((0, 0, True, True))  # until the next capture: its memory is then free to be used again
        launcher.ready(0, *t.values())
        assert launcher.launch(0, *t.values()) is True
        seen.append(launcher._workspaces[0, 0, True, True].data_ptr())
        assert words(cuda.launches()[-1])[1] == seen[-1] != outside
        del kept
    cuda.lib.fake_capture(0, 0, 0)
    assert launcher.launch(0, *t.values()) is True
    assert words(cuda.launches()[-1])[1] == outside
    cuda.lib.fake_capture(0, -1, 0)
    assert launcher.launch(0, *t.values()) is None


def test_dependent_launches_are_an_option(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(A, B, C, pdl=True))
    register(launcher, cuda, 1, t, plan_of(A, B, C, pdl=True), dependent=True)
    register(launcher, cuda, 2, t, plan_of(A, B, C), dependent=True)
    for op in (0, 1, 2):
        launcher.launch(op, *t.values())
    assert [[(r.ids[i], r.values[i][0]) for i in range(r.attributes)] for r in cuda.launches()] == [
        [],
        [(PROGRAMMATIC_SERIALIZATION, 1)],
        [],
    ]


# ----------------------------------------------------------------------------------------------- failures and lifetimes


def test_what_the_driver_says_is_raised_and_a_half_used_workspace_is_given_up(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(C, WorkspaceArg(), launches=2, workspace=1024))
    cuda.lib.fake_fail(1, 1)
    with pytest.raises(LaunchError, match=r"launching: invalid argument \(CUDA_ERROR_INVALID_VALUE\)"):
        launcher.launch(0, *t.values())
    cuda.lib.fake_fail(0, 0)
    assert len(cuda.launches()) == 1
    assert launcher.launch(0, *t.values()) is None
    launcher.ready(0, *t.values())
    assert launcher.launch(0, *t.values()) is True


def test_tensor_maps_are_encoded_once_for_an_address_and_the_oldest_go(cuda):
    launcher = Launcher(str(cuda.path), cuda.exchange(), tensor_maps=8)
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(MAP_A))
    before = cuda.lib.fake_encoded()
    others = [torch.empty_like(t["a"]) for _ in range(9)]

    def encodes(a: torch.Tensor) -> int:
        count = cuda.lib.fake_encoded()
        assert launcher.launch(0, a, t["b"], t["c"]) is True
        assert words(cuda.launches()[-1])[0] == a.data_ptr()
        return cuda.lib.fake_encoded() - count

    assert [encodes(a) for a in others[:8]] == [1] * 8
    assert [encodes(a) for a in others[:8]] == [0] * 8
    assert encodes(others[0]) == 0
    assert encodes(others[8]) == 1  # in the place of the second, which was used longest ago
    assert [encodes(a) for a in (others[0], *others[2:])] == [0] * 8
    assert encodes(others[1]) == 1 and encodes(others[0]) == 1 and encodes(others[8]) == 0
    assert cuda.lib.fake_encoded() == before + 11


def test_maps_of_one_tensor_are_told_apart(cuda):
    launcher = Launcher(str(cuda.path), cuda.exchange(), tensor_maps=8)
    t = matrices()
    wide = MAP_A.replace(box=(32, 64), swizzle="64B")
    register(launcher, cuda, 0, t, plan_of(MAP_A, wide, MAP_A))
    for _ in range(2):
        assert launcher.launch(0, *t.values()) is True
        maps = [words(cuda.launches()[-1])[i : i + 16] for i in (0, 16, 32)]
        assert maps[0] == maps[2] and [m[7] >> 32 for m in maps] == [16, 32, 16]


def test_released_means_unknown_and_unloaded(launcher, cuda, monkeypatch):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(C, WorkspaceArg(), workspace=1024))
    launcher.register_library(1, *t.values())
    order = []

    class Loaded:
        def unload(self):
            order.append("unload")

    launcher._modules[Path("k.cubin"), torch.device("cuda", 0)] = Loaded()
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronize"))
    launcher.release()
    assert order == ["synchronize", "unload"]
    assert launcher.launch(0, *t.values()) is None and launcher.launch(1, *t.values()) is None
    assert launcher._workspaces == {} and launcher._modules == {}
    register(launcher, cuda, 0, t, plan_of(C, WorkspaceArg(), workspace=1024))
    assert launcher.launch(0, *t.values()) is True


def test_registering_again_replaces(launcher, cuda):
    t = matrices()
    register(launcher, cuda, 0, t, plan_of(A))
    register(launcher, cuda, 0, t, plan_of(B))
    launcher.launch(0, *t.values())
    assert words(cuda.launches()[0]) == [t["b"].data_ptr()]


def test_threads_launch_while_others_register(launcher, cuda):
    """Each thread has its stream and tensors; those of odd number share a stream and a plan of two launches with a workspace."""
    rounds, count = 2000, 6
    shared = 0x99
    sets = [matrices() for _ in range(count)]
    kernel = kernels(cuda, {"k": [8, 128, 8]})
    plan = plan_of(C, MAP_A, WorkspaceArg(), launches=2, workspace=256)

    def sign_up(op: int) -> None:
        launcher.register(op, sets[0], plan, kernel, AXES, sms=132)

    for stream in (*range(1, count), shared):
        cuda.lib.fake_stream(stream)
        sign_up(0)
    failures: list[object] = []
    stop = threading.Event()

    def work(i: int) -> None:
        cuda.lib.fake_stream(shared if i % 2 else i + 1)
        for _ in range(rounds):
            if (served := launcher.launch(0, *sets[i].values())) is not True:
                failures.append(served)

    def churn() -> None:
        op = 1
        while not stop.is_set() and op < 60000:
            op += 1
            launcher.register_library(op, *sets[0].values())
            if op % 1000 == 0:
                sign_up(op)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    other = threading.Thread(target=churn)
    for t in (other, *threads):
        t.start()
    for t in threads:
        t.join()
    stop.set()
    other.join()
    assert failures == []
    streams: dict[int, list[tuple[int, int]]] = {}
    for r in cuda.launches():
        raw = bytes(r.params[:256])
        streams.setdefault(r.stream, []).append((int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")))
    assert sum(map(len, streams.values())) == 2 * rounds * count
    pairs = {(s["c"].data_ptr(), s["a"].data_ptr()) for s in sets}
    for launched in streams.values():
        assert set(launched) <= pairs
        assert launched[::2] == launched[1::2]  # the two launches of a call were not parted


# ------------------------------------------------------------------------------------------------------------------ build


def test_without_a_driver_it_says_so(cuda):
    with pytest.raises(LauncherUnavailable, match=r"libnothere.*install the NVIDIA driver"):
        Launcher("libnothere.so.1", cuda.exchange())


def test_the_binary_interface_is_that_of_cuda_h(tmp_path):
    nvidia = pytest.importorskip("nvidia.cu13")
    include = next((Path(p) / "include" for p in nvidia.__path__ if (Path(p) / "include" / "cuda.h").is_file()), None)
    if include is None:
        pytest.skip("no cuda.h")
    import kernelwright.runtime.launcher as package

    (tmp_path / "abi.cpp").write_text(
        """#include <cuda.h>
#include "driver_abi.h"
#include <cstddef>
#define SAME(ours, field, theirs, name) static_assert(offsetof(ours, field) == offsetof(theirs, name))
static_assert(sizeof(cuda::LaunchConfig) == sizeof(CUlaunchConfig) && sizeof(cuda::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(sizeof(cuda::TensorMap) == sizeof(CUtensorMap) && alignof(cuda::TensorMap) == alignof(CUtensorMap));
SAME(cuda::LaunchConfig, grid, CUlaunchConfig, gridDimX);
SAME(cuda::LaunchConfig, block, CUlaunchConfig, blockDimX);
SAME(cuda::LaunchConfig, smem, CUlaunchConfig, sharedMemBytes);
SAME(cuda::LaunchConfig, stream, CUlaunchConfig, hStream);
SAME(cuda::LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME(cuda::LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);
SAME(cuda::LaunchAttribute, value, CUlaunchAttribute, value);
static_assert(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == 4 && CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == 6);
static_assert(CU_TENSOR_MAP_INTERLEAVE_NONE == 0 && CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE == 0 && CU_STREAM_CAPTURE_STATUS_NONE == 0);
"""
    )
    here = Path(str(package.__file__)).parent
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", f"-I{here}", f"-I{include}", str(tmp_path / "abi.cpp")], check=True)
