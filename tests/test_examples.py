"""The examples run as their first lines say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*command: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"KERNELWRIGHT_HOME": str(home)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=280, cwd=home)


def test_a_kernel_of_ones_own_verifies(home):
    words = ("verify", str(EXAMPLES / "matmul.cpp"), "--problem", "gemm:64x64x64:fp32", "--target", "cpu", "--no-time", "--json")
    done = run("-m", "kernelwright", *words, home=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "OK" and {c["rung"] for c in found["checks"]} >= {"exact", "normal", "adversarial", "memory", "shapes"}


def test_a_wrong_kernel_exits_with_1_and_its_verdict(home):
    wrong = home / "wrong.cpp"
    wrong.write_text((EXAMPLES / "matmul.cpp").read_text().replace("+= a", "-= a"))
    done = run(
        "-m", "kernelwright", "verify", str(wrong), "--problem", "gemm:8x8x8:fp32", "--target", "cpu", "--no-time", "--json", home=home
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "WRONG_RESULT"


def test_the_cuda_example_compiles_without_a_gpu():
    from kernelwright.candidate_file import load
    from kernelwright.evaluate.build import build
    from kernelwright.problems import resolve
    from kernelwright.targets import target

    cuda = target("cuda:sm_90")
    candidate = load(EXAMPLES / "matmul.cu", resolve("gemm:64x64x64:fp32"), cuda.name)
    made = build(cuda, candidate)
    assert made.resources["matmul"].registers > 0 and made.resources["matmul"].spill_stores == 0


@pytest.mark.gpu
def test_the_cuda_example_verifies(home):
    words = ("verify", str(EXAMPLES / "matmul.cu"), "--problem", "gemm:200x136x72:fp32", "--target", "cuda", "--json")
    done = run("-m", "kernelwright", *words, home=home)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_kernelbench_file_gets_a_kernel(home):
    words = ("optimize", str(EXAMPLES / "gated_unit.py"), "--target", "cpu", "--trials", "4", "--rival", "eager")
    words += ("--confirm-seconds", "0.5", "--json")
    done = run("-m", "kernelwright", *words, home=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["origin"] == "chain_cpu"
