"""The CUDA answers to applications: run by the host emulator, judged by the problem's own check, compiled for Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda_emulator import Emulated

from kernelwright.candidate_file import load
from kernelwright.problems import problem_of, resolve
from kernelwright.targets import target

EXAMPLES = Path(__file__).parents[2] / "examples" / "applications"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine a second thread is waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "problem"), [("ntt.cu", "expert:ntt:2x64"), ("lennard_jones.cu", "expert:lennard-jones:3x2x2")])
def test_a_cuda_answer_is_right(name: str, problem: str, tmp_path: Path) -> None:
    w = resolve(problem)
    candidate, of_w = load(EXAMPLES / name, w, "cuda:sm_90a"), problem_of(w)
    emulated, specs = Emulated(candidate, {}, tmp_path), of_w.tensors(w)
    for case in of_w.cases(w):
        inputs = of_w.generate(w, case, torch.Generator().manual_seed(3), "cpu")
        outputs = emulated.run(specs, inputs, w.axes, pad={s.name: 3 for s in specs if len(s.shape) > 1})
        assert not isinstance(outputs, str), outputs
        found = of_w.validate(w, inputs, outputs)
        assert found.passed, (case, found)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.cu")), ids=lambda f: f.name)
def test_it_compiles_for_hopper_without_spills(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    w = resolve("expert:ntt:2x64" if file.stem == "ntt" else "expert:lennard-jones:3x2x2")
    build = target("cuda:sm_90a").compile(load(file, w, "cuda:sm_90a"), tmp_path)
    assert build.resources and not any(r.spill_stores or r.spill_loads for r in build.resources.values())
