"""The vendor rivals: on a GPU against PyTorch; without one, their calls against a library of our own that takes the same arguments."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelwright import rivals
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Outcome, Workload
from kernelwright.rivals import cublas, cublaslt
from kernelwright.targets.target import Bound, CandidateFault

LAYOUTS = ("nn", "nt", "tn", "tt")
SHAPES = ((64, 48, 32), (1, 1, 1), (1, 64, 32), (33, 65, 17), (127, 8, 264))


def workload(m: int, n: int, k: int, layout: str = "nn", dtype: str = "fp32", accumulate: str = "fp32") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout, accumulate=accumulate)


def bound(w: Workload, *, pad: int = 0, offset: int = 0, device: str = "cpu") -> Bound:
    m, n, k = (w.axes[x] for x in "MNK")
    shapes = {"a": (m, k) if w.layout[0] == "n" else (k, m), "b": (k, n) if w.layout[1] == "n" else (n, k), "c": (m, n)}
    tensors, names = {}, dict(w.axes)
    for name, (rows, columns) in shapes.items():
        flat = torch.full((offset + rows * (columns + pad) + 64,), torch.nan, dtype=TORCH_DTYPES[w.dtype], device=device)
        one = flat[offset : offset + rows * (columns + pad)].view(rows, columns + pad)[:, :columns]
        if name != "c":
            one.copy_(torch.randn(rows, columns, device=device))
        tensors[name] = one
        address = one.data_ptr() or 256
        names |= {f"ld_{name}": columns + pad, f"align_{name}": min(256, address & -address)}
    return Bound(tensors=tensors, names=names)


def expected(w: Workload, one: Bound) -> torch.Tensor:
    a = one.tensors["a"] if w.layout[0] == "n" else one.tensors["a"].t()
    b = one.tensors["b"] if w.layout[1] == "n" else one.tensors["b"].t()
    return a.double() @ b.double()


# ------------------------------------------------------------------------------------------- a library in place of NVIDIA's

STUB = r"""
#include <cstdint>
#include <cstring>
#include <cstddef>
struct Desc { int compute, scale, transa, transb; };
struct Layout { int type; uint64_t rows, cols; int64_t ld; };
struct Pref { uint64_t workspace; uint32_t mask, align[4]; };
struct Algo { uint64_t data[8]; };
struct Result { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };
struct Seen { int compute, scale, math, mask, type; int align[4]; uint64_t workspace; int live; int algo; };
static Seen seen;
extern "C" {
Seen* stub_seen() { return &seen; }

static void gemm(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float* A, int64_t lda, const float* B, int64_t ldb,
                 float beta, float* C, int64_t ldc) {
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t p = 0; p < k; p++) sum += (double)(ta ? A[p + i * lda] : A[i + p * lda]) * (tb ? B[j + p * ldb] : B[p + j * ldb]);
            C[i + j * ldc] = alpha * (float)sum + (beta == 0 ? 0 : beta * C[i + j * ldc]);
        }
}

int cublasCreate_v2(void** handle) { *handle = (void*)0xC0B1A5; return 0; }
int cublasSetStream_v2(void* handle, void* stream) { return handle == (void*)0xC0B1A5 ? 0 : 1; }
int cublasSetWorkspace_v2(void* handle, void* space, size_t size) { seen.workspace = size; return space ? 0 : 7; }
int cublasSetMathMode(void* handle, int mode) { seen.math = mode; return 0; }
int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* A, int at, int lda, const void* B,
                 int bt, int ldb, const void* beta, void* C, int ct, int ldc, int compute, int algo) {
    if (handle != (void*)0xC0B1A5 || at != 0 || bt != 0 || ct != 0 || algo != -1) return 7;
    seen.compute = compute;
    gemm(ta, tb, m, n, k, *(float*)alpha, (float*)A, lda, (float*)B, ldb, *(float*)beta, (float*)C, ldc);
    return 0;
}

int cublasLtCreate(void** handle) { *handle = (void*)0x17; return 0; }
int cublasLtMatmulDescCreate(Desc** out, int compute, int scale) { *out = new Desc{compute, scale, 0, 0}; seen.live++; return 0; }
int cublasLtMatmulDescDestroy(Desc* d) { delete d; seen.live--; return 0; }
int cublasLtMatmulDescSetAttribute(Desc* d, int attribute, const void* value, size_t size) {
    if (size != 4) return 7;
    if (attribute == 3) memcpy(&d->transa, value, 4); else if (attribute == 4) memcpy(&d->transb, value, 4); else return 7;
    return 0;
}
int cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < (int64_t)rows || !rows || !cols) return 7;
    *out = new Layout{type, rows, cols, ld}; seen.live++; return 0;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { delete l; seen.live--; return 0; }
int cublasLtMatmulPreferenceCreate(Pref** out) { *out = new Pref{0, 7, {256, 256, 256, 256}}; seen.live++; return 0; }
int cublasLtMatmulPreferenceDestroy(Pref* p) { delete p; seen.live--; return 0; }
int cublasLtMatmulPreferenceSetAttribute(Pref* p, int attribute, const void* value, size_t size) {
    if (attribute == 1) { if (size != 8) return 7; memcpy(&p->workspace, value, 8); return 0; }
    if (size != 4) return 7;
    if (attribute == 3) memcpy(&p->mask, value, 4); else if (attribute >= 5 && attribute <= 8) memcpy(&p->align[attribute - 5], value, 4);
    else return 7;
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, Desc* d, Layout* a, Layout* b, Layout* c, Layout* out, Pref* p, int requested,
                                   Result* results, int* found) {
    if (handle != (void*)0x17 || requested < 1 || c->ld != out->ld) return 7;
    seen.mask = p->mask; seen.workspace = p->workspace;
    for (int i = 0; i < 4; i++) seen.align[i] = p->align[i];
    *found = requested < 3 ? requested : 3;
    for (int i = 0; i < *found; i++) {
        memset(&results[i], 0, sizeof(Result));
        results[i].algo.data[0] = 100 + i;
        results[i].state = i == 1 ? 15 : 0;  // the second is not usable
    }
    return 0;
}
int cublasLtMatmul(void* handle, Desc* d, const void* alpha, const void* A, Layout* a, const void* B, Layout* b, const void* beta,
                   const void* C, Layout* c, void* D, Layout* out, const Algo* algo, void* space, size_t size, void* stream) {
    uint64_t m = d->transa ? a->cols : a->rows, k = d->transa ? a->rows : a->cols;
    uint64_t k2 = d->transb ? b->cols : b->rows, n = d->transb ? b->rows : b->cols;
    if (handle != (void*)0x17 || C != D || k != k2 || m != out->rows || n != out->cols || !space || size < 1000) return 7;
    seen.compute = d->compute; seen.scale = d->scale; seen.type = a->type; seen.algo = (int)algo->data[0];
    gemm(d->transa, d->transb, m, n, k, *(float*)alpha, (float*)A, a->ld, (float*)B, b->ld, *(float*)beta, (float*)D, out->ld);
    return 0;
}
}
"""


class Seen(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("compute", "scale", "math", "mask", "type")),
        ("align", ctypes.c_int * 4),
        ("workspace", ctypes.c_uint64),
        ("live", ctypes.c_int),
        ("algo", ctypes.c_int),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.cpp").write_text(STUB)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "stub.so"), str(folder / "stub.cpp")], check=True)
    return ctypes.CDLL(str(folder / "stub.so"))


@pytest.fixture
def stub(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    caches = (cublas._handle, cublas.workspace, cublaslt._library)
    for module in (cublas, cublaslt):
        monkeypatch.setattr(module, "load_library", lambda stem: library)
        monkeypatch.setattr(module, "workspace", lambda: torch.empty(4096, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=64))
    for one in caches:
        one.cache_clear()
    library.stub_seen.restype = ctypes.POINTER(Seen)
    yield library.stub_seen().contents
    for one in caches:
        one.cache_clear()


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


def test_the_classic_layouts_stand_beside_the_own():
    names = {layout: rivals.names_for(workload(8, 8, 8, layout), "cuda:sm_90") for layout in ("nn", "nt", "tn")}
    assert [[n for n in found if n.startswith("cublas-")] for found in names.values()] == [
        ["cublas-nt"],
        ["cublas-nn"],
        ["cublas-nn", "cublas-nt"],
    ]
    assert "cublaslt-auto-nt" in rivals.names_for(workload(8, 8, 8), "cuda:sm_90", every=True)


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
    times = {100: 9.0, 102: 5.0}

    class Clock:
        def __init__(self, *_: Any):
            pass

        def synchronize(self, doing: str) -> None:
            pass

        def capture(self, enqueue: Any, indices: list[int]) -> Any:
            return lambda: [enqueue(i) for i in indices]

        def device_us(self, work: Any, *, cold: bool, gaps: bool) -> float:
            work()
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
@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cublaslt-auto", "cublas-nt", "cublaslt-auto-nn"])
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
