"""CUDAHercules' tasks: a checkout in its form, written here."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from kernelwright.bench.answers import read
from kernelwright.bench.hercules import read_yaml, tasks, wrapped
from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import ProblemError, problem_of
from kernelwright.targets.cpu import compiler

ABOUT = """schema_version: 1
task_id: {key}
name: {name}
task_class: {kind}
domain: ml
tags:
- gemm
- 'it''s'
hardware:
  min_sm: {sm}
  required_features: []
runner:
  env: {{}}
correctness:
  tolerances:
    atol: 0.001
  note: a text that
    goes on
hints: |
  several: lines
  - of text
anti_cheat:
  blocked_patterns:
  - '#include\\s*<x>'
  - "a\\tb"
"""

DEF = '''
import torch

ROWS = 24
COLS = 40
FUNCTION_SIGNATURE = """
void launch_scale(
    const void* x,     // [rows, cols] fp16
    const void* gain,  // [rows] fp32
    void* y,
    float* sums,
    int rows,
    long cols,
    const float shift,
    cudaStream_t stream
);
"""
SCALAR_ARGS = {"rows": ROWS, "cols": COLS, "shift": 0.5}


def get_inputs():
    x = torch.randn(ROWS, COLS, device="cuda", dtype=torch.float16)
    again = torch.zeros_like(x, dtype=torch.float16)
    gain = torch.rand(ROWS, device="cuda", dtype=torch.float32) + again.float().sum()
    return [("x", x), ("gain", gain)]


def get_outputs(inputs):
    x = inputs[0][1]
    return [("y", torch.empty_like(x)), ("sums", torch.empty(ROWS, device=x.device, dtype=torch.float32))]


def reference_fn(inputs):
    x = inputs[0][1].float()
    y = (x * inputs[1][1].unsqueeze(-1) + 0.5).to(torch.float16)
    return [("y", y), ("sums", x.sum(-1))]
'''

SOLUTION = """
typedef void* cudaStream_t;
extern "C" void launch_scale(const void* x, const float* gain, void* y, float* sums, int rows, long cols, float shift, cudaStream_t) {
    const _Float16* from = static_cast<const _Float16*>(x);
    _Float16* to = static_cast<_Float16*>(y);
    for (int i = 0; i < rows; ++i) {
        float sum = 0;
        for (long j = 0; j < cols; ++j) {
            to[i * cols + j] = static_cast<_Float16>(static_cast<float>(from[i * cols + j]) * gain[i] + shift);
            sum += static_cast<float>(from[i * cols + j]);
        }
        sums[i] = sum;
    }
}
"""


@pytest.fixture
def checkout(tmp_path):
    def add(key: str, kind: int, sm: int, definition: str = "") -> None:
        folder = tmp_path / "tasks" / key
        folder.mkdir(parents=True)
        folder.joinpath("task.yaml").write_text(ABOUT.format(key=key, name=folder.name, kind=kind, sm=sm))
        if definition:
            folder.joinpath("def.py").write_text(definition)

    add("class1/hopper/48_gemm", 1, 90)
    add("class2/blackwell/new", 2, 100, DEF)
    add("class2/general/double", 2, 80, DEF.replace("float16", "float64"))
    add("class2/general/no_reference", 2, 80, "def get_inputs(): pass\ndef get_outputs(i): pass\n")
    add("class2/general/scale", 2, 80, DEF)
    add("class3/app/general", 3, 80)
    return tmp_path


def test_every_task_runs_or_says_why_not(checkout):
    found = {t.key: t for t in tasks(checkout, sm=90)}
    assert {k: t.skipped for k, t in found.items()} == {
        "class1/hopper/48_gemm": "harness",
        "class2/blackwell/new": "architecture",
        "class2/general/double": "dtype",
        "class2/general/no_reference": "sources",
        "class2/general/scale": "",
        "class3/app/general": "harness",
    }
    assert all(t.why for t in found.values() if t.skipped) and "sm_100" in found["class2/blackwell/new"].why
    runs = found["class2/general/scale"]
    assert (runs.group, runs.level, runs.domain, runs.workload.dtype) == ("module", "class 2", "ml", "fp16")
    assert {t.key: t for t in tasks(checkout)}["class2/blackwell/new"].skipped == "", "without a GPU its reference still runs"
    with pytest.raises(ProblemError, match="no checkout"):
        tasks(checkout / "tasks" / "class3" / "app")


def test_yaml_as_it_is_used_there():
    found = read_yaml(ABOUT.format(key="class1/x", name="x", kind=1, sm=90))
    assert found["tags"] == ["gemm", "it's"] and found["hardware"] == {"min_sm": 90, "required_features": []}
    assert found["correctness"] == {"tolerances": {"atol": 0.001}, "note": "a text that goes on"}
    assert found["anti_cheat"]["blocked_patterns"] == [r"#include\s*<x>", "a\tb"] and found["runner"]["env"] == {}
    with pytest.raises(ValueError, match="line 1"):
        read_yaml("? complex\n")
    with pytest.raises(ValueError, match="item of no list"):
        read_yaml("- x\n")


def test_the_reference_is_float64_whatever_it_casts_to(checkout):
    w = next(t for t in tasks(checkout) if t.key.endswith("scale")).workload
    problem = problem_of(w)
    assert {s.name: s.dtype for s in problem.tensors(w)} == {"x0": "fp16", "x1": "fp16", "y0": "fp16", "y1": "fp16"}
    inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    x, gain = inputs["x0"].double(), inputs["x1"].double()
    reference = problem.reference(w, inputs)
    assert torch.equal(reference["y0"], x * gain[:, None] + 0.5) and torch.allclose(reference["y1"], x.sum(-1), rtol=1e-14)
    assert problem.eager(w, inputs)["y0"].dtype == torch.float16


def test_a_host_function_is_called_as_it_declares_itself(checkout, monkeypatch):
    """With the system's compiler in nvcc's place: the module that is written around an answer is the same."""
    task = next(t for t in tasks(checkout) if t.key.endswith("scale"))
    w = task.workload
    source = wrapped(SOLUTION, w, (compiler() or "g++", "-O1", "-shared", "-fPIC", "-x", "c++"))
    module = types.ModuleType("hercules_answer")
    monkeypatch.setitem(sys.modules, "hercules_answer", module)
    exec(compile(source, "answer.py", "exec"), module.__dict__)
    problem = problem_of(w)
    inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(1), "cpu")
    y, sums = module.ModelNew()(inputs["x0"], inputs["x1"])
    assert y.dtype == sums.dtype == torch.float16
    assert compare(problem, w, expect(problem, w, inputs), {"y0": y, "y1": sums}).passed
    with pytest.raises(RuntimeError, match="error"):
        exec(compile(wrapped("no C++", w, (compiler() or "g++", "-x", "c++")), "answer.py", "exec"), {})


def test_its_runs_are_read(checkout, tmp_path):
    folder = tmp_path / "results" / "run" / "class2" / "general" / "scale"
    for sample in (0, 1):
        (folder / f"sample_{sample}").mkdir(parents=True)
        (folder / f"sample_{sample}" / "solution.cu").write_text(SOLUTION + f"// {sample}")
    e = read(str(tmp_path / "results" / "run"), tasks(checkout, sm=90))
    assert [(a.sample, a.suffix) for a in e.answers["class2/general/scale"]] == [(0, ".cu"), (1, ".cu")]


NORM = """
import torch


def get_inputs():
    x = torch.randn(64, 32, device="cuda", dtype=torch.float32)
    gamma = torch.ones(32, device="cuda", dtype=torch.float32)
    return [("x", x), ("gamma", gamma), ("beta", torch.zeros(32, device="cuda", dtype=torch.float32))]


def get_outputs(inputs):
    return [("z", torch.empty_like(inputs[0][1]))]


def reference_fn(inputs):
    x, gamma, beta = (t for _, t in inputs)
    return [("z", torch.nn.functional.layer_norm(x, (32,)) * gamma + beta)]
"""


@pytest.mark.parametrize("forgotten", ["gamma", "beta"])
def test_inputs_of_ones_and_zeros_cannot_be_left_out(tmp_path, forgotten):
    """Its layer norms are drawn with a weight of ones and a bias of zeros, where a kernel that ignores both is right."""
    folder = tmp_path / "tasks" / "class2" / "general" / "norm"
    folder.mkdir(parents=True)
    folder.joinpath("task.yaml").write_text(ABOUT.format(key="class2/general/norm", name="norm", kind=2, sm=80))
    folder.joinpath("def.py").write_text(NORM)
    (task,) = tasks(tmp_path)
    assert task.workload is not None
    problem = problem_of(task.workload)
    inputs = problem.generate(task.workload, problem.cases(task.workload)[0], torch.Generator(), "cpu")
    expected = expect(problem, task.workload, inputs)
    assert compare(problem, task.workload, expected, problem.eager(task.workload, inputs)).passed
    plain = {"gamma": torch.ones_like, "beta": torch.zeros_like}[forgotten]
    name = {"gamma": "x1", "beta": "x2"}[forgotten]
    without = problem.eager(task.workload, inputs | {name: plain(inputs[name])})
    assert not compare(problem, task.workload, expected, without).passed
