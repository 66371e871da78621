"""Sparse layers served from a pack: real kernels on a driver that records its launches, dense products where none serves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda, kernels

from kernelwright import sparse
from kernelwright.families import DeviceFacts, family
from kernelwright.problems import resolve
from kernelwright.records import Environment
from kernelwright.runtime import pack
from kernelwright.runtime.launcher import Launcher
from kernelwright.sparse import product, served
from kernelwright.targets.launch import TENSOR_MAP_BYTES
from made_up import made_up_pack

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
SIZES = {"tensormap": TENSOR_MAP_BYTES, "scalar": 4}
ROWS = {"spmm:1x64x256": "spmm_quad", "spmm:8x64x256": "spmm_quad", "spmm:32x64x256": "spmm_quad_sm90", "spmm:8x64x256:bias": "spmm_quad"}
ROWS |= {"unpack:64x256": "unpack_quad", "spmm:8x64x256:three-50": "spmm_three_layer"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pack.Pack:
    pytest.importorskip("cuda.bindings.nvrtc")
    made = []
    for name, by in ROWS.items():
        w, one = resolve(name), family(by)
        made.append((name, one.render(one.seeds(w, H200)[0], w, H200)))
    return made_up_pack(tmp_path_factory.mktemp("pack") / "p", "cuda:sm_90", Environment(target="cuda:sm_90", device="x", host="y"), made)


@pytest.fixture
def serving(cuda: FakeCuda, made: pack.Pack, monkeypatch: pytest.MonkeyPatch):
    """This machine's memory taken for a GPU's."""
    cuda.lib.fake_reset()
    launcher = Launcher(str(cuda.path), cuda.exchange())
    of = {str(made.artifact(e)): e.plan for e in made.entries}

    def recorded(artifact, device):
        plan = of[str(artifact)]
        assert plan is not None
        tag = {"i32": 4, "i64": 8, "f32": 4}
        return kernels(
            cuda,
            {
                launch.kernel: [
                    tag[a.ctype] if a.__struct_config__.tag == "scalar" else SIZES.get(a.__struct_config__.tag, 8) for a in launch.args
                ]
                for launch in plan.launches
            },
        )

    monkeypatch.setattr(launcher, "kernels", recorded)
    one = served.serving([made], launcher, 132)
    monkeypatch.setattr(served, "_of", lambda weight: one)
    layouts = ("quad-bitmap", "three-layer")
    monkeypatch.setattr(product, "kernels", [sparse.Kernel(layout, "cpu", served.crossover, served.run) for layout in layouts])
    monkeypatch.setattr(product, "unpackers", [])
    yield cuda
    launcher._core.release()


def half_empty(rows: int = 64, columns: int = 256, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=g).masked_fill(torch.rand(rows, columns, generator=g) < 0.5, 0).half()


def test_the_kernel_of_the_next_measured_number_of_rows_serves(serving):
    weight = sparse.compress(half_empty())
    functions = []
    for n in (1, 1, 3, 8, 20, 32):
        before = len(serving.launches())
        assert sparse.linear(torch.ones(n, 256).half(), weight).shape == (n, 64)
        functions.append([launch.function for launch in serving.launches()[before:]])
    assert functions[0] == functions[1], "thought about once"
    assert [len(f) for f in functions] == [1, 1, 1, 1, 2, 2], "32 rows: a kernel, and the sum of parts"
    parameters = bytes(serving.launches()[0].params)
    assert weight.parts["records"].data_ptr().to_bytes(8, "little") in parameters


def test_above_the_last_measured_number_and_for_other_weights_dense_serves(serving):
    w = half_empty()
    weight, x = sparse.compress(w), torch.randn(33, 256).half()
    assert torch.equal(sparse.linear(x, weight), torch.nn.functional.linear(x, w))
    for other in (half_empty(80), half_empty().masked_fill(torch.rand(64, 256) < 0.5, 0)):  # another shape; three quarters zeros
        assert torch.equal(sparse.linear(x[:2], sparse.compress(other)), torch.nn.functional.linear(x[:2], other))
    assert torch.equal(sparse.linear(x[:2], sparse.compress(w, order="lane")), torch.nn.functional.linear(x[:2], w))
    assert not serving.launches()


def test_above_the_crossover_a_kernel_unpacks(serving, monkeypatch):
    monkeypatch.setattr(product, "unpackers", [product.Unpacker("quad-bitmap", "cpu", served.unpack)])
    weight = sparse.compress(half_empty(80))  # another shape than the one that was measured
    sparse.linear(torch.ones(200, 256).half(), weight)
    (launch,) = serving.launches()
    assert weight.parts["records"].data_ptr().to_bytes(8, "little") in bytes(launch.params)
    assert not served.unpack(sparse.compress(half_empty(), order="lane"), torch.empty(64, 256).half())
    wide = sparse.compress(half_empty(80, 260))
    assert not served.unpack(wide, torch.empty(80, 260).half()), "rows of no multiple of 16 bytes: PyTorch's turn"


def test_a_bias_is_part_of_a_kernel_or_added(serving):
    weight, bias = sparse.compress(half_empty()), torch.ones(64).half()
    sparse.linear(torch.ones(4, 256).half(), weight, bias)
    assert bias.data_ptr().to_bytes(8, "little") in bytes(serving.launches()[0].params)
    out = torch.zeros(20, 64).half()
    assert served.run(torch.ones(20, 256).half(), weight, bias, out)  # measured without a bias only
    assert torch.equal(out, bias.expand(20, 64))


def test_each_layout_has_its_own_kernels(serving):
    w = half_empty()
    weight, x = sparse.compress(w, "three-layer"), torch.ones(8, 256).half()
    sparse.linear(x, weight)
    (launch,) = serving.launches()
    assert weight.parts["records"].data_ptr().to_bytes(8, "little") in bytes(launch.params)
    x = torch.randn(9, 256).half()
    assert torch.equal(sparse.linear(x, weight), torch.nn.functional.linear(x, w)), "nine rows were measured for the other layout"


def test_packs_in_use_are_opened_for_their_device(made, monkeypatch):
    of = SimpleNamespace(major=9, minor=0, name="x", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of)
    monkeypatch.setattr(served, "open_launcher", lambda: None)
    found = served._open(torch.device("cuda"), (made.path,))
    assert found is not None and found.sms == 132 and found.most(sparse.compress(half_empty())) == 32
    of.minor = 9
    assert served._open(torch.device("cuda"), (made.path,)) is None, "a pack for another device"


def test_a_pack_in_which_dense_won_ends_there(made):
    entries = tuple(e.replace(rival="eager", candidate="", plan=None) if e.workload.axes.get("N") == 8 else e for e in made.entries)
    other = pack.Pack(made.path, made.manifest.replace(entries=entries))
    one = served.serving([other], None, 132)  # pyright: ignore[reportArgumentType]
    assert one.most(sparse.compress(half_empty())) == 1


def test_a_driver_that_refuses_leaves_the_rest_to_torch(serving):
    w = half_empty()
    weight, x = sparse.compress(w), torch.ones(2, 256).half()
    sparse.linear(x, weight)
    serving.lib.fake_fail(1, 0)
    with pytest.warns(RuntimeWarning, match="densely from now on"):
        assert torch.equal(sparse.linear(x, weight), torch.nn.functional.linear(x, w))
    serving.lib.fake_fail(0, 0)
    assert torch.equal(sparse.linear(x, weight), torch.nn.functional.linear(x, w)) and len(serving.launches()) == 1
