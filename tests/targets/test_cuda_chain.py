"""The kernel behind which a dependent launch shows whether it waits: what reaches the driver, without a GPU."""

from __future__ import annotations

import ctypes
import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_cuda_clock import StubClock
from test_cuda_driver import PROGRAMMATIC_SERIALIZATION, SUCCESS, FakeDriver, real

from kernelwright.records import Launch, LaunchPlan, Outcome, TensorArg
from kernelwright.targets import cuda_chain, nvrtc
from kernelwright.targets.cuda_chain import PATIENCE, PAUSE, Predecessor
from kernelwright.targets.cuda_contender import Program
from kernelwright.targets.driver import Module
from kernelwright.targets.target import Bound, CandidateFault


class TwoKernels(FakeDriver):
    """`k` takes two pointers, `overwrite` what cuda_chain passes."""

    PARAMS = {2: (8, 8), 3: (8, 4, 8, 8, 8)}

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple:
        return SUCCESS, real.CUfunction({b"k": 2, b"overwrite": 3}[name])

    def cuFuncGetParamInfo(self, function: Any, index: int) -> tuple:
        self.params = self.PARAMS[int(function)]
        return super().cuFuncGetParamInfo(function, index)

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple:
        self.params = self.PARAMS[int(function)]
        return super().cuLaunchKernelEx(config, function, params, extra)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> TwoKernels:
    monkeypatch.setattr(cuda_chain.nvrtc, "compile_cubin", lambda source, arch: (b"\x7fELF and so on", ""))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=64))
    return TwoKernels()


def program(fake: FakeDriver, *, pdl: bool, able: bool = True, launches: int = 1) -> tuple[Program, Bound]:
    one = Bound(tensors={"x": torch.zeros(5), "y": torch.ones(3)}, names={"n": 5})
    launch = Launch(kernel="k", args=(TensorArg(name="x"), TensorArg(name="y")), block=(32, 1, 1), pdl=pdl)
    plan = LaunchPlan(launches=(launch,) * launches)
    contender = Program(
        StubClock(),  # pyright: ignore[reportArgumentType]
        plan,
        Module(fake, b"\x7fELF", sm=90, smem=232448),
        [one],
        allocate=lambda size: torch.empty(size, dtype=torch.uint8),
        release=lambda: None,
        predecessor=Predecessor(fake, 90, 232448) if able else None,
    )
    return contender, one


def copies(launch: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    """(destination, bytes, what is written there), read where the kernel would."""
    (table,) = struct.unpack("<Q", launch["args"][0])
    (count,) = struct.unpack("<i", launch["args"][1])
    rows = struct.iter_unpack("<3q", ctypes.string_at(table, 24 * count))
    return [(to, size, ctypes.string_at(source, size)) for to, source, size in rows]


def enqueued(launch: dict[str, Any]) -> int:
    """What the writer would see of the host."""
    return ctypes.c_int.from_address(struct.unpack("<Q", launch["args"][2])[0]).value


def test_the_candidate_runs_twice_with_an_edge_behind_a_writer_without_one(fake, monkeypatch):
    contender, one = program(fake, pdl=True)
    assert contender.dependent
    written: list[list[tuple[int, int, bytes]]] = []
    ready: list[int] = []
    monkeypatch.setattr(contender.clock, "synchronize", lambda label: ready.append(enqueued(fake.launched[0])))
    launch_kernel = type(fake).cuLaunchKernelEx

    def launching(self, config, function, params, extra):  # the table and the sources live no longer than the run
        done = launch_kernel(self, config, function, params, extra)
        if int(function) == 3:
            written.append(copies(self.launched[-1]))
        ready.append(enqueued(self.launched[0]))
        return done

    monkeypatch.setattr(type(fake), "cuLaunchKernelEx", launching)
    fresh = torch.arange(5, dtype=torch.float64)
    contender.run_dependent({"x": fresh})
    writer, first, second = fake.launched
    assert writer["attributes"] == {} and [struct.unpack("<q", a) for a in writer["args"][3:]] == [(PATIENCE,), (PAUSE,)]
    assert ready == [0, 0, 0, 1], "it waits until all are enqueued, however slow the host"
    assert first["attributes"] == second["attributes"] == {PROGRAMMATIC_SERIALIZATION: (1, 0, 0)}
    assert writer["stream"] == first["stream"] == 64 and first["args"] == second["args"]
    x, y = one.tensors["x"], one.tensors["y"]
    assert written == [[(x.data_ptr(), 20, fresh.float().numpy().tobytes()), (y.data_ptr(), 12, b"\xff" * 12)]]


def test_the_writer_is_told_although_what_follows_cannot_be_launched(fake, monkeypatch):
    contender, _ = program(fake, pdl=True)
    told: list[torch.Tensor] = []
    prepare = Predecessor.prepare

    def preparing(self, copies):
        made = prepare(self, copies)
        told.append(made[1])
        return made

    def failing(index):
        raise CandidateFault(Outcome.LAUNCH_ERROR, "no")

    monkeypatch.setattr(Predecessor, "prepare", preparing)
    monkeypatch.setattr(contender, "_enqueue_dependent", failing)
    with pytest.raises(CandidateFault, match="no"):
        contender.run_dependent({})
    assert told[0].item() == 1


def test_plain_runs_have_no_edge_and_a_chain_has_one(fake):
    contender, _ = program(fake, pdl=True)
    contender.run()
    contender._enqueue_dependent(0)
    assert [launch["attributes"] for launch in fake.launched] == [{}, {PROGRAMMATIC_SERIALIZATION: (1, 0, 0)}]


def test_the_edges_inside_a_plan_are_always_there(fake):
    contender, _ = program(fake, pdl=True, launches=3)
    contender.run()
    edge = {PROGRAMMATIC_SERIALIZATION: (1, 0, 0)}
    assert [launch["attributes"] for launch in fake.launched] == [{}, edge, edge]
    fake.launched.clear()
    program(fake, pdl=True, able=False, launches=2)[0].run()
    program(fake, pdl=False, launches=2)[0].run()
    assert all(launch["attributes"] == {} for launch in fake.launched)


def test_the_launches_of_a_sample_are_found_out_once(fake, monkeypatch):
    contender, _ = program(fake, pdl=False)
    contender.cold_launches = contender.warm_launches = 20
    estimates = iter((math.nan, 250.0))
    monkeypatch.setattr(contender, "estimate", lambda mode: next(estimates))
    assert contender.launches_of("device-warm") == contender.launches_of("device-warm") == 2000 // 250
    contender.run()
    assert len(fake.launched) == 1, "which are not those that a run enqueues"


def test_a_plan_without_pdl_or_a_device_without_it_is_not_dependent(fake):
    assert not program(fake, pdl=False)[0].dependent
    assert not program(fake, pdl=True, able=False)[0].dependent


def test_the_writer_lets_its_dependents_start_at_once():
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin, log = nvrtc.compile_cubin(cuda_chain.SOURCE, "sm_90a")
    resources, rest = nvrtc.parse_resources(log)
    assert rest == "" and resources["overwrite"].registers * cuda_chain.THREADS < 65536 and b"overwrite" in cubin
