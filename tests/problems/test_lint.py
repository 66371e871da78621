"""Each fault that let wrong kernels pass in public benchmarks is found; sound problems are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kernelwright.cli import app
from kernelwright.problems import resolve
from kernelwright.problems.chains import CHAINS
from kernelwright.problems.kernelbench import read
from kernelwright.problems.kernelbench_repair import repair
from kernelwright.problems.kernelbench_shrink import constants, extent, shrunk
from kernelwright.problems.lint import RULES, Finding, lint
from kernelwright.problems.redundancy import rank, repetition

FAULTY = Path(__file__).parent / "faulty"
FILE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return {result}
def get_inputs():
    return [{inputs}(4, 64), {inputs}(4, 64)]
def get_init_inputs():
    return []
"""


def findings(tmp_path, result: str, inputs: str = "torch.randn") -> set[tuple[str, str]]:
    path = tmp_path / "op.py"
    path.write_text(FILE.format(result=result, inputs=inputs))
    return {(f.rule, f.tensor) for f in lint(resolve(str(path)))}


def of(name: str, **options: float) -> dict[tuple[str, str], Finding]:
    return {(f.rule, f.tensor): f for f in lint(read(FAULTY / f"{name}.py"), **options)}


def test_a_sound_problem_has_no_findings(tmp_path):
    assert findings(tmp_path, "torch.tanh(x) * y") == set()


@pytest.mark.parametrize("name", [c.name for c in CHAINS])
@pytest.mark.parametrize("rest", ["16x64", "4096x1024:fp16"])
def test_our_chains_are_sound(name, rest):
    assert lint(resolve(f"chain:{name}:{rest}")) == []


@pytest.mark.parametrize(
    "problem", ["gemm:32x24x40:fp16", "gemm:4096x4096x512:bf16:nt", "gemm:1x512x512:fp32", "linear:64x48x64:bias+gelu"]
)
def test_our_products_are_sound(problem):
    assert lint(resolve(problem)) == []


def test_our_example_is_sound():
    assert lint(read(Path(__file__).parents[2] / "examples" / "gated_unit.py")) == []


def test_faults(tmp_path):
    assert ("zeros-pass", "y0") in findings(tmp_path, "(x * y).relu() * 0.0")
    assert ("constant-passes", "y0") in findings(tmp_path, "(x * y) * 1e-9 + 5.0")
    assert ("input-ignored", "x1") in findings(tmp_path, "torch.tanh(x) + 0 * y")
    assert ("identity-passes", "y0") in findings(tmp_path, "x.relu() + 0 * y", inputs="torch.rand")
    assert ("non-finite", "y0") in findings(tmp_path, "torch.log(x) * y")
    assert ("saturated", "y0") in findings(tmp_path, "(x * 1e4).sigmoid() * (y.abs() > -1)", inputs="torch.rand")


@pytest.mark.parametrize(
    ("name", "rule", "tensor", "severity"),
    [
        ("tiny_softmax", "zeros-pass", "y0", "warning"),
        ("whole_norm", "zeros-pass", "y0", "warning"),
        ("row_norm", "zeros-pass", "y0", "warning"),
        ("smallest", "zeros-pass", "y0", "warning"),
        ("own_mean", "zeros-pass", "y0", "error"),
        ("clamped_away", "zeros-pass", "y0", "error"),
        ("clamped_away", "random-output", "", "error"),
        ("clamped_away", "degenerate-parameter", "norm_weight", "warning"),
        ("periodic_product", "repeated-slices", "x0", "warning"),
        ("periodic_product", "low-rank", "x0", "warning"),
        ("periodic_product", "fixed-input", "x1", "warning"),
        ("layer_norm", "degenerate-parameter", "norm_bias", "warning"),
        ("relu_of_rand", "identity-passes", "y0", "warning"),
        ("mean_loss", "replay-passes", "y0", "warning"),
        ("noisy_reference", "random-output", "y0", "error"),
        ("low_rank", "low-rank", "x0", "warning"),
        ("low_rank", "fixed-input", "x1", "warning"),
    ],
)
def test_the_faults_of_public_benchmarks(name, rule, tensor, severity):
    found = of(name)
    assert (rule, tensor) in found, list(found)
    assert found[rule, tensor].severity == severity
    assert {f.rule for f in found.values()} <= set(RULES)


def test_a_range_is_extrapolated_from_smaller_sizes():
    found = of("whole_norm")["zeros-pass", "y0"]
    true = (1 / 3 * 64 * 64 * 512 * 512) ** -0.5  # the largest element is 1, the norm sqrt(n / 3)
    assert found.figures["largest"] * found.figures["shrinkage"] == pytest.approx(true, rel=0.5)
    assert found.figures["tolerance"] == 1e-4


def test_memory():
    assert of("whole_norm", memory=2.0**32)["memory", ""].severity == "error"
    assert ("memory", "") not in of("layer_norm", memory=2.0**32)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("tiny_softmax", {"zeros-pass"}),
        ("row_norm", {"zeros-pass"}),
        ("smallest", {"zeros-pass"}),
        ("layer_norm", {"degenerate-parameter"}),
        ("relu_of_rand", {"identity-passes"}),
        ("periodic_product", {"repeated-slices", "low-rank", "fixed-input", "periodic-input"}),
        ("low_rank", {"low-rank", "fixed-input"}),
    ],
)
def test_a_repaired_file_no_longer_has_the_fault(name, rules):
    done = repair(read(FAULTY / f"{name}.py"))
    assert done.changes
    assert not rules & {f.rule for f in done.remaining}
    assert not rules & {f.rule for f in lint(done.w)}


def test_a_constant_formula_cannot_be_repaired():
    done = repair(read(FAULTY / "own_mean.py"))
    assert "zeros-pass" in {f.rule for f in done.remaining}


DROPOUT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(x) @ x
def get_inputs():
    return [torch.randn(4, 64)]
def get_init_inputs():
    return []
"""


def test_a_file_with_dropout_whose_forward_fails_is_a_finding(tmp_path):
    (tmp_path / "op.py").write_text(DROPOUT)
    found = lint(read(tmp_path / "op.py"))
    assert [f.rule for f in found] == ["random-output", "unusable"] and "forward() raised RuntimeError" in found[1].text


def test_a_forward_that_fails_on_some_inputs_says_why_in_words(tmp_path):
    path = tmp_path / "op.py"
    path.write_text(FILE.format(result="x * y if x.is_meta or x[0, 0] > 9 else x @ y", inputs="torch.randn"))
    (found,) = lint(read(path))
    assert found.rule == "unusable" and "on some inputs: mat1 and mat2" in found.text


def test_periods_and_rank():
    x = torch.randn(64, 16)
    assert repetition(x) == [] and rank(x) == (16, 16)
    (along,) = repetition(x.repeat(4, 1))
    assert (along.axis, along.period, along.distinct) == (0, 64, 64)
    assert rank(torch.outer(x[:, 0], x[0])) == (1, 16)
    shuffled = x[torch.randint(8, (256,))]
    assert [(r.axis, r.period, r.distinct) for r in repetition(shuffled)] == [(0, 0, 8)]


def test_constants_of_a_file():
    assert constants("a = 4\nb, c = 8, 2 * 16\nd = 'x'\na = 5\ne: int = 7\nf = 1\ng = 9\ng += 1") == {"b": 8, "c": 32, "e": 7, "g": 9}


def test_shrinking_keeps_rows_alike_and_leaves_small_files_alone():
    w = read(FAULTY / "row_norm.py")
    cut = shrunk(w)
    assert cut.changes == {"rows": 8} and extent(cut.w.source).inputs == ((8, 65536),)
    small = read(FAULTY / "layer_norm.py")
    assert shrunk(small).w == small


def run(*words: str):
    return CliRunner().invoke(app, ["lint", *words])


def test_sizes_that_stand_as_numbers_in_the_functions_are_shrunk_too(tmp_path):
    path = tmp_path / "wide.py"
    text = FILE.format(result="torch.softmax(x + y, dim=1)", inputs="torch.rand").replace("(4, 64)", "(512, 131072)")
    path.write_text(text)
    assert "zeros-pass" in {f.rule for f in lint(resolve(str(path)))}
    cut = shrunk(resolve(str(path)))
    assert cut.extent and cut.extent.elements <= 2**20 and set(cut.changes) == {"size_512", "size_131072"}


def test_the_verb(tmp_path):
    path = str(FAULTY / "relu_of_rand.py")
    assert run("chain:softmax:8x64").exit_code == 0
    assert run(path).exit_code == 0
    assert run(path, "--strict").exit_code == 1
    assert run(str(FAULTY / "own_mean.py")).exit_code == 1
    repaired = tmp_path / "repaired.py"
    result = run(path, "--repair", str(repaired), "--json")
    assert result.exit_code == 0, result.output
    assert run(str(repaired), "--strict").exit_code == 0
    (found,) = json.loads(result.stdout)["problems"].values()
    assert found[0]["rule"] == "identity-passes"


def test_the_verb_lints_folders_and_names_what_it_cannot(tmp_path):
    (tmp_path / "1_good.py").write_text(FILE.format(result="torch.tanh(x) * y", inputs="torch.randn"))
    (tmp_path / "2_bad.py").write_text("import torch\n")
    result = run(str(tmp_path), "--json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert problems["kernelbench:1_good:fp32"] == [] and problems["kernelbench:2_bad:fp32"][0]["rule"] == "unusable"


@pytest.mark.parametrize("words", [("no-such",), ("x.py",), ("chain:softmax", "--repair", "x.py")])
def test_wrong_requests(words):
    result = run(*words)
    assert result.exit_code != 0 and "Traceback" not in result.output
