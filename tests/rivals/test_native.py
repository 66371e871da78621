"""Our own C++ rivals give right answers, by the check of each problem."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelwright.problems import problem_of, resolve
from kernelwright.problems.applications import APPLICATIONS, Application
from kernelwright.problems.problem import TORCH_DTYPES, Tensors
from kernelwright.records import Workload
from kernelwright.rivals import experts_for, native
from kernelwright.targets.target import Bound

LARGER = {
    "lennard-jones": "4x11x2",
    "sat": "4x40x171x16384",
    "bfs": "500x3000",
    "sssp": "500x3000",
    "pagerank": "500x3000",
    "compression": "40x500",
    "ntt": "2x2048",
    "msm": "70x1",
}
SERVED = [p for p in APPLICATIONS if native.source_of(p.workload(p.tiny[0]))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine a second thread is waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(w: Workload, inputs: Tensors) -> Tensors:
    """On outputs full of poison."""
    specs = problem_of(w).tensors(w)
    outputs = {s.name: torch.full(s.shape, -1, dtype=TORCH_DTYPES[s.dtype]) for s in specs if s.role == "out"}
    runs, setup = native.load(w, [Bound(tensors=inputs | outputs, names=problem_of(w).names(w, 1))])
    assert setup is not None
    setup()
    runs[0].store(runs[0].call())
    return outputs


@pytest.mark.parametrize("problem", SERVED, ids=lambda p: p.title)
def test_it_is_right_on_every_case(problem: Application) -> None:
    for w in (*map(problem.workload, problem.tiny), resolve(f"{problem.name}:{LARGER[problem.title]}")):
        assert experts_for(w, "cpu") == ("native",)
        for case in problem.cases(w):
            inputs = problem.generate(w, case, torch.Generator().manual_seed(2), "cpu")
            found = problem.validate(w, inputs, run(w, inputs))
            assert found.passed, (w.name, case.name, found)


def test_where_there_is_none() -> None:
    assert {p.title for p in SERVED} == LARGER.keys()
    w = resolve("expert:gpt-training:1x32x11x8x2x2")
    assert experts_for(w, "cpu") == ()
    with pytest.raises(ValueError, match="no native rival for expert:gpt-training"):
        native.load(w, [])
