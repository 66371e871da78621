"""The launcher on a GPU, with kernels of every Family that serves it, against torch.matmul."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernelwright.families import families_for
from kernelwright.problems import resolve
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import LaunchPlan, Workload
from kernelwright.runtime.launcher import Launcher, LaunchError, open_launcher
from kernelwright.targets import target
from kernelwright.targets.cuda import CudaTarget

pytestmark = pytest.mark.gpu
TEXTS = ["gemm:256x512x256:fp16:nn", "gemm:64x64x8192:fp16:nt", "gemm:200x264x136:bf16:tn"]


@dataclass
class Built:
    name: str
    workload: Workload
    plan: LaunchPlan
    cubin: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Built]:
    """Of each Family a kernel for each shape, and one more where another plan has a workspace."""
    cuda = target("cuda")
    assert isinstance(cuda, CudaTarget)
    found = []
    for text in TEXTS:
        w = resolve(text)
        for family in families_for(w, cuda.facts())[0]:
            candidates = [family.render(c, w, cuda.facts()) for c in family.seeds(w, cuda.facts())]
            kinds = {(c.plan.workspace != 0, len(c.plan.launches)): c for c in reversed(candidates) if c.plan is not None}
            for kind, candidate in kinds.items():
                folder = tmp_path_factory.mktemp("cubin")
                build = cuda.compile(candidate, folder)
                assert candidate.plan is not None
                found.append(Built(f"{family.name} {text} {kind}", w, candidate.plan, Path(build.artifact)))
    assert any(b.plan.workspace != 0 for b in found) and any(b.plan.workspace == 0 for b in found)
    return found


@pytest.fixture
def launcher():
    one = open_launcher()
    yield one
    one.release()


def operands(w: Workload, seed: int) -> dict[str, torch.Tensor]:
    """Small integers, so that every right result is the same to the last bit."""
    m, n, k = w.axes.values()
    rng = torch.Generator("cuda").manual_seed(seed)

    def matrix(rows: int, columns: int, letter: str) -> torch.Tensor:
        shape = (rows, columns) if letter == "n" else (columns, rows)
        stored = torch.randint(-1, 2, shape, generator=rng, device="cuda").to(TORCH_DTYPES[w.dtype])
        return stored if letter == "n" else stored.t()

    a, b = matrix(m, k, w.layout[0]), matrix(k, n, w.layout[1])
    return {"a": a, "b": b, "c": torch.full((m, n), float("nan"), dtype=a.dtype, device="cuda")}


def register(launcher: Launcher, b: Built, t: dict[str, torch.Tensor], **options) -> int:
    op = launcher.operation(b.name)
    kernels = launcher.kernels(b.cubin, t["a"].device)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    launcher.register(op, t, b.plan, kernels, b.workload.axes, sms=sms, **options)
    return op


def right(t: dict[str, torch.Tensor]) -> bool:
    return torch.equal(t["c"], torch.matmul(t["a"], t["b"]))


def test_results_on_two_streams(launcher, built):
    streams = [torch.cuda.Stream() for _ in range(2)]
    for b in built:
        sets = [operands(b.workload, seed) for seed in (1, 2)]
        op = register(launcher, b, sets[0])
        torch.cuda.synchronize()
        for stream, t in zip(streams, sets, strict=True):
            with torch.cuda.stream(stream):
                launcher.ready(op, *t.values())
        for _ in range(5):
            for stream, t in zip(streams, sets, strict=True):
                with torch.cuda.stream(stream):
                    assert launcher.launch(op, *t.values()) is True
        torch.cuda.synchronize()
        assert [right(t) for t in sets] == [True, True], b.name


def test_products_into_new_tensors_and_given_ones(launcher, built):
    for b in built:
        t = operands(b.workload, 10)
        op = register(launcher, b, t)
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                got = launcher.product(op, t["a"], t["b"], None, None, False)
                assert got is not None and got.device == t["c"].device and torch.equal(got, torch.matmul(t["a"], t["b"])), b.name
        t["c"].fill_(float("nan"))
        version = t["c"]._version
        assert launcher.product(op, t["a"], t["b"], None, t["c"], False) is t["c"] and right(t) and t["c"]._version > version
        assert launcher.product(op, t["a"].clone().requires_grad_(), t["b"], None, None, False) is None
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert launcher.product(op, t["a"], t["b"], None, None, False) is None


def test_dependent_launches_follow_each_other(launcher, built):
    for b in built:
        t = operands(b.workload, 3)
        op = register(launcher, b, t, dependent=True)
        for _ in range(20):
            t["c"].fill_(float("nan"))
            assert launcher.launch(op, *t.values()) is True
        assert right(t), b.name


def test_in_a_cuda_graph(launcher, built):
    for b in built:
        t = operands(b.workload, 4)
        op = register(launcher, b, t)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if launcher.launch(op, *t.values()) is None:  # a graph needs its own workspace
                launcher.ready(op, *t.values())
                assert launcher.launch(op, *t.values()) is True
        for seed in (5, 6, 7):
            for name, new in operands(b.workload, seed).items():
                t[name].copy_(new)
            graph.replay()
            launcher.launch(op, *operands(b.workload, 8).values())  # after it, with the stream's own workspace
            torch.cuda.synchronize()
            assert right(t), b.name


def test_from_several_threads(launcher, built):
    for b in built:
        sets = [operands(b.workload, seed) for seed in range(4)]
        op = register(launcher, b, sets[0])
        torch.cuda.synchronize()
        served = []

        def work(i: int, op: int = op, sets=sets, served=served) -> None:
            t = sets[i]
            # two threads share the default stream, each of the others has its own
            with torch.cuda.stream(torch.cuda.Stream() if i >= 2 else torch.cuda.default_stream()):
                launcher.ready(op, *t.values())
                served += [launcher.launch(op, *t.values()) for _ in range(100)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        assert served == [True] * 400 and all(right(t) for t in sets), b.name


def test_on_another_device_than_the_current(launcher, built):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    b = built[0]
    t = {name: x.to("cuda:1") for name, x in operands(b.workload, 9).items()}
    op = register(launcher, b, t)
    assert torch.cuda.current_device() == 0 and launcher.launch(op, *t.values()) is True
    torch.cuda.synchronize(1)
    assert right(t)


def test_released_kernels_are_unknown(launcher, built):
    t = operands(built[0].workload, 1)
    op = register(launcher, built[0], t)
    launcher.launch(op, *t.values())
    launcher.release()
    assert launcher.launch(op, *t.values()) is None
    assert issubclass(LaunchError, RuntimeError) and right(t)
