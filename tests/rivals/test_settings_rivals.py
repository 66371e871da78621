"""PyTorch under other settings as a rival: what they change, and what they leave as it was. On CPU tensors: the settings are the same."""

from __future__ import annotations

import pytest
import torch

from kernelwright import rivals
from kernelwright.evaluate.buffers import Buffers
from kernelwright.problems import problem_of
from kernelwright.problems.kernelbench import load
from kernelwright.rivals import pytorch
from kernelwright.targets.target import CandidateFault

CONVOLUTION = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3)
    def forward(self, x):
        SEEN.append((x.is_contiguous(memory_format=torch.channels_last), self.conv.weight.is_contiguous(memory_format=torch.channels_last),
                     torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
        return torch.relu(self.conv(x))
SEEN = []
def get_inputs():
    return [torch.randn(2, 3, 8, 8)]
def get_init_inputs():
    return []
"""


class Memory:
    torch_device = "cpu"

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


@pytest.fixture
def convolution(tmp_path):
    file = tmp_path / "conv.py"
    file.write_text(CONVOLUTION)
    w = load(file)
    buffers = Buffers(Memory(), problem_of(w), w, sets=2)  # pyright: ignore[reportArgumentType]
    rng = torch.Generator().manual_seed(0)
    for i in range(2):
        buffers.fill(problem_of(w).generate(w, problem_of(w).cases(w)[0], rng, "cpu"), i)
    buffers.poison()
    return w, buffers


@pytest.mark.parametrize(("name", "seen"), [("channels-last", {0, 1}), ("cudnn-benchmark", {2}), ("tf32", {3, 4})])
def test_a_setting_holds_during_the_call_and_the_results_are_the_references(convolution, name, seen):
    w, buffers = convolution
    problem = problem_of(w)
    runs, setup = rivals.load(name, w, buffers.bounds)
    assert setup is None and len(runs) == 2
    log = type(problem.model).forward.__globals__["SEEN"]
    before = (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    torch.backends.cudnn.allow_tf32 = False
    try:
        problem.eager(w, buffers.inputs(1))
        usual = log[-1]
        if runs[1].prepare:
            runs[1].prepare()
        runs[1].store(runs[1].call())
        assert {i for i, (a, b) in enumerate(zip(usual, log[-1], strict=True)) if a != b} == seen
        problem.eager(w, buffers.inputs(1))
        assert log[-1] == usual, "as it was"
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    assert torch.allclose(buffers.outputs(1)["y0"].double(), problem.reference(w, buffers.inputs(1))["y0"], atol=1e-5)


def test_weights_are_stored_anew_where_they_have_changed(convolution):
    w, buffers = convolution
    (run, _), _ = rivals.load("channels-last", w, buffers.bounds)
    run.prepare()
    first = run.call().clone()
    buffers.inputs(0)["conv_weight"].mul_(2.0)
    assert torch.equal(run.call(), first), "stored outside the clock"
    run.prepare()
    assert not torch.allclose(run.call(), first)


def test_eager_is_bound_to_its_set_of_buffers(convolution):
    w, buffers = convolution
    runs, _ = rivals.load("eager", w, buffers.bounds)
    buffers.inputs(1)["conv_weight"].mul_(3.0)
    for i, run in enumerate(runs):
        run.store(run.call())
        assert torch.allclose(buffers.outputs(i)["y0"].double(), problem_of(w).reference(w, buffers.inputs(i))["y0"], atol=1e-5)


def test_where_they_are_rivals(tmp_path, convolution):
    w, _ = convolution
    asked = rivals.names_for(w, "cuda:sm_90", every=True)
    assert {"compile-reduce", "channels-last", "cudnn-benchmark", "tf32"} <= set(asked)
    assert "tf32" not in rivals.names_for(w.replace(dtype="bf16"), "cuda:sm_90", every=True)
    assert not set(rivals.SETTINGS) & set(rivals.names_for(w, "cuda:sm_90")), "of a search only where they are asked for"
    assert set(rivals.names_for(w, "cpu", every=True)) == {"eager", "compile", "compile-max"}
    assert set(rivals.HOST_ONLY) == {"graph", "compile-reduce"}
    file = tmp_path / "dense.py"
    file.write_text(CONVOLUTION.replace("Conv2d(3, 5, 3)", "Linear(8, 5)"))
    dense = load(file)
    buffers = Buffers(Memory(), problem_of(dense), dense)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CandidateFault, match="no convolution"):
        pytorch.load("channels-last", dense, buffers.bounds)
