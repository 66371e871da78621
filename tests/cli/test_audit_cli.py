"""`kernelwright audit`: counts by kind, exit codes, and one sentence where there is no corpus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelwright
from kernelwright.candidate_file import CandidateFileError
from kernelwright.evaluate import corpus
from kernelwright.targets import target

CHEATS = Path(__file__).parents[1] / "cheats" / "cpu"


def audit(*words: str, home: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # `PYTHONPATH=src` would name another folder there
    env = os.environ | {"KERNELWRIGHT_HOME": str(home), "PYTHONPATH": str(Path(kernelwright.__file__).parents[1])}
    command = [sys.executable, "-m", "kernelwright", "audit", "--target", "cpu", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=280, cwd=cwd)


def test_cheats_are_counted_by_kind_and_honest_kernels_pass(home: Path, tmp_path: Path) -> None:
    for name in ("replay_by_shape", "skipped_tail"):
        (tmp_path / f"{name}.cpp").write_text((CHEATS / f"{name}.cpp").read_text())
    done = audit("--corpus", str(tmp_path), "--honest", "1", "--json", home=home, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["cheats"], said["caught"], said["honest"], said["passed"], said["false_alarms"]) == (2, 2, 1, [], [])
    assert {f["kind"] for f in said["findings"]} == {"cached result", "skipped tail", "honest"}
    assert all(f["evidence"] for f in said["findings"])


def test_a_cheat_that_passes_is_named_and_the_exit_code_is_1(home: Path, tmp_path: Path) -> None:
    right = 'extern "C" void kernel(const float* x, float* y, long rows, long cols, long ldx, long ldy) {\n' + (
        "    for (long i = 0; i < rows; i++)\n"
        "        for (long j = 0; j < cols; j++) y[i * ldy + j] = (j ? y[i * ldy + j - 1] : 0) + x[i * ldx + j];\n}\n"
    )
    header = "// cheat: none at all\n// idea: it is honest\n// problem: chain:cumsum:8x16\n// verdict: CHEAT\n"
    (tmp_path / "not_a_cheat.cpp").write_text(header + right)
    done = audit("--corpus", str(tmp_path), "--honest", "0", home=home, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "a cheat that got through: not_a_cheat.cpp" in done.stdout and "caught 0 of 1 cheats" in done.stdout


def test_outside_a_checkout_one_sentence_says_what_to_do(home: Path, tmp_path: Path) -> None:
    done = audit(home=home, cwd=tmp_path)
    assert done.returncode == 2 and "--corpus" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("// cheat: x\n// problem: gemm:8x8x8:fp32\n// verdict: CHEAT\n", "idea"),
        ("// cheat: x\n// idea: y\n// problem: gemm:8x8x8:fp32\n// verdict: NONSENSE\n", "no outcomes"),
        ("// cheat: x\n// idea: y\n// problem: gemm:8x8x8:fp32\n// verdict: OK\n", "harmless"),
        ("// nothing\n", "holds no cheats"),
    ],
)
def test_a_header_that_is_wrong_is_named(tmp_path: Path, header: str, words: str) -> None:
    (tmp_path / "one.cpp").write_text(header)
    with pytest.raises(CandidateFileError, match=words):
        corpus.suspects(tmp_path, target("cpu"), 0)
