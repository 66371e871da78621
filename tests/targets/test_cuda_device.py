"""The opened GPU: kernels run as their plans say, faults are told, times make sense. The sources compile on any machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.records import (
    MODES,
    Candidate,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    Workload,
    WorkspaceArg,
)
from kernelwright.targets.cuda import CudaDevice, CudaTarget
from kernelwright.targets.target import Bound, CandidateFault, Run

W = Workload(problem="chain:test", axes={"n": 1})

COPY = """
extern "C" __global__ void copy(const float4* x, float4* y, long long n) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) y[i] = x[i];
}"""

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}"""

STRAY = """
extern "C" __global__ void stray(float* y) { y[(1ll << 40) + threadIdx.x] = 1.0f; }"""

CLUSTER = """
extern "C" __global__ void cluster(float* y) {
    extern __shared__ float s[];
    unsigned rank, size, word = 0, remote;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    s[0] = 100.0f * size + rank;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    // the value of the next block of the cluster, through distributed shared memory
    unsigned mine = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(mine), "r"((rank + 1) % size));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(remote) : "memory");
    if (threadIdx.x == 0) y[blockIdx.x] = __uint_as_float(word);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}"""

TILE = """
#include <cuda_fp16.h>
#include <kernelwright/tensormap.cuh>
constexpr int ROWS = 32, COLUMNS = 64;
extern "C" __global__ void tile(const __grid_constant__ CUtensorMap map, __half* out, int rows, int columns) {
    __shared__ alignas(128) __half s[ROWS * COLUMNS];
    __shared__ alignas(8) unsigned long long arrived;
    unsigned barrier = (unsigned)__cvta_generic_to_shared(&arrived), target = (unsigned)__cvta_generic_to_shared(s);
    int column = blockIdx.x * COLUMNS, row = blockIdx.y * ROWS;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(ROWS * COLUMNS * 2) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(target),
            "l"(&map), "r"(column), "r"(row), "r"(barrier)
            : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier) : "memory");
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        int r = row + i / COLUMNS, c = column + i % COLUMNS;
        if (r < rows && c < columns) out[r * columns + c] = s[i];
    }
}"""

PAIR = """
extern "C" __global__ void first(const float* x, float* middle, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) middle[i] = 2.0f * x[i];
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
extern "C" __global__ void second(const float* middle, float* y, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = middle[i] + 1.0f;
}"""

FILL = """
extern "C" __global__ void fill(float* w, float* y, int from, int to) {
    if (threadIdx.x == 0) y[0] = w[0];
    __syncthreads();
    for (int i = from + threadIdx.x; i < to; i += blockDim.x) w[i] = 3.0f;
}"""

BIG_SHARED = """
extern "C" __global__ void shared(const float* x, float* y, int n) {
    extern __shared__ float s[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
}"""

SOURCES = {"copy": COPY, "scale": SCALE, "stray": STRAY, "fill": FILL, "shared": BIG_SHARED}
HOPPER = {"cluster": CLUSTER, "tile": TILE, "first": PAIR}


def candidate(source: str, *launches: Launch, **plan: Any) -> Candidate:
    return Candidate(kind="cuda", source=source, plan=LaunchPlan(launches=launches, **plan), origin=Origin(kind="file"))


SCALE_ARGS = (TensorArg(name="x"), TensorArg(name="y"), ScalarArg(ctype="i32", value="n"), ScalarArg(ctype="f32", value=3.0))


def scale(args=SCALE_ARGS, **changes: Any) -> Candidate:
    return candidate(SCALE, Launch(**({"kernel": "scale", "args": args, "grid": ("cdiv(n, 256)", 1, 1), "block": (256, 1, 1)} | changes)))


@pytest.mark.parametrize("name", [*SOURCES, *HOPPER])
def test_the_kernels_of_these_tests_compile(name: str, tmp_path: Path):
    pytest.importorskip("cuda.bindings.nvrtc")
    for arch in ("sm_80", "sm_90") if name in SOURCES else ("sm_90",):
        one = candidate((SOURCES | HOPPER)[name], Launch(kernel=name, args=()))
        assert name in CudaTarget(arch).compile(one, tmp_path).resources


# ------------------------------------------------------------------------------------------------------------------- GPU


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaDevice]:
    opened = CudaTarget().open()
    yield opened
    opened.close()


@pytest.fixture
def load(device: CudaDevice, tmp_path: Path):
    target = CudaTarget()

    def do(one: Candidate, *sets: Bound):
        return device.load(one, target.compile(one, tmp_path), W, sets)

    return do


def bound(**tensors: torch.Tensor) -> Bound:
    names = {"sms": 132}
    for name, t in tensors.items():
        names |= {f"ld_{name}": t.stride(0) if t.dim() == 2 else t.numel(), f"numel_{name}": t.numel()}
    return Bound(tensors=tensors, names=names | {"n": next(iter(tensors.values())).numel()})


def vectors(n: int) -> Bound:
    return bound(x=torch.randn(n, device="cuda"), y=torch.full((n,), torch.nan, device="cuda"))


def launch_error(text: str, action: Any) -> None:
    with pytest.raises(CandidateFault, match=text) as caught:
        action()
    assert caught.value.outcome is Outcome.LAUNCH_ERROR


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 255, 100_003])
def test_a_kernel_computes_on_each_of_its_sets(load, n: int):
    sets = [vectors(n) for _ in range(3)]
    contender = load(scale(), *sets)
    for i, one in enumerate(sets):
        contender.run(i)
        assert torch.equal(one.tensors["y"], 3 * one.tensors["x"])
    contender.close()


@pytest.mark.gpu
def test_every_mode_gives_a_time_and_right_results(load):
    sets = [vectors(1 << 16) for _ in range(4)]
    contender = load(scale(), *sets)
    for mode in MODES:
        for one in sets:
            one.tensors["y"].fill_(torch.nan)
        us, dropped = contender.sample(mode, 4)
        assert us > 0 and 0 <= dropped < 4
        touched = sets[:1] if mode == "device-warm" else sets
        assert all(torch.equal(one.tensors["y"], 3 * one.tensors["x"]) for one in touched)
    contender.close()


@pytest.mark.gpu
def test_an_empty_grid_is_no_fault(load):
    contender = load(scale(grid=("n - n", 1, 1)), vectors(8))
    contender.run()
    assert contender.sample("device-cold", 2)[0] >= 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("one", "text"),
    [
        (scale(SCALE_ARGS[:3]), "passes 3 arguments, the kernel takes 4"),
        (scale((*SCALE_ARGS, SCALE_ARGS[2])), "passes 5 arguments, the kernel takes 4"),
        (scale((*SCALE_ARGS[:2], ScalarArg(ctype="i64", value="n"), SCALE_ARGS[3])), "argument 2 .* has 8 bytes, the kernel's parameter 4"),
        (scale(kernel="other"), "kernels are: scale"),
        (scale(block=(2048, 1, 1)), "block"),
        (scale(smem=300000), "shared memory"),
        (scale((TensorArg(name="z"), *SCALE_ARGS[1:])), "no tensor 'z'"),
    ],
)
def test_bad_launches_are_refused_and_the_device_lives_on(load, one: Candidate, text: str):
    launch_error(text, lambda: load(one, vectors(64)))
    good = vectors(64)
    load(scale(), good).run()
    assert torch.equal(good.tensors["y"], 3 * good.tensors["x"])


@pytest.mark.gpu
def test_requirements_refuse(load):
    one = scale()
    assert one.plan is not None
    one = one.replace(plan=one.plan.replace(requires=("n % 64 == 0",)))
    with pytest.raises(CandidateFault, match="n = 65") as caught:
        load(one, vectors(65))
    assert caught.value.outcome is Outcome.REFUSED


STRAY_SCRIPT = """
import sys; sys.path.insert(0, {tests!r})
import pathlib, tempfile
import test_cuda_device as t
from kernelwright.targets.target import CandidateFault, DeviceLost
device = t.CudaTarget().open()
one = t.candidate(t.STRAY, t.Launch(kernel="stray", args=(t.TensorArg(name="y"),), block=(32, 1, 1)))
build = t.CudaTarget().compile(one, pathlib.Path(tempfile.mkdtemp()))
contender = device.load(one, build, t.W, [t.vectors(64)])
try:
    {action}
except DeviceLost as lost:
    print("LOST", lost.outcome, lost.evidence)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("action", ["contender.run()", "contender.sample('device-cold', 3)", "contender.sample('host-offline', 3)"])
def test_an_illegal_address_loses_the_device(action: str):
    script = STRAY_SCRIPT.format(tests=str(Path(__file__).parent), action=action)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "LOST CRASH" in done.stdout and "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_clusters_share_memory(device: CudaDevice, load, size: int):
    if device.gpu.sm < 90:
        pytest.skip("clusters need sm_90")
    y = torch.zeros(2 * size, device="cuda")
    args = (TensorArg(name="y"),)
    launch = Launch(kernel="cluster", args=args, grid=(2 * size, 1, 1), block=(32, 1, 1), cluster=(size, 1, 1), smem=1024)
    load(candidate(CLUSTER, launch), bound(y=y)).run()
    expected = [100.0 * size + (rank + 1) % size for rank in range(size)]
    assert y.tolist() == expected * 2
    odd = launch.replace(grid=(2 * size + 1, 1, 1))
    launch_error("no multiple", lambda: load(candidate(CLUSTER, odd), bound(y=y)))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (100, 104), (33, 200)])
def test_a_tensor_map_loads_tiles(device: CudaDevice, load, rows: int, columns: int):
    if device.gpu.sm < 90:
        pytest.skip("tensor maps need sm_90")
    x = torch.randn(rows, columns, device="cuda").half()
    y = torch.full((rows, columns), torch.nan, device="cuda", dtype=torch.float16)
    one = bound(x=x, y=y)
    one = Bound(tensors=one.tensors, names={**one.names, "rows": rows, "columns": columns})
    args = (
        TensorMapArg(name="x", dims=("columns", "rows"), strides=("ld_x * 2",), box=(64, 32)),
        TensorArg(name="y"),
        ScalarArg(ctype="i32", value="rows"),
        ScalarArg(ctype="i32", value="columns"),
    )
    launch = Launch(kernel="tile", args=args, grid=("cdiv(columns, 64)", "cdiv(rows, 32)", 1), block=(128, 1, 1))
    contender = load(candidate(TILE, launch), one)
    contender.run()
    assert torch.equal(x, y)
    y.fill_(torch.nan)
    contender.sample("device-warm", 3)
    assert torch.equal(x, y)


@pytest.mark.gpu
def test_dependent_launches_see_what_went_before(device: CudaDevice, load):
    if device.gpu.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    n = 1 << 20
    shape: dict[str, Any] = {"grid": ("cdiv(n, 256)", 1, 1), "block": (256, 1, 1), "pdl": True}
    size = ScalarArg(ctype="i32", value="n")
    launches = (
        Launch(kernel="first", args=(TensorArg(name="x"), WorkspaceArg(), size), **shape),
        Launch(kernel="second", args=(WorkspaceArg(), TensorArg(name="y"), size), **shape),
    )
    sets = [vectors(n) for _ in range(3)]
    contender = load(candidate(PAIR, *launches, workspace="n * 4"), *sets)
    for i in range(3):
        contender.run(i)
    for mode in ("device-cold", "device-chain"):
        for one in sets:
            one.tensors["y"].fill_(torch.nan)
        contender.sample(mode, 6)
        assert all(torch.equal(one.tensors["y"], 2 * one.tensors["x"] + 1) for one in sets)
    assert contender.dependent
    fresh = torch.randn(n, device="cuda")
    contender.run_dependent({"x": fresh})
    assert torch.equal(sets[0].tensors["x"], fresh) and torch.equal(sets[0].tensors["y"], 2 * fresh + 1)
    assert contender.disturbed() is None


def fill(first: int, last: int, **plan: Any) -> Candidate:
    span = (ScalarArg(ctype="i32", value=first), ScalarArg(ctype="i32", value=last))
    return candidate(FILL, Launch(kernel="fill", args=(WorkspaceArg(), TensorArg(name="y"), *span), block=(32, 1, 1)), **plan)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("first", "last", "zeroed", "told"),
    [
        (0, 100, False, None),
        (0, 0, True, None),
        (0, 100, True, "not left zeroed"),
        (100, 101, False, "after the workspace"),
        (-1, 0, False, "before the workspace"),
    ],
)
def test_the_workspace_is_guarded(load, first: int, last: int, zeroed: bool, told: str | None):
    y = torch.zeros(1, device="cuda")
    contender = load(fill(first, last, workspace=400, workspace_zeroed=zeroed), bound(y=y))
    contender.run()
    assert (y.item() == 0.0) if zeroed else y.isnan().item()  # garbage otherwise: 0xFFFFFFFF
    found = contender.disturbed()
    assert found is None if told is None else told in str(found)


@pytest.mark.gpu
def test_a_workspace_beyond_the_memory_is_out_of_memory(load):
    with pytest.raises(CandidateFault) as caught:
        load(fill(0, 1, workspace=1 << 42), bound(y=torch.zeros(1, device="cuda")))
    assert caught.value.outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.gpu
def test_shared_memory_beyond_48_kb(load):
    n = 20000
    one = vectors(n)
    args = (TensorArg(name="x"), TensorArg(name="y"), ScalarArg(ctype="i32", value="n"))
    load(candidate(BIG_SHARED, Launch(kernel="shared", args=args, block=(256, 1, 1), smem="n * 4")), one).run()
    assert torch.equal(one.tensors["y"], one.tensors["x"].flip(0))


@pytest.mark.gpu
def test_a_copy_reaches_the_memory_bandwidth(device: CudaDevice, load, capsys: pytest.CaptureFixture[str]):
    size = 256 * 2**20
    one = vectors(size // 4)
    args = (TensorArg(name="x"), TensorArg(name="y"), ScalarArg(ctype="i64", value="n // 4"))
    contender = load(candidate(COPY, Launch(kernel="copy", args=args, grid=("sms * 16", 1, 1), block=(512, 1, 1))), one)
    rival = device.load_trusted([Run(call=lambda: one.tensors["y"].copy_(one.tensors["x"]), store=lambda _: None)])
    lines = []
    for name, which in (("ours", contender), ("torch", rival)):
        for mode in MODES:
            us, dropped = which.sample(mode, 5)
            lines.append(f"{name:6} {mode:12} {us:8.1f} us {2 * size / us / 1e6:6.2f} TB/s, dropped {dropped}")
            assert us > 0
    with capsys.disabled():
        print("", *lines, device.peaks(), device.sensors(), device.environment(), sep="\n")
    assert torch.equal(one.tensors["y"], one.tensors["x"])


@pytest.mark.gpu
def test_small_kernels_cold_and_warm(device: CudaDevice, load, capsys: pytest.CaptureFixture[str]):
    sets = [vectors(1 << 20) for _ in range(device.cold_sets(1 << 23))]
    contender = load(scale(), *sets)
    samples = {mode: [contender.sample(mode, len(sets))[0] for _ in range(20)] for mode in MODES[:2]}
    with capsys.disabled():
        for mode, us in samples.items():
            print(f"\n4 MB in, 4 MB out, {len(sets)} launches, {mode}: " + " ".join(f"{t:.2f}" for t in us))


@pytest.mark.gpu
def test_a_rival_is_run_stored_and_clocked(device: CudaDevice):
    a, b, out = (torch.randn(128, 128, device="cuda") for _ in range(3))
    ready = []

    def store(result: torch.Tensor) -> None:
        out.copy_(result)

    run = Run(call=lambda: torch.matmul(a, b), store=store)
    contender = device.load_trusted([run], lambda: ready.append(1))
    contender.run()
    assert ready == [1] and torch.equal(out, torch.matmul(a, b))
    assert all(contender.sample(mode, 3)[0] > 0 for mode in MODES)
    assert contender.captured  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.gpu
def test_a_rival_that_synchronizes_is_clocked_without_a_graph(device: CudaDevice):
    x = torch.randn(1000, device="cuda")
    contender = device.load_trusted([Run(call=lambda: x.sum().item(), store=lambda _: None)])
    assert not contender.captured  # pyright: ignore[reportAttributeAccessIssue]
    assert all(contender.sample(mode, 2)[0] > 0 for mode in MODES)
    # neither the random generator nor the allocator may be left in capture mode
    assert torch.randn(10, device="cuda").isfinite().all()
    graph_rival = device.load_trusted([Run(call=lambda: torch.relu(x), store=lambda _: None)])
    assert graph_rival.sample("device-warm", 4)[0] > 0


@pytest.mark.gpu
def test_a_rival_that_fails_is_told(device: CudaDevice):
    def fail() -> None:
        raise RuntimeError("no such algorithm")

    launch_error("no such algorithm", lambda: device.load_trusted([Run(call=fail, store=lambda _: None)]))


@pytest.mark.gpu
def test_buffers_are_aligned_and_of_the_size_asked_for(device: CudaDevice):
    for size in (0, 1, 1000, 1 << 20):
        one = device.allocate(size)
        assert one.numel() == size and one.is_cuda and one.data_ptr() % 256 == 0


@pytest.mark.gpu
def test_many_cubins_can_be_loaded_and_given_back(device: CudaDevice, tmp_path: Path):
    target = CudaTarget()
    one = vectors(64)
    for i in range(40):
        (tmp_path / str(i)).mkdir()
        changed = scale().replace(source=SCALE + f"// {i}")
        contender = device.load(changed, target.compile(changed, tmp_path / str(i)), W, [one])
        contender.run()
        contender.close()
    assert len(device._modules) <= 33
    assert torch.equal(one.tensors["y"], 3 * one.tensors["x"])
