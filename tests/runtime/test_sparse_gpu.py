"""Sparse layers served from a pack on a GPU: eagerly, in a CUDA graph, compiled, joined; above what was measured, unpacked by a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelwright import sparse
from kernelwright.families import family
from kernelwright.layouts import in_turn
from kernelwright.problems import resolve
from kernelwright.problems.spmm import swiglu
from kernelwright.records import Environment
from kernelwright.runtime import engine
from kernelwright.sparse import product, served
from kernelwright.targets import target
from made_up import made_up_pack

pytestmark = pytest.mark.gpu
ROWS, COLUMNS = 1024, 2048
KERNELS = [(f"spmm:{n}x{ROWS}x{COLUMNS}", by) for n, by in ((1, "spmm_quad"), (8, "spmm_quad"), (32, "spmm_quad_sm90"))]
KERNELS += [(f"spmm:8x{ROWS}x{COLUMNS}:bias", "spmm_quad"), (f"spmm:8x{ROWS}x{COLUMNS}:three-50", "spmm_three_layer")]
KERNELS += [(f"spmm:{n}x{ROWS}x{COLUMNS}:swiglu", by) for n, by in ((8, "spmm_quad"), (32, "spmm_quad_sm90"))]
KERNELS += [(f"unpack:{ROWS}x{COLUMNS}", "unpack_quad")]


@pytest.fixture(autouse=True)
def pack(tmp_path, monkeypatch):
    cuda, made = target("cuda"), []
    for text, by in KERNELS:
        w, one = resolve(text), family(by)
        made.append((text, one.render(one.seeds(w, cuda.facts())[0], w, cuda.facts())))
    of = Environment(target=cuda.name, device=torch.cuda.get_device_name(), host="x")
    monkeypatch.setattr(engine, "_paths", [made_up_pack(tmp_path / "pack", cuda.name, of, made).path])
    monkeypatch.setattr(served, "_served", {})


@pytest.fixture
def asked(monkeypatch) -> list[bool]:
    """Whether a kernel served, call by call."""
    found: list[bool] = []
    run = served.Served.run
    monkeypatch.setattr(served.Served, "run", lambda *a, **k: found.append(run(*a, **k)) or found[-1])
    return found


def half_empty(bias: bool = False) -> nn.Linear:
    layer = nn.Linear(COLUMNS, ROWS, bias=bias, dtype=torch.float16, device="cuda").requires_grad_(False)
    layer.weight.masked_fill_(torch.rand(ROWS, COLUMNS, device="cuda") < 0.5, 0)
    return layer


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (got.float() - wanted.float()).norm() < 2e-3 * wanted.float().norm()


@pytest.mark.parametrize("layout", ["quad-bitmap", "three-layer"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_the_dense_one(layout, bias, asked):
    dense = half_empty(bias)
    layer = sparse.SparseLinear.from_linear(dense, layout=layout)
    most = 32 if layout == "quad-bitmap" else 8
    for n in (1, 3, 8, 9, 32, 33, 200):
        x = torch.randn(n, COLUMNS, device="cuda").half()
        asked.clear()
        near(layer(x), dense(x))
        assert asked == ([True] if n <= most else [])


def test_in_a_graph_and_compiled(asked):
    dense = half_empty()
    layer = sparse.SparseLinear.from_linear(dense)
    compiled = torch.compile(layer, fullgraph=True)
    for n in (1, 32):
        x = torch.randn(n, COLUMNS, device="cuda").half()
        near(compiled(x), dense(x))
        near(layer(x), dense(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
            z = layer(x * 2)  # the next uses the same workspace
        for _ in range(3):
            x.normal_()
            graph.replay()
            near(y, dense(x))
            near(z, dense(x * 2))
    assert asked and all(asked)


def test_two_layers_as_one(asked):
    gate, up = half_empty().weight[: ROWS // 2], half_empty().weight[: ROWS // 2]
    dense = in_turn(gate, up)
    weight = sparse.compress(dense)
    for n in (5, 20):
        x = torch.randn(n, COLUMNS, device="cuda").half()
        y = x.double() @ dense.double().t()
        near(product.swiglu(x, weight), swiglu(y))
    assert asked == [True, True]
