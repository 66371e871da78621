"""KernelBench answers: Python candidates on the CPU target."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.problems.kernelbench import load
from kernelwright.records import Candidate, Origin, Outcome
from kernelwright.targets import target
from kernelwright.targets.python_module import library_calls

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
    def forward(self, x):
        return torch.tanh(x) * self.scale
def get_inputs():
    return [torch.randn(8, 32)]
def get_init_inputs():
    return [32]
"""
ANSWER = PROBLEM[: PROBLEM.index("def get_inputs")].replace("Model", "ModelNew")


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("cpu")) as one:
        yield one


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (ANSWER, Outcome.OK, "checks passed"),
        (ANSWER.replace("torch.tanh(x)", "x"), Outcome.WRONG_RESULT, "y0"),
        (ANSWER.replace("torch.tanh(x) * self.scale", "torch.zeros_like(x)"), Outcome.WRONG_RESULT, "y0"),
        (ANSWER.replace("ModelNew", "Other"), Outcome.COMPILE_ERROR, "ModelNew"),
        (ANSWER.replace("return", "raise KeyError('hello')  #"), Outcome.CRASH, "hello"),
        (ANSWER.replace("return", "import os; os._exit(3)  #"), Outcome.CRASH, "code 3"),
        (ANSWER + "\n+", Outcome.COMPILE_ERROR, "SyntaxError"),
        (ANSWER.replace("self.scale\n", "self.scale[:4].sum()\n").replace("tanh(x)", "tanh(x)[0]"), Outcome.WRONG_RESULT, "shape"),
    ],
)
def test_an_answer_is_judged(evaluator, tmp_path, answer, outcome, words):
    file = tmp_path / "scaled_tanh.py"
    file.write_text(PROBLEM)
    candidate = Candidate(kind="python", source=answer, origin=Origin(kind="file"))
    job = Job(workload=load(file), rivals=("eager",), rungs=ALL_RUNGS)
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    assert trial.verdict.outcome == outcome, trial.verdict.evidence
    assert words in trial.verdict.evidence


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("import torch\nclass ModelNew:\n def forward(self, a):\n  return torch.matmul(a, a)", "calls torch.matmul"),
        ("import torch.nn.functional as G\ny = G.relu(x) @ x", "calls @, G.relu"),
        ("from torch import mm\ny = mm(a, b)", "calls mm"),
        ("import torch\n# torch.matmul(a, b)\ns = 'torch.mm(a, b)'\ny = torch.empty_like(x)", ""),
        ("not python(", ""),
    ],
)
def test_calls_of_the_library_are_read_from_the_syntax_tree(source, note):
    assert library_calls(source) == note


NORMALISED = PROBLEM.replace("self.scale =", "self.norm = torch.nn.BatchNorm1d(width)\n        self.scale =").replace(
    "tanh(x)", "tanh(self.norm(x))"
)
OWN_BUFFER = NORMALISED.replace("self.norm =", "self.register_buffer('offset', torch.tensor(0.5))\n        self.norm =")


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (NORMALISED.replace("Model", "ModelNew"), Outcome.OK, "checks passed"),
        (OWN_BUFFER.replace("Model", "ModelNew"), Outcome.OK, "checks passed"),
        (NORMALISED.replace("Model", "ModelNew").replace("self.scale", "self.gain"), Outcome.OK, "checks passed"),
        (
            NORMALISED.replace("Model", "ModelNew").replace("self.scale", "self.gain").replace("rand(", "ones("),
            Outcome.COMPILE_ERROR,
            "scale, nor",
        ),
    ],
)
def test_statistics_of_training_and_buffers_of_its_own_are_no_part_of_the_state(evaluator, tmp_path, answer, outcome, words):
    file = tmp_path / "normalised.py"
    file.write_text(NORMALISED)
    candidate = Candidate(kind="python", source=answer, origin=Origin(kind="file"))
    (trial,) = evaluator.evaluate([candidate], Job(workload=load(file)), stage="verify", session="test")
    assert trial.verdict.outcome is outcome, trial.verdict.evidence
    assert words in trial.verdict.evidence


COMPILED = ANSWER.replace("return torch.tanh(x) * self.scale", "return torch.compile(lambda t, s: torch.tanh(t) * s)(x, self.scale)")


def test_an_answer_that_would_start_a_compiler_is_refused_and_told_why(evaluator, tmp_path):
    file = tmp_path / "scaled_tanh.py"
    file.write_text(PROBLEM)
    candidate = Candidate(kind="python", source=COMPILED, origin=Origin(kind="file"))
    (trial,) = evaluator.evaluate([candidate], Job(workload=load(file)), stage="verify", session="test")
    assert trial.verdict.outcome is Outcome.REFUSED, trial.verdict.evidence
    assert "compiler" in trial.verdict.evidence


def test_the_hint_is_on_the_trial_and_decides_nothing(evaluator, tmp_path):
    file = tmp_path / "scaled_tanh.py"
    file.write_text(PROBLEM)
    candidate = Candidate(kind="python", source=ANSWER, origin=Origin(kind="file"))
    (trial,) = evaluator.evaluate([candidate], Job(workload=load(file)), stage="verify", session="test")
    (hint,) = [c for c in trial.verdict.checks if c.rung == "hint"]
    assert trial.verdict.ok and hint.passed and "torch.tanh" in hint.note


NAMES = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.second = torch.nn.Linear(width, width)
        self.last = torch.nn.LayerNorm(width)
        self.shift = torch.nn.Parameter(torch.randn(width) * 0.02)
        self.register_buffer("gain", torch.rand(width), persistent=False)
    def forward(self, x):
        return self.last(self.second(torch.relu(self.norm(self.first(x)))) * self.gain + self.shift)
def get_inputs():
    return [torch.randn(8, 32)]
def get_init_inputs():
    return [32]
"""
RENAMED = """
import torch
import torch.nn.functional as F
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        first, norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)
        second, last = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)
        self.w1, self.b1 = torch.nn.Parameter(first.weight.clone()), first.bias
        self.n1, self.n2 = norm, last
        self.w2, self.b2 = second.weight, second.bias
        self.shift_by = torch.nn.Parameter(torch.randn(width) * 0.02)
        self.register_buffer("scale", torch.rand(width), persistent=False)
        self.scratch = torch.empty(width)
    def forward(self, x):
        y = F.linear(torch.relu(self.n1(F.linear(x, self.w1, self.b1))), self.w2, self.b2)
        return self.n2(y * self.scale + self.shift_by)
"""
PREPARED = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        first, self.norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)
        second, self.last = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)
        self.register_buffer("w1_t", first.weight.detach().t().contiguous())
        self.bias = torch.nn.Parameter(first.bias.clone())
        shift = torch.randn(width) * 0.02
        gain = torch.rand(width)
        self.w2 = torch.nn.Parameter(second.weight * gain[:, None])
        self.register_buffer("b2", (second.bias * gain + shift).detach())
        self.plain = first.weight.detach() * 2  # nn.Module.to leaves it behind
    def forward(self, x):
        y = torch.addmm(self.b2, torch.relu(self.norm(torch.addmm(self.bias, x, self.plain.t().to(x.dtype) / 2))), self.w2.t())
        return self.last(y)
"""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (RENAMED, Outcome.OK, "checks passed"),
        (PREPARED, Outcome.OK, "checks passed"),
        (RENAMED.replace("+ self.shift_by", "+ 0 * self.shift_by"), Outcome.WRONG_RESULT, "y0"),
        (PREPARED.replace("* gain +", "+"), Outcome.WRONG_RESULT, "y0"),
        # weights that nobody drew, and a norm that lost its own
        (RENAMED.replace("randn(width) * 0.02", "ones(3)").replace("+ self.shift_by", ""), Outcome.COMPILE_ERROR, "shift"),
        (PREPARED.replace("self.last(y)", "torch.nn.functional.layer_norm(y, y.shape[-1:])"), Outcome.WRONG_RESULT, "y0"),
        (RENAMED.replace("self.n1, self.n2 =", "raise KeyError('here')  #"), Outcome.COMPILE_ERROR, "here"),
    ],
)
def test_parameters_are_found_by_what_is_drawn_under_the_same_seed(evaluator, tmp_path, answer, outcome, words, dtype):
    """KernelBench's answers need not keep names, and may compute what they like of their weights when they are made."""
    file = tmp_path / "two_layers.py"
    file.write_text(NAMES)
    candidate = Candidate(kind="python", source=answer, origin=Origin(kind="file"))
    job = Job(workload=load(file, dtype), rivals=("eager",), rungs=ALL_RUNGS)
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    assert trial.verdict.outcome == outcome, trial.verdict.evidence
    assert words in trial.verdict.evidence
