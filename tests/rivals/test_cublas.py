"""The vendor rivals: on a GPU against PyTorch; without one, their calls against a library of our own that takes the same arguments."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stub_cublas import Seen, bound, expected, workload

from kernelwright import rivals
from kernelwright.problems import problem_of, resolve
from kernelwright.records import Outcome
from kernelwright.rivals import cublas, cublaslt
from kernelwright.targets.target import Bound, CandidateFault

LAYOUTS = ("nn", "nt", "tn", "tt")
SHAPES = ((64, 48, 32), (1, 1, 1), (1, 64, 32), (33, 65, 17), (127, 8, 264))


@pytest.mark.parametrize("name", ["cublas", "cublaslt"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pad", [0, 5])
def test_the_row_major_product_is_computed_in_column_major_terms(stub: Seen, name: str, layout: str, pad: int):
    module: Any = {"cublas": cublas, "cublaslt": cublaslt}[name]
    for shape in SHAPES:
        w = workload(*shape, layout)
        sets = [bound(w, pad=pad) for _ in range(2)]
        runs, setup = module.load(name, w, sets)
        assert setup is None and len(runs) == 2
        for run, one in zip(runs, sets, strict=True):
            run.store(run.call())
            assert torch.allclose(one.tensors["c"].double(), expected(w, one), rtol=1e-5, atol=1e-5), (shape, layout)
        assert stub.compute == 68  # CUBLAS_COMPUTE_32F


@pytest.mark.parametrize(
    "epilogue", ["bias", "bias+gelu-tanh", "alpha=0.5+beta=2", "alpha=-2+bias", "bias+residual+gelu-tanh", "gelu-tanh"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layers_epilogue_is_the_librarys_own(stub: Seen, epilogue: str, layout: str):
    w = workload(33, 65, 17, layout).replace(problem="linear", epilogue=epilogue)
    sets = [bound(w, pad=5), bound(w, pad=5)]
    for one in sets:
        one.tensors.update(bias=torch.randn(65), addend=torch.randn(33, 72)[:, :65])
        one.names.update(ld_addend=72, align_addend=16)
    runs, _ = cublaslt.load("cublaslt", w, sets)
    for run, one in zip(runs, sets, strict=True):
        run.store(run.call())
        want = problem_of(w).reference(w, one.tensors)["c"]
        assert torch.allclose(one.tensors["c"].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("epilogue", "words"), [("bias+gelu", "no gelu"), ("silu", "no silu"), ("bias+residual", ""), ("gelu-tanh+residual", "before")]
)
def test_what_the_library_cannot_fuse_is_no_rival(stub: Seen, epilogue: str, words: str):
    w = workload(8, 8, 8, "nt").replace(problem="linear", epilogue=epilogue)
    assert ("cublaslt" in rivals.names_for(w, "cuda:sm_90")) == (not words)
    assert "cublas" not in rivals.names_for(w, "cuda:sm_90", every=True)
    if words:
        with pytest.raises(CandidateFault, match=words):
            cublaslt.load("cublaslt", w, [bound(w)])


@pytest.mark.parametrize("name", ["cublas-nn", "cublas-nt", "cublaslt-nt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_stored_otherwise_follow_the_inputs(stub: Seen, name: str, layout: str):
    w = workload(33, 65, 17, layout)
    one = bound(w, pad=5)
    (run,), _ = rivals.load(name, w, [one])
    for _ in range(2):  # every round draws new inputs
        one.tensors["a"].normal_(), one.tensors["b"].normal_()
        assert run.prepare is not None
        run.prepare()
        run.store(run.call())
        assert torch.allclose(one.tensors["c"].double(), expected(w, one), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cublas-swapped", "cublaslt-swapped", "cublas-nn"])
def test_the_dense_products_beside_a_pruned_weight(stub: Seen, name: str):
    w = resolve("spmm:5x33x17").replace(dtype="fp32")  # which the library of this test multiplies
    tensors = {"x": torch.randn(5, 17), "w": torch.randn(33, 17), "y": torch.full((5, 33), float("nan"))}
    (run,), _ = rivals.load(name, w, [Bound(tensors=tensors, names=dict(problem_of(w).names(w, 1)))])
    if run.prepare is not None:
        run.prepare()
    run.store(run.call())
    assert torch.allclose(tensors["y"], tensors["x"] @ tensors["w"].t(), rtol=1e-5, atol=1e-5)
    assert name in rivals.names_for(w, "cuda:sm_90", every=True)


def test_the_classic_layouts_stand_beside_the_own():
    names = {layout: rivals.names_for(workload(8, 8, 8, layout), "cuda:sm_90") for layout in ("nn", "nt", "tn")}
    assert [[n for n in found if n.startswith("cublas-")] for found in names.values()] == [
        ["cublas-nt"],
        ["cublas-nn"],
        ["cublas-nn", "cublas-nt"],
    ]
    assert "cublaslt-auto-nt" in rivals.names_for(workload(8, 8, 8), "cuda:sm_90", every=True)
    asked = ("eager", "cublaslt-auto", "cublaslt-auto-nn", "cublaslt-auto-nt")
    assert rivals.asked(asked, workload(8, 8, 8, "nt")) == ("eager", "cublaslt-auto", "cublaslt-auto-nn")
    assert rivals.asked(asked, workload(8, 8, 8, "tn")) == asked


def test_the_search_of_the_whole_space_is_made_on_request_alone():
    w = workload(8, 8, 8)
    asked = set(rivals.names_for(w, "cuda:sm_90", every=True)) - set(rivals.names_for(w, "cuda:sm_90"))
    assert {"cublaslt-all", "cublaslt-all-nt"} <= asked
    assert not any(name.startswith("cublaslt-all") for name in rivals.names_for(w, "cuda:sm_90"))


@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cublaslt-auto"])
@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_products(stub: Seen, name: str, shape: tuple[int, int, int]):
    module: Any = cublas if name == "cublas" else cublaslt
    w = workload(*shape)
    one = bound(w)
    runs, _ = module.load(name, w, [one])
    runs[0].call()
    assert torch.equal(one.tensors["c"], torch.zeros(shape[:2]))


def test_descriptors_say_what_the_buffers_are(stub: Seen):
    w = workload(64, 48, 32)
    sets = [bound(w), bound(w, offset=1)]
    cublaslt.load("cublaslt", w, sets)[0][1].call()
    assert list(stub.align) == [4, 4, 4, 4]  # the worst over the sets: an offset of one float
    assert (stub.mask, stub.workspace, stub.scale, stub.type) == (7, 4096, 0, 0)
    assert stub.algo == 100


def test_descriptors_are_freed(stub: Seen):
    import gc

    gc.collect()
    before = stub.live
    runs, _ = cublaslt.load("cublaslt", workload(8, 8, 8), [bound(workload(8, 8, 8))])
    assert stub.live > before
    del runs
    gc.collect()
    assert stub.live == before


def test_half_precision_is_described(stub: Seen):
    half = workload(64, 64, 64, "nt", "fp16")
    g = cublas.column_major(half, bound(half))
    assert (g.data_type, g.compute, g.scale_type) == (2, 68, 0)
    assert cublas.exact_reduction(half)
    narrow = workload(64, 64, 64, "nt", "fp16", "fp16")
    g = cublas.column_major(narrow, bound(narrow))
    assert (g.data_type, g.compute, g.scale_type) == (2, 64, 2)  # scale type and scalars follow the compute type
    alpha, beta = cublas.scalars(g)
    assert (ctypes.sizeof(alpha), alpha.value, beta.value) == (2, 0x3C00, 0)
    assert not cublas.exact_reduction(narrow)
    bf16 = workload(64, 64, 64, "nt", "bf16")
    assert cublas.column_major(bf16, bound(bf16)).data_type == 14
    cublaslt.load("cublaslt", half, [bound(half)])
    assert stub.mask == 2  # slices of K are added in the compute type, as the Workload's accumulator says


def test_only_usable_algorithms_are_tuned(stub: Seen, monkeypatch: pytest.MonkeyPatch):
    times, seen = {100: 9.0, 102: 5.0}, []

    class Clock:
        def __init__(self, *_: Any):
            pass

        def synchronize(self, doing: str) -> None:
            pass

        def capture_launches(self, enqueue: Any, indices: list[int]) -> Any:
            return lambda: [enqueue(i) for i in indices]

        def device_us(self, work: Any, *, cold: bool, gaps: bool) -> float:
            work()
            seen.append(stub.algo)
            return times[stub.algo]

    monkeypatch.setattr("kernelwright.targets.cuda_clock.Clock", Clock)
    monkeypatch.setattr("kernelwright.targets.driver.load", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1))
    monkeypatch.setattr(cublaslt, "_chosen", {})
    w = workload(16, 16, 16)
    sets = [bound(w) for _ in range(2)]
    runs, setup = cublaslt.load("cublaslt-auto", w, sets)
    assert setup is not None
    setup()
    runs[1].call()
    assert stub.algo == 102
    assert (seen.count(100), seen.count(102)) == (1 + 3, 9), "the first is clocked once to size the graphs; it is far behind"
    assert torch.allclose(sets[1].tensors["c"].double(), expected(w, sets[1]), rtol=1e-5, atol=1e-5)
    times[102] = 99.0
    _, again = cublaslt.load("cublaslt-auto", w, sets)
    assert again is not None
    again()
    assert len(cublaslt._chosen) == 1  # tuned once in a process


@pytest.mark.parametrize(("dtype", "accumulate"), [("bf16", "fp16"), ("fp32", "fp16"), ("int32", "int32")])
def test_what_the_library_lacks_is_refused(stub: Seen, dtype: str, accumulate: str):
    w = workload(8, 8, 8, "nn", "fp32").replace(dtype=dtype, accumulate=accumulate)
    one = bound(workload(8, 8, 8))
    for module, name in ((cublas, "cublas"), (cublaslt, "cublaslt")):
        with pytest.raises(CandidateFault) as caught:
            module.load(name, w, [one])
        assert caught.value.outcome is Outcome.REFUSED


def test_unknown_names_are_refused():
    for module in (cublas, cublaslt):
        with pytest.raises(ValueError, match="unknown rival"):
            module.load("mkl", workload(8, 8, 8), [])


# ------------------------------------------------------------------------------------------------------------------- GPU

ERROR = {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 1e-5}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cublaslt-auto", "cublaslt-all", "cublas-nt", "cublaslt-auto-nn"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "accumulate"), [("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp16", "fp16")])
def test_rivals_are_right_on_the_gpu(name: str, layout: str, dtype: str, accumulate: str):
    for shape, pad, offset in (
        ((256, 192, 512), 0, 0),
        ((256, 192, 512), 8, 0),
        ((33, 65, 17), 3, 1),
        ((1, 128, 64), 0, 0),
        ((8, 8, 0), 0, 0),
    ):
        w = workload(*shape, layout, dtype, accumulate)
        sets = [bound(w, pad=pad, offset=offset, device="cuda") for _ in range(2)]
        runs, setup = rivals.load(name, w, sets)
        if setup is not None:
            setup()
        for run, one in zip(runs, sets, strict=True):
            if run.prepare is not None:
                run.prepare()
            run.store(run.call())
            torch.cuda.synchronize()
            want, got = expected(w, one), one.tensors["c"].double()
            bound_of_error = (ERROR[dtype] if accumulate == "fp32" else 2e-2) * max(1.0, want.abs().max().item() if want.numel() else 1.0)
            assert (got - want).abs().max().item() <= bound_of_error, (shape, layout, dtype, accumulate)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cublaslt-auto", "cublas-nt"])
def test_rivals_are_captured_and_clocked(name: str, capsys: pytest.CaptureFixture[str]):
    from kernelwright.targets.cuda import CudaTarget

    device = CudaTarget().open()
    for size in (512, 4096):
        w = workload(size, size, size, "nn", "fp16")
        sets = [bound(w, device="cuda") for _ in range(4)]
        contender = device.load_trusted(*rivals.load(name, w, sets))
        cold = contender.sample("device-cold", 4)[0]
        warm, host = (contender.sample(mode, 5)[0] for mode in ("device-warm", "host-offline"))
        for one in sets:
            assert torch.allclose(one.tensors["c"].double(), expected(w, one), rtol=2e-3, atol=0.3)
        assert contender.captured  # pyright: ignore[reportAttributeAccessIssue]
        with capsys.disabled():
            print(f"\n{name} {size}^3: cold {cold:.1f} us, warm {warm:.1f} us, host {host:.1f} us, {2 * size**3 / warm / 1e6:.0f} TFLOP/s")
    device.close()
