"""Products that the launcher has cuBLASLt do, against a library of our own that computes them."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kernelwright.runtime import api
from kernelwright.runtime.launcher import Launcher, vendor
from kernelwright.targets import cublaslt as binding
from kernelwright.targets.target import CandidateFault, TargetUnavailable

sys.path.insert(0, str(Path(__file__).parents[1] / "rivals"))
pytest.importorskip("cuda.bindings.driver")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    from stub_cublas import built

    return built(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def seen(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    from stub_cublas import Seen

    monkeypatch.setattr(binding, "load_library", lambda stem: library)
    binding.library.cache_clear()
    library.stub_seen.restype = ctypes.POINTER(Seen)
    yield library.stub_seen().contents
    binding.library.cache_clear()


@pytest.fixture
def launcher(cuda: FakeCuda, seen) -> Iterator[Launcher]:
    cuda.lib.fake_reset()
    one = Launcher(str(cuda.path), cuda.exchange())
    yield one
    one.release()


def matrix(rows: int, columns: int, order: str = "n", pad: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Stored by rows, or as the transposed view of such a matrix, with room between its rows."""
    r, c = (rows, columns) if order == "n" else (columns, rows)
    t = torch.randn(r, c + pad).to(dtype)[:, :c]
    return t if order == "n" else t.t()


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), left=st.sampled_from("nt"), right=st.sampled_from("nt"),
    pads=st.tuples(*[st.sampled_from((0, 3))] * 3), bias=st.booleans(), dtype=st.sampled_from((torch.float16, torch.float32)),
)  # fmt: skip
def test_it_is_the_product(launcher: Launcher, m: int, n: int, k: int, left, right, pads, bias, dtype):
    """Twice, the second time with other tensors like these."""
    op = launcher.operation(f"product {m} {n} {k} {left} {right} {pads} {bias} {dtype}")
    for turn in range(2):
        a, b, out = matrix(m, k, left, pads[0], dtype), matrix(k, n, right, pads[1], dtype), matrix(m, n, "n", pads[2], dtype)
        added = torch.randn(n).to(dtype) if bias else None
        tensors = [t for t in (a, b, added, out) if t is not None]
        expected = a.double() @ b.double() + (0 if added is None else added.double())
        if turn == 0:
            assert launcher.launch(op, *tensors) is None
            launcher.register_vendor(op, a, b, out, added)
        if launcher.launch(op, *tensors) is None:
            return  # its addresses are aligned otherwise than those that were registered
        assert torch.allclose(out.double(), expected, atol=0.02 if dtype == torch.float16 else 1e-4)


def test_what_the_library_refuses_is_pytorchs(launcher: Launcher, library, seen):
    a, b, out = matrix(4, 8), matrix(8, 4), matrix(4, 4)
    launcher.register_vendor(1, a, b, out)
    library.stub_refuse(1)
    try:
        assert launcher.launch(1, a, b, out) is False, "PyTorch's turn, and nothing raised"
    finally:
        library.stub_refuse(0)
    assert launcher.launch(1, a, b, out) is True


@pytest.mark.parametrize(
    ("shapes", "why"),
    [(((0, 4), (4, 4)), "empty"), (((4, 0), (0, 4)), "empty"), (((4, 4), (4, 0)), "empty")],
)
def test_empty_products_are_not_asked_for(launcher: Launcher, shapes, why):
    a, b = (torch.empty(s, dtype=torch.float16) for s in shapes)
    with pytest.raises(ValueError, match=why):
        launcher.register_vendor(1, a, b, torch.empty(a.shape[0], b.shape[1], dtype=torch.float16))


def test_other_types_and_an_output_by_columns_are_not_asked_for(launcher: Launcher):
    with pytest.raises(ValueError, match="type"):
        launcher.register_vendor(1, *(torch.zeros(4, 4, dtype=torch.float64) for _ in range(3)))
    with pytest.raises(ValueError, match="rows of the output"):
        launcher.register_vendor(1, matrix(4, 5), matrix(5, 6), matrix(4, 6, "t"))


def test_without_an_algorithm_or_the_library(launcher: Launcher, monkeypatch):
    tensors = matrix(4, 8), matrix(8, 4), matrix(4, 4)
    monkeypatch.setattr(binding.Product, "algorithms", lambda *_: (_ for _ in ()).throw(CandidateFault("REFUSED", "none")))
    with pytest.raises(CandidateFault):
        launcher.register_vendor(1, *tensors)
    monkeypatch.undo()
    binding.library.cache_clear()
    monkeypatch.setattr(binding, "load_library", lambda stem: (_ for _ in ()).throw(TargetUnavailable("no library")))
    with pytest.raises(TargetUnavailable):
        launcher.register_vendor(1, *tensors)
    assert launcher.launch(1, *tensors) is None


def test_descriptors_live_as_long_as_what_is_registered(launcher: Launcher, seen):
    before = seen.live
    launcher.register_vendor(1, matrix(4, 8), matrix(8, 4), matrix(4, 4))
    assert seen.live == before + 4, "a description, three layouts; the preference is freed"
    launcher.release()
    assert seen.live == before


def test_the_library_is_told_how_operands_are_aligned(launcher: Launcher, seen):
    flat = torch.zeros(1000, dtype=torch.float16)
    assert flat.data_ptr() % 16 == 0
    a, b, out, bias = flat[:32].view(4, 8), flat[36:68].view(8, 4), flat[72:88].view(4, 4), flat[97:101]
    launcher.register_vendor(1, a, b, out)
    assert list(seen.align) == [8, 16, 16, 16], "of b, which comes first, a and the output"
    launcher.register_vendor(1, a, b, out, bias)
    assert list(seen.align) == [8, 16, 2, 2], "a bias counts as the output"


def test_threads_with_biases_of_their_own(launcher: Launcher):
    """The address of a bias is written into a description that all threads share."""
    a, b = torch.zeros(2, 8, dtype=torch.float16), torch.zeros(8, 16, dtype=torch.float16)
    launcher.register_vendor(1, a, b, torch.empty(2, 16, dtype=torch.float16), torch.empty(16, dtype=torch.float16))
    wrong = []

    def work(number: int) -> None:
        bias, out = torch.full((16,), number, dtype=torch.float16), torch.empty(2, 16, dtype=torch.float16)
        for _ in range(300):
            if launcher.launch(1, a, b, bias, out) is not True or not bool((out == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_words_are_those_of_registered_h():
    header = Path(vendor.__file__).with_name("registered.h").read_text()
    assert f"static_assert(sizeof(Vendor) == {vendor.VENDOR.size})" in header


@pytest.mark.parametrize("shape", [(5, 7, 9), (64, 64, 48)])
def test_what_no_kernel_serves_is_served_by_the_library(serving, seen, shape):
    """kw.matmul, kw.linear: met once, then the launcher's alone."""
    serving.engine._vendor = True
    m, n, k = shape
    a, weight, bias = torch.randn(m, k).half(), torch.randn(n, k).half(), torch.randn(n).half()
    for _ in range(3):
        seen.compute = 0
        assert torch.allclose(api.matmul(a, weight.t()).float(), a.float() @ weight.t().float(), atol=0.1)
        assert seen.compute == binding.COMPUTE_32F, "the library was called by us"
        seen.compute = 0
        out = torch.empty(m, n, dtype=torch.float16)
        assert api.matmul(a, weight.t(), out=out) is out and seen.compute == binding.COMPUTE_32F
        seen.compute = 0
        expected = torch.nn.functional.linear(a.float(), weight.float(), bias.float())
        assert torch.allclose(api.linear(a, weight, bias).float(), expected, atol=0.1) and seen.compute == binding.COMPUTE_32F
    assert serving.met == 2
    assert "calls the library" in api.explain(a, weight.t())


def test_activations_without_a_kernel_are_pytorchs(serving, seen):
    serving.engine._vendor = True
    seen.compute = 0
    x, weight = torch.randn(5, 9).half(), torch.randn(7, 9).half()
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
    assert torch.equal(api.linear(x, weight, activation="gelu"), expected) and seen.compute == 0
