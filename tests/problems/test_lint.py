"""Each fault that let wrong kernels pass in public benchmarks is found; sound problems are left alone."""

from __future__ import annotations

import pytest

from kernelwright.problems import resolve
from kernelwright.problems.chains import CHAINS
from kernelwright.problems.lint import lint

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


def test_a_sound_problem_has_no_findings(tmp_path):
    assert findings(tmp_path, "torch.tanh(x) * y") == set()


@pytest.mark.parametrize("name", [c.name for c in CHAINS])
def test_our_chains_are_sound(name):
    assert lint(resolve(f"chain:{name}:16x64")) == []


def test_gemm_is_sound():
    assert lint(resolve("gemm:32x24x40:fp16")) == []


def test_faults(tmp_path):
    assert ("zeros-pass", "y0") in findings(tmp_path, "(x * y).relu() * 0.0")
    assert ("constant-passes", "y0") in findings(tmp_path, "(x * y) * 1e-9 + 5.0")
    assert ("input-ignored", "x1") in findings(tmp_path, "torch.tanh(x) + 0 * y")
    assert ("identity-passes", "y0") in findings(tmp_path, "x.relu() + 0 * y", inputs="torch.rand")
    assert ("non-finite", "y0") in findings(tmp_path, "torch.log(x) * y")
