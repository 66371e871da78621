"""cuBLAS and cuBLASLt called from C++ with three tensors, by a library that computes in float."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from kernelwright.records import Workload


@pytest.fixture
def thin(cpu: SimpleNamespace, tmp_path_factory):
    from fake_cuda import FakeCuda
    from thin_calls import ThinCalls

    cuda = FakeCuda(tmp_path_factory.mktemp("libcuda"))
    cpu.cuda = cuda
    return ThinCalls(cuda.exchange())


def product(m: int, n: int, k: int, layout: str, dtype: str = "fp32") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


def prepared(thin, w: Workload, sets, library: str) -> int:
    from kernelwright.rivals import cublaslt
    from kernelwright.rivals.cublas import column_major

    if library == "cublas":
        return thin.cublas(w, sets[0])
    problem = cublaslt.Problem(w, column_major(w, sets[0]), (16, 16, 16), sets[0])
    return thin.cublaslt(w, problem, sets[0], problem.algorithms(3)[-1])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_a_product_on_every_set(thin, cpu, library, layout):
    from contenders import sets_of
    from thin_calls import factors

    w = product(24, 40, 56, layout)
    sets = sets_of(w, 3)
    number = prepared(thin, w, sets, library)
    for one in reversed(sets):
        a, b, c = factors(w, one)
        c.fill_(torch.nan)
        assert thin.call(number, a, b, c) is None
        torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-4)
    if library == "cublaslt":
        assert cpu.seen.algo == 102, "the algorithm that was handed over, not the first"


def test_cublas_is_told_the_stream_and_gets_its_workspace_there(thin, cpu):
    from contenders import sets_of
    from thin_calls import factors

    w = product(8, 8, 8, "nn")
    (one,) = sets_of(w, 1)
    number = prepared(thin, w, [one], "cublas")
    cpu.seen.workspace = 0
    thin.call(number, *factors(w, one))
    assert cpu.seen.workspace == cpu.space.numel(), "on the first stream"
    cpu.seen.workspace = 0
    thin.call(number, *factors(w, one))
    assert cpu.seen.workspace == 0, "known there"
    cpu.cuda.lib.fake_stream(ctypes.c_uint64(77))
    thin.call(number, *factors(w, one))
    assert cpu.seen.workspace == cpu.space.numel(), "a change of stream takes it away"


def test_math_mode_follows_the_accumulator(thin, cpu):
    from contenders import sets_of

    half, single = product(8, 8, 8, "nn", "fp16"), product(8, 8, 8, "nn")
    (h,), (s,) = sets_of(half, 1), sets_of(single, 1)
    numbers = prepared(thin, half, [h], "cublas"), prepared(thin, single, [s], "cublas")
    with pytest.raises(RuntimeError, match="cublasGemmEx: status 7"):
        thin.call(numbers[0], *(h.tensors[x] for x in "abc"))  # the stand-in has no fp16
    assert cpu.seen.math == 16, "no reduction in fp16"
    thin.call(numbers[1], *(s.tensors[x] for x in "abc"))
    assert cpu.seen.math == 0


def test_other_tensors_than_prepared_are_refused(thin, cpu):
    from contenders import sets_of
    from thin_calls import factors

    w = product(16, 16, 16, "nn")
    (one,) = sets_of(w, 1)
    number = prepared(thin, w, [one], "cublaslt")
    a, b, c = factors(w, one)
    shifted = torch.empty(16 * 16 + 1)[1:].view(16, 16)
    for other in (a.double(), a[:8], a.t(), shifted, torch.nn.Parameter(a), "no tensor"):
        with pytest.raises(ValueError, match="tensor 0 is not what was prepared"):
            thin.call(number, other, b, c)
    with pytest.raises(IndexError, match="nothing is prepared"):
        thin.call(number + 1, a, b, c)
    with pytest.raises(TypeError, match="3 tensors"):
        thin.call(number, a, b)


def test_only_plain_products_that_accumulate_in_fp32(thin, cpu):
    from contenders import sets_of

    w = product(8, 8, 8, "nn", "fp16").replace(accumulate="fp16")
    with pytest.raises(ValueError, match="accumulate in fp32"):
        prepared(thin, w, sets_of(w, 1), "cublas")
