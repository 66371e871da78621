"""A library in place of NVIDIA's cuBLAS and cuBLASLt: it takes the same arguments, computes in float, and remembers what it was asked."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Workload
from kernelwright.targets.cublaslt import Algo
from kernelwright.targets.target import Bound


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


STUB = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstddef>
struct Desc { int compute, scale, transa, transb, epilogue; const float* bias; };
struct Layout { int type; uint64_t rows, cols; int64_t ld; };
struct Pref { uint64_t workspace; uint32_t mask, align[4], by_id; };
struct Algo {  // word 0: the id; word 2 + n: cublasLtMatmulAlgoConfigAttributes_t number n
    uint64_t data[8];
    uint32_t word(int i) const { return (uint32_t)(data[i / 2] >> (i % 2 * 32)); }
    void put(int i, uint32_t value) {
        int shift = i % 2 * 32;
        data[i / 2] = (data[i / 2] & ~((uint64_t)0xffffffff << shift)) | (uint64_t)value << shift;
    }
    uint32_t get(int attribute) const { return attribute ? word(2 + attribute) : word(0); }
};
enum { TILE = 1, SPLIT, REDUCTION, SWIZZLE, CUSTOM, STAGES, INNER, CLUSTER };
struct Result { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };
struct Seen { int compute, scale, math, mask, type; int align[4]; uint64_t workspace; int live; int algo;
              uint64_t ids; uint32_t reductions; int illegal, checks; Algo last; };
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
int cublasLtMatmulDescCreate(Desc** out, int compute, int scale) { *out = new Desc{compute, scale, 0, 0, 1, 0}; seen.live++; return 0; }
int cublasLtMatmulDescDestroy(Desc* d) { delete d; seen.live--; return 0; }
int cublasLtMatmulDescSetAttribute(Desc* d, int attribute, const void* value, size_t size) {
    if (size != (attribute == 8 ? 8 : 4)) return 7;
    if (attribute == 7) memcpy(&d->epilogue, value, 4); else if (attribute == 8) memcpy(&d->bias, value, 8);
    else if (attribute == 3) memcpy(&d->transa, value, 4); else if (attribute == 4) memcpy(&d->transb, value, 4); else return 7;
    return 0;
}
int cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < (int64_t)rows || !rows || !cols) return 7;
    *out = new Layout{type, rows, cols, ld}; seen.live++; return 0;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { delete l; seen.live--; return 0; }
int cublasLtMatmulPreferenceCreate(Pref** out) { *out = new Pref{0, 7, {256, 256, 256, 256}, 0}; seen.live++; return 0; }
int cublasLtMatmulPreferenceDestroy(Pref* p) { delete p; seen.live--; return 0; }
int cublasLtMatmulPreferenceSetAttribute(Pref* p, int attribute, const void* value, size_t size) {
    if (attribute == 1) { if (size != 8) return 7; memcpy(&p->workspace, value, 8); return 0; }
    if (size != 4) return 7;
    if (attribute == 0) memcpy(&p->by_id, value, 4);
    else if (attribute == 3) memcpy(&p->mask, value, 4);
    else if (attribute >= 5 && attribute <= 8) memcpy(&p->align[attribute - 5], value, 4);
    else return 7;
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, Desc* d, Layout* a, Layout* b, Layout* c, Layout* out, Pref* p, int requested,
                                   Result* results, int* found) {
    if (handle != (void*)0x17 || requested < 1 || c->rows != out->rows || c->cols != out->cols) return 7;
    seen.mask = p->mask; seen.workspace = p->workspace;
    for (int i = 0; i < 4; i++) seen.align[i] = p->align[i];
    if (p->by_id) {  // of one id: an answer for id 3 alone
        *found = results[0].algo.get(0) == 3;
        results[0].algo.put(2 + TILE, 2); results[0].algo.put(2 + STAGES, 8); results[0].state = 0;
        return *found ? 0 : 15;
    }
    *found = requested < 3 ? requested : 3;
    for (int i = 0; i < *found; i++) {
        memset(&results[i], 0, sizeof(Result));
        results[i].algo.data[0] = 100 + i;
        results[i].algo.put(2 + SPLIT, 1);
        results[i].state = i == 1 ? 15 : 0;  // the second is not usable
    }
    return 0;
}

// The space: ids 3 (all settings), 7 (accumulates in fp16, no settings), 8 (wants 4096-byte addresses), 9 (not for these types).
static bool legal(const Algo* a) {
    uint32_t id = a->get(0), tile = a->get(TILE), stages = a->get(STAGES), cluster = a->get(CLUSTER), split = a->get(SPLIT);
    if (id >= 100) return !a->get(SWIZZLE) && !a->get(CUSTOM) && !a->get(INNER) && !cluster && split == 1;
    if (id == 7 || id == 8) return !tile && !stages && !cluster && !a->get(INNER) && split == 1;
    return id == 3 && tile % 2 == 0 && tile >= 2 && tile <= 6 && (stages == 8 || stages == 9) && !(tile == 6 && stages == 8)
        && (!cluster || cluster == 2 || cluster == 3 || cluster == 5) && !a->get(INNER) && split >= 1 && split <= 8
        && (split > 1) == (a->get(REDUCTION) != 0) && a->get(SWIZZLE) <= 1 && a->get(CUSTOM) <= 2;
}
static size_t space_of(const Algo* a) { return a->get(SPLIT) > 1 ? 600 * a->get(SPLIT) : 0; }  // 7 slices do not fit into 4096 bytes

int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int requested, int* ids, int* found) {
    for (*found = 0; *found < 4; ++*found) ids[*found] = (const int[]){9, 3, 8, 7}[*found];
    return requested < 4 ? 7 : 0;
}
int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int id, Algo* algo) {
    memset(algo, 0, sizeof(Algo));
    algo->put(0, id); algo->put(2 + SPLIT, 1);
    return id == 9 ? 15 : 0;
}
int cublasLtMatmulAlgoConfigSetAttribute(Algo* algo, int attribute, const void* value, size_t size) {
    if (size != (attribute >= INNER ? 2 : 4) || attribute == 0) return 7;
    uint32_t wide = 0;
    memcpy(&wide, value, size);
    algo->put(2 + attribute, wide);
    return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t size, size_t* written) {
    if (size != (attribute >= INNER ? 2 : 4)) return 7;
    uint32_t wide = algo->get(attribute);
    memcpy(value, &wide, size); *written = size;
    return 0;
}
int cublasLtMatmulAlgoCapGetAttribute(const Algo* algo, int attribute, void* value, size_t size, size_t* written) {
    uint32_t id = algo->get(0), values[3]; size_t count = 1;
    bool rich = id == 3;
    switch (attribute) {
        case 0: case 2: values[0] = rich; break;
        case 1: values[0] = rich ? 7 : 0; break;
        case 6: values[0] = 2; values[1] = 4; values[2] = 6; count = rich ? 3 : 0; break;
        case 13: values[0] = 8; values[1] = 9; count = rich ? 2 : 0; break;
        case 7: values[0] = rich ? 2 : 0; break;
        case 15: values[0] = id == 7 ? 0x80101 : 0x80201; values[1] = 0; count = 2; break;
        case 16: case 17: case 18: case 19: values[0] = id == 8 ? 4096 : 4; break;
        default: return 7;
    }
    *written = 4 * count;
    if (!size) return 0;
    if (size != 4 * count) return 7;
    memcpy(value, values, size);
    return 0;
}
int cublasLtMatmulAlgoCheck(void* handle, Desc* d, Layout* a, Layout* b, Layout* c, Layout* out, const Algo* algo, Result* result) {
    if (handle != (void*)0x17 || !d || !a || !b || c != out) return 7;
    seen.checks++;
    if (!legal(algo)) return 15;
    result->workspace = space_of(algo); result->state = 0;
    return 0;
}
static int refused = 0;
void stub_refuse(int yes) { refused = yes; }
int cublasLtMatmul(void* handle, Desc* d, const void* alpha, const void* A, Layout* a, const void* B, Layout* b, const void* beta,
                   const void* C, Layout* c, void* D, Layout* out, const Algo* algo, void* space, size_t size, void* stream) {
    uint64_t m = d->transa ? a->cols : a->rows, k = d->transa ? a->rows : a->cols;
    uint64_t k2 = d->transb ? b->cols : b->rows, n = d->transb ? b->rows : b->cols;
    if (refused) return 15;
    if (handle != (void*)0x17 || k != k2 || m != out->rows || n != out->cols || (size && !space)) return 7;
    seen.compute = d->compute; seen.scale = d->scale; seen.type = a->type; seen.algo = (int)algo->get(0); seen.last = *algo;
    seen.illegal += !legal(algo) || space_of(algo) > size;
    if (seen.algo < 64) seen.ids |= (uint64_t)1 << seen.algo;
    if (algo->get(SPLIT) > 1) seen.reductions |= algo->get(REDUCTION);
    if (algo->get(TILE) == 4 && algo->get(CLUSTER) == 5) return 13;  // AlgoCheck had nothing against it
    if (a->type == 2) {
        for (uint64_t j = 0; j < n; j++)
            for (uint64_t i = 0; i < m; i++) {
                float sum = d->epilogue & 4 ? (float)((_Float16*)d->bias)[i] : 0;
                for (uint64_t p = 0; p < k; p++)
                    sum += (float)((_Float16*)A)[d->transa ? p + i * a->ld : i + p * a->ld] *
                           (float)((_Float16*)B)[d->transb ? j + p * b->ld : p + j * b->ld];
                ((_Float16*)D)[i + j * out->ld] = (_Float16)sum;
            }
        return 0;
    }
    if (a->type != 0) {  // bf16: only that something was written
        for (uint64_t j = 0; j < out->cols; j++) memset((char*)D + 2 * j * out->ld, 0, 2 * out->rows);
        return 0;
    }
    gemm(d->transa, d->transb, m, n, k, *(float*)alpha, (float*)A, a->ld, (float*)B, b->ld, 0, (float*)D, out->ld);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i++) {
            float& x = ((float*)D)[i + j * out->ld];
            if (*(float*)beta != 0) x += *(float*)beta * ((float*)C)[i + j * c->ld];
            if (d->epilogue & 4) x += d->bias[i];
            if (d->epilogue & 32) x = x / 2 * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
        }
    if (algo->get(TILE) == 2 && algo->get(CUSTOM) == 1) *(float*)D += 1;  // the kernel with a bug
    return 0;
}
}
"""


def built(folder: Path) -> ctypes.CDLL:
    """The stub, compiled into this folder; skips the test where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (folder / "stub.cpp").write_text(STUB)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "stub.so"), str(folder / "stub.cpp")], check=True)
    return ctypes.CDLL(str(folder / "stub.so"))


class Seen(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("compute", "scale", "math", "mask", "type")),
        ("align", ctypes.c_int * 4),
        ("workspace", ctypes.c_uint64),
        ("live", ctypes.c_int),
        ("algo", ctypes.c_int),
        ("ids", ctypes.c_uint64),
        ("reductions", ctypes.c_uint32),
        ("illegal", ctypes.c_int),
        ("checks", ctypes.c_int),
        ("last", Algo),
    ]
