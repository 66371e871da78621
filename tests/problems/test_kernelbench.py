"""Files in KernelBench form as their authors write them, sound and broken."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.problems.builder import LoweringError
from kernelwright.problems.kernelbench import KernelBench, load
from kernelwright.problems.lower import run
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Workload

NORM_GELU = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x)) * self.scale

batch, features = 4, 32

def get_inputs():
    return [torch.rand(batch, 3, features)]

def get_init_inputs():
    return [features]
"""

CONVOLUTION = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5))
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool))

    def forward(self, x, times):
        y = self.net(x) * times
        return y.masked_fill(~self.mask, 0.0), y.argmax(-1)

def get_inputs():
    return [torch.rand(2, 3, 8, 8), 3]

def get_init_inputs():
    return []
"""


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str, name: str = "op.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return _write


def simple(forward: str = "return x.relu()", inputs: str = "[torch.randn(4, 8)]", init: str = "pass") -> str:
    return (
        "import torch\nclass Model(torch.nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, x):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\ndef get_init_inputs():\n    return []\n"
    )


def problem(w: Workload) -> KernelBench:
    found = problem_of(w)
    assert isinstance(found, KernelBench)
    return found


def normalised(p: KernelBench, w: Workload, case: int = 0) -> dict[str, float]:
    inputs = p.generate(w, p.cases(w)[case], torch.Generator().manual_seed(case), "cpu")
    reference = p.reference(w, inputs)
    scales, outputs = p.scale(w, inputs, reference), p.eager(w, inputs)
    return {k: float(((outputs[k].double() - ref).abs() / scales[k]).nan_to_num(0.0).max()) for k, ref in reference.items()}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("text", [NORM_GELU, CONVOLUTION], ids=["norm-gelu", "convolution"])
def test_a_module_becomes_a_problem(write, text, dtype):
    w = resolve(f"{write(text)}:{dtype}")
    p = problem(w)
    assert w.name == f"kernelbench:op:{dtype}" and p.name == "kernelbench:op"
    for case, _ in enumerate(p.cases(w)):
        assert normalised(p, w, case)["y0"] <= p.bound(w)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    outputs = p.eager(w, inputs)
    for spec in p.tensors(w):
        tensor = (inputs | outputs)[spec.name]
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, TORCH_DTYPES[spec.dtype])
    assert p.cost(w).bytes > 0 and p.cost(w).flops > 0
    assert p.variants(w) == ()


def test_tensors_are_named_by_position_and_dotted_path(write):
    w = load(write(CONVOLUTION))
    names = [s.name for s in problem(w).tensors(w)]
    assert names == ["x0", "net_0_weight", "net_0_bias", "net_1_weight", "net_1_bias", "net_4_weight", "net_4_bias", "y0", "y1"]
    assert [s.dtype for s in problem(w).tensors(w)][-2:] == ["fp32", "int64"]
    assert problem(w).cost(w).unit == "fp32"


def test_a_new_module_takes_the_same_state(write):
    w = load(write(NORM_GELU))
    p = problem(w)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    args, state = p.split(inputs)
    other = type(p.model)(*p.init_inputs)
    other.load_state_dict(state)
    torch.testing.assert_close(other(*args), p.eager(w, inputs)["y0"])


def test_parameters_vary_so_that_none_can_be_left_out(write):
    w = load(write(NORM_GELU))
    p = problem(w)
    rng = torch.Generator().manual_seed(0)
    first, second = (p.generate(w, p.cases(w)[0], rng, "cpu") for _ in range(2))
    for name in ("x0", "norm_weight", "norm_bias", "scale"):
        assert not torch.equal(first[name], second[name])
    assert float(first["scale"].std()) > 0.05 and float(first["norm_bias"].abs().max()) > 0.01


def test_running_a_module_changes_neither_inputs_nor_the_global_generator(write):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    w = load(write(CONVOLUTION))
    p = problem(w)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    before = {k: v.clone() for k, v in inputs.items()}
    first = p.eager(w, inputs)
    p.reference(w, inputs)
    second = p.eager(w, inputs)
    assert all(torch.equal(before[k], inputs[k]) for k in inputs)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert torch.equal(state, torch.get_rng_state())


def test_fresh_tensors_at_the_same_address_are_read(write):
    w = load(write(NORM_GELU))
    p = problem(w)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    first = p.eager(w, inputs)["y0"]
    inputs["scale"].mul_(2)
    torch.testing.assert_close(p.eager(w, inputs)["y0"], 2 * first)


def test_tied_and_recurrent_parameters(write):
    init = "self.a = torch.nn.Linear(8, 8); self.b = torch.nn.Linear(8, 8); self.b.weight = self.a.weight; self.r = torch.nn.GRU(8, 8)"
    w = load(write(simple("return self.r(self.b(self.a(x)))[0]", init=init)))
    assert normalised(problem(w), w)["y0"] <= problem(w).bound(w)
    assert "b_weight" not in [s.name for s in problem(w).tensors(w)]


def test_row_programs_of_files(write):
    w = load(write(NORM_GELU))
    p = problem(w)
    assert p.matrix(w) == (12, 32)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    doubles = {k: v.double() for k, v in inputs.items()}
    y = run(p.program(w), doubles, torch.float64)["y0"].reshape(4, 3, 32)
    torch.testing.assert_close(y, p.reference(w, inputs)["y0"])


def test_an_element_wise_file_has_long_rows(write):
    w = load(write(simple(inputs="[torch.randn(4, 3, 5, 2)]")))
    assert problem(w).matrix(w) == (4, 30)
    assert [c.name for c in problem(w).cases(w)] == ["normal", "wide", "signed", "nan"]


def test_a_file_that_is_no_row_program_says_why(write):
    w = load(write(CONVOLUTION))
    with pytest.raises(LoweringError, match=r"shape .* is neither a matrix"):
        problem(w).program(w)
    w = load(write(simple("return x @ x.t()")))
    with pytest.raises(LoweringError, match="`t` cannot be lowered"):
        problem(w).program(w)


def test_a_workload_replays_without_its_file(write, tmp_path):
    path = write(NORM_GELU)
    w = Workload.from_json(load(path).to_json())
    Path(path).unlink()
    assert problem_of(w).tensors(w)


BROKEN = {
    "syntax": ("def f(:\n", "op.py is not valid Python in line 1"),
    "raises": ("raise OSError('no data')", "op.py: importing it raised OSError: no data"),
    "exits": ("import sys; sys.exit(3)", "op.py: importing it raised SystemExit: 3"),
    "imports": ("import surely_not_there", "ModuleNotFoundError: No module named 'surely_not_there'"),
    "empty": ("\n", "op.py is empty; a KernelBench file defines Model"),
    "no-model": ("import torch", "op.py has no Model; a KernelBench file needs a torch.nn.Module class"),
    "no-inputs": (simple().replace("get_inputs", "make_inputs"), "op.py has no get_inputs"),
    "no-init-inputs": (simple().replace("get_init_inputs", "make_init"), "op.py has no get_init_inputs"),
    "not-a-module": (simple().replace("(torch.nn.Module)", ""), "Model is not a torch.nn.Module"),
    "returns-nothing": (simple("pass"), "op.py: forward returns NoneType; return a tensor"),
    "returns-numbers": (simple("return 3.0"), "op.py: forward returns float"),
    "no-tensors": (simple(inputs="[3]"), "get_inputs() returns no tensors"),
    "inputs-nothing": (simple(inputs="None"), "get_inputs() returns no tensors"),
    "inputs-raise": (simple(inputs="[1 / 0]"), "op.py: get_inputs() raised ZeroDivisionError"),
    "forward-raises": (simple("return x @ x"), "op.py: forward() raised RuntimeError"),
    "init-raises": (simple(init="self.p = unknown"), "op.py: Model(*get_init_inputs()) raised NameError"),
    "too-many-init": (simple().replace("return []", "return [1]"), "Model(*get_init_inputs()) raised TypeError"),
    "dropout": (simple("return self.d(x)", init="self.d = torch.nn.Dropout(0.1)"), "dropout makes the output random"),
    "complex": (simple(inputs="[torch.randn(4, 8, dtype=torch.cfloat)]"), "input 0 is complex64; use floating point"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gets_one_sentence(write, name):
    text, says = BROKEN[name]
    with pytest.raises(ProblemError) as caught:
        resolve(write(text))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_no_file(tmp_path):
    with pytest.raises(ProblemError, match=r"nothing\.py does not exist; give the path"):
        resolve(str(tmp_path / "nothing.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ProblemError, match="cannot be read"):
        resolve(str(tmp_path / "folder.py"))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProblemError, match="cannot be read"):
        resolve(str(tmp_path / "binary.py"))
    with pytest.raises(ProblemError, match="is not a Python file"):
        resolve(str(tmp_path / "kernel.cu"))
    with pytest.raises(ProblemError, match="has no layout"):
        resolve(f"{tmp_path / 'nothing.py'}:nn")


def test_a_value_dependent_forward_runs_for_real(write):
    w = load(write(simple("return x * 2 if x.sum().item() > -1e9 else x")))
    assert normalised(problem(w), w)["y0"] <= 1


@pytest.mark.slow
def test_torch_compile_takes_the_eager_call(write):
    w = load(write(NORM_GELU))
    p = problem(w)
    inputs = p.generate(w, p.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
    compiled = torch.compile(lambda *tensors: p.eager(w, dict(zip(inputs, tensors, strict=True))), dynamic=False)
    torch.testing.assert_close(compiled(*inputs.values())["y0"], p.eager(w, inputs)["y0"])


LARGE_ROWS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x, y):
        return torch.softmax(self.norm(x) + y, -1)

batch, features = 1 << 16, 512

def get_inputs():
    return [torch.rand(batch, features), torch.rand(batch, features)]

def get_init_inputs():
    return [features]
"""


def test_of_a_large_row_program_some_rows_are_looked_at(tmp_path):
    """Nothing of 2^16 x 512 elements is made: shapes are found on meta tensors."""
    file = tmp_path / "rows.py"
    file.write_text(LARGE_ROWS)
    problem = problem_of(w := load(file))
    x, y = torch.randn(1 << 16, 4), torch.randn(1 << 16, 4)
    of_inputs, of_outputs = problem.sample_rows(w, {"y0": x})
    some = of_inputs({"x0": x, "x1": y, "norm_weight": torch.ones(512), "norm_bias": torch.zeros(512)})
    assert some["x0"].shape == (64, 4) and some["norm_weight"].shape == (512,)
    rows = {tuple(r) for r in x.tolist()}
    assert all(tuple(r) in rows for r in some["x0"].tolist())
    assert torch.equal(of_outputs({"y0": x})["y0"], some["x0"])
    assert problem.sample_rows(w, {"y0": x}, 4)[1]({"y0": x})["y0"].shape == (16, 4)


def test_of_a_batch_that_is_fixed_everything_is_looked_at(tmp_path):
    file = tmp_path / "rows.py"
    file.write_text(LARGE_ROWS.replace("torch.softmax(", "torch.softmax(0 * x.view(batch, features) + "))
    problem = problem_of(w := load(file))
    outputs = {"y0": torch.empty(3)}
    assert problem.sample_rows(w, outputs)[1](outputs) is outputs
