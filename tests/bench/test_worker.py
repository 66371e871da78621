"""The worker's decisions that need no judge: what fits, which rivals and modes, what a problem's faults mean."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.bench import operators
from kernelwright.bench.messages import Doing, Order
from kernelwright.bench.results import Answer, Facts, Result
from kernelwright.bench.tasks import kernelbench, only
from kernelwright.bench.worker import Worker, mode_of, modes_for, rivals_for
from kernelwright.problems import resolve
from kernelwright.records import Environment
from kernelwright.targets import target

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


class Alone(Worker):
    """Without a device: it says what it would do."""

    def __init__(self, memory: float):
        self.said, self.target, self.environment = [], target("cpu"), Environment(target="cpu", device="x")
        self.send, self._bytes = self.said.append, memory

    def _memory(self) -> float:
        return self._bytes

    def _answer(self, order, w, problem, answer):
        return self._result(order, answer, status="correct")


def said(memory: float, order: Order) -> list:
    one = Alone(memory)
    one.run(order)
    return [s for s in one.said if not isinstance(s, Doing)]


def test_what_does_not_fit_is_linted_and_skipped_with_its_size(level):
    (task,) = only(kernelbench("1", level, "fp32"), ["6"])
    order = Order(task=task, answers=(Answer(entrant="e", task=task.key, text="x"),))
    facts, result = said(1000.0, order)
    assert isinstance(facts, Facts) and facts.task.skipped == "memory" and "GiB" in facts.task.why and facts.degenerate
    assert isinstance(result, Result) and (result.status, result.skipped) == ("skipped", "memory")
    here, judged = said(1e12, order.replace(facts=facts))
    assert here.task.skipped == "" and here.faults == facts.faults and judged.status == "correct", "on a larger device it runs"


def test_rivals_and_modes():
    w = kernelbench("1", Path(__file__).parents[2] / "examples" / "kernelbench", "fp32")[0].workload
    assert rivals_for(w, "cpu")[0] == "eager" and {"compile-reduce", "graph", "channels-last"} <= set(rivals_for(w, "cuda:sm_90"))
    assert "cublaslt-all" not in rivals_for(resolve("gemm:64x64x64"), "cuda:sm_90"), "not by itself: it takes 20 s a Workload"
    assert modes_for("cpu") == ("device-warm",) and modes_for("cuda:sm_90") == ("device-cold", "host-offline")
    assert mode_of("python", "cuda:sm_90", modes_for("cuda:sm_90")) == "host-offline", "there its rivals pay for the host as well"
    assert mode_of("cuda", "cuda:sm_90", modes_for("cuda:sm_90")) == "device-cold"
    assert (
        mode_of("python", "cuda:sm_90", ("device-warm",)) == "device-warm" and mode_of("python", "cpu", ("device-warm",)) == "device-warm"
    )


SEEN = operators.Seen(reference=("mm", "relu"), answer=("mm", "relu"))


@pytest.mark.parametrize(
    ("changes", "work", "says"),
    [
        ({}, "flags only", "same 2 operators"),
        ({"flags": ("torch.jit.script",)}, "flags only", "it changes torch.jit.script"),
        ({"kernels": ("load_inline",)}, "wraps the library", "beside kernels from load_inline"),
        ({"kernels": ("triton",), "answer": ("mm",)}, "own kernels", "1 of the reference's 2"),
        ({"answer": ("addmm",)}, "library operators", "1 operators of PyTorch where the reference has 2"),
        ({"error": "it died"}, "unknown", "it died"),
    ],
)
def test_labels(changes, work, says):
    found = operators.Seen(**{"reference": SEEN.reference, "answer": SEEN.answer} | changes).work()
    assert found[0] == work and says in found[1]


def test_the_script_draws_a_sample_that_grows(level):
    import kernelbench as script

    def numbers(count):
        options = SimpleNamespace(path=level, dtype="fp32", answers=[], sample=count)
        return script.sample("1", options)

    assert numbers(9) == [2, 6] and set(numbers(1)) < {2, 6}
    board = {"error": "the verb exited with 2"}
    assert script.figures(board) == board
