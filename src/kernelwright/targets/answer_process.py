"""The judge's side of a Python candidate in a fresh process: `python_process` says how it works and what it does not protect against."""

from __future__ import annotations

import math
import mmap
import os
import pickle
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch

from kernelwright.problems import problem_of
from kernelwright.records import COLD_MODES, Outcome, Workload
from kernelwright.settings import answer_environment
from kernelwright.targets.contender_process import ContenderProcess, reap
from kernelwright.targets.python_process import Setup, area_bytes, bind
from kernelwright.targets.target import Bound, CandidateFault, Contender, Fresh

SETUP_SECONDS = 280.0
"""Of each of two: a process starts, imports PyTorch, opens the device; the candidate's compilers run. Both together end before the
evaluator loses patience with the judge (`RIVAL_SECONDS`): only the judge ends the compilers that a candidate has started as well."""
RUN_SECONDS = 10.0
POISON = 0xFF
LEFT_BYTES = 2**31
"""Of the GPU's memory, which a candidate must leave to the judge: nothing else limits what its process takes."""
COLLECTIONS = 7
"""The longest of so many collections of results, while the process is ours, is what later ones may take before they count as work."""


class AnswerProcess(Contender):
    """`prepare(mode, tensors)` makes caches cold, or warm with these tensors, and returns when the device is idle."""

    spread = True

    def __init__(
        self,
        source: str,
        w: Workload,
        sets: Sequence[Bound],
        *,
        device: str,
        prepare: Callable[[str, Sequence[torch.Tensor]], None],
        threads: int = 1,
    ):
        self.cold_launches, self._sets, self._prepare = len(sets), sets, prepare
        specs = problem_of(w).tensors(w)
        state = set(problem_of(w).state_names)
        self._outputs = [s.name for s in specs if s.role == "out"]
        self._state = [s.name for s in specs if s.role == "in" and s.name in state]
        self._inputs = [s.name for s in specs if s.role == "in" and s.name not in state]
        self._private = tempfile.TemporaryDirectory(prefix="kernelwright-", ignore_cleanup_errors=True)
        size = area_bytes(w, len(sets))
        self._area, flat = _cuda_area(size) if device == "cuda" else _cpu_area(size)
        self._exchange = bind(flat, w, len(sets))
        self._process = self._start(source, w, device, size, threads)
        try:
            # what an empty request takes, while the process is still ours alone
            self._empty = statistics.median([self._nothing() for _ in range(9)][2:])
            self._collecting = {(cold, n): self._longest(cold, n) for cold in (True, False) for n in {1, len(sets)}}
            self._alone = False  # one launch a request, since launches overwrite each other's results
            self.layers = list(self._process.ask({"do": "load"}, SETUP_SECONDS)[0].get("layers", ()))
            self._first_run(w, device)
            self._process.kill_others()
            self.layers += self._process.ask({"do": "seal"}, RUN_SECONDS)[0].get("layers", ())
            self._watch()
        except CandidateFault:
            self.close()
            raise

    def _start(self, source: str, w: Workload, device: str, size: int, threads: int) -> ContenderProcess:
        reap()
        ours, theirs = socket.socketpair()
        stderr = os.memfd_create("stderr")
        passed = 3
        area = passed + 1 if isinstance(self._area, int) else self._area.handle
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            # by way of high numbers: a source may be a target of another
            *((os.POSIX_SPAWN_DUP2, fd, 100 + i) for i, fd in enumerate(self._given(theirs.fileno(), stderr))),
            *((os.POSIX_SPAWN_DUP2, 100 + i, to) for i, to in enumerate((2, passed, passed + 1)[: 2 + isinstance(self._area, int)])),
            *((os.POSIX_SPAWN_CLOSE, 100 + i) for i in range(2 + isinstance(self._area, int))),
        ]
        command = [sys.executable, "-m", "kernelwright.targets.python_process", str(passed)]
        environment = answer_environment(self._private.name)
        pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True)
        theirs.close()
        pipe = Connection(ours.detach())
        setup = Setup(source, w.to_json(), device, len(self._sets), self._private.name, area, size, threads)
        pipe.send_bytes(pickle.dumps(setup))
        return ContenderProcess(pid, pipe, stderr, stops=True, threads=threads, starts=True)

    def _given(self, pipe: int, stderr: int) -> list[int]:
        return [stderr, pipe, *([self._area] if isinstance(self._area, int) else [])]

    def _first_run(self, w: Workload, device: str) -> None:
        """Compilers that start with the first call run now; the inputs are drawn for this alone."""
        problem = problem_of(w)
        rng = torch.Generator(device=device)
        rng.manual_seed(int.from_bytes(os.urandom(7), "big"))
        normal = next(c for c in problem.cases(w) if c.rung == "normal")
        inputs = problem.generate(w, normal, rng, device)
        until = time.monotonic() + SETUP_SECONDS
        for index, one in enumerate(self._exchange):
            for name in self._state:
                one.tensors[name].copy_(inputs[name])
            self._settle()
            if self._state:
                self._process.ask({"do": "state", "set": index}, until - time.monotonic())
            for name in self._inputs:
                one.tensors[name].copy_(inputs[name])
        self._settle()
        # all of them: each has a model of its own, which may compile something of its own
        every = list(range(len(self._sets)))
        self._wall(every, until - time.monotonic())
        self._gather(every, RUN_SECONDS)

    # ------------------------------------------------------------------------------------------------------------ running

    def run(self, index: int = 0) -> None:
        self._deliver([index])
        self._wall([index], RUN_SECONDS)
        self._gather([index], RUN_SECONDS)
        self._watch()
        # what was changed of the inputs is found where the judge looks for it
        self._collect([index], [*self._outputs, *self._inputs, *self._state])

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        # the host's modes wait for each call, as they do with rivals
        apart = self._alone or mode.startswith("host")
        groups = [[i] for i in range(launches)] if apart else [list(range(launches))]
        clean: list[float] = []
        for group in groups:
            if mode != "host-server":
                self._wall(group[:1], RUN_SECONDS)  # on what an earlier launch left: code and tables come back to the caches
                self._gather(group[:1], RUN_SECONDS)
            self._deliver(group)
            self._prepare(mode, [t for i in group for t in self._exchange[i].tensors.values()])
            before = _switches()
            us = self._wall(group, RUN_SECONDS * len(group)) - self._empty
            clear = _switches() == before
            us += max(0.0, self._gather(group, RUN_SECONDS * len(group)) - self._allowed(mode, len(group)))
            if self._alone and len(group) > 1:
                if fresh is not None:
                    fresh.renew()
                return self.sample(mode, launches, fresh)
            if clear and us > 0:  # else an empty request took as long: nothing can be told, and nobody is to be accused of being too fast
                clean.append(us / len(group))
            self._collect(group, self._outputs)
        self._watch()
        return (statistics.median(clean), 0) if clean else (math.nan, launches)

    def _deliver(self, group: Sequence[int]) -> None:
        """State first, and the process makes itself ready with it; the inputs when it is stopped again."""
        for index in group if self._state else ():
            self._copy(self._sets[index], self._exchange[index], self._state)
            self._settle()
            self._process.ask({"do": "state", "set": index}, RUN_SECONDS)
        for index in group:
            self._copy(self._sets[index], self._exchange[index], self._inputs)
            for name in self._outputs:
                self._exchange[index].tensors[name].view(torch.uint8).fill_(POISON)
        self._settle()

    def _collect(self, group: Sequence[int], names: Sequence[str]) -> None:
        for index in group:
            self._copy(self._exchange[index], self._sets[index], names)
        self._settle()

    def _copy(self, source: Bound, to: Bound, names: Sequence[str]) -> None:
        for name in names:
            to.tensors[name].copy_(source.tensors[name])

    def _settle(self) -> None:
        if not isinstance(self._area, int):
            torch.cuda.synchronize()

    def _watch(self) -> None:
        """While it is stopped: that it is alone, and leaves memory to others. It is asked to seal itself when its code is already loaded,
        and may only say that it did."""
        if others := self._process.others():
            self._process.kill_others()
            raise CandidateFault(Outcome.CHEAT, f"{len(others)} processes that it had started worked beside it, on nobody's clock")
        if not isinstance(self._area, int) and (left := torch.cuda.mem_get_info()[0]) < LEFT_BYTES:
            what = f"its process left {left / 1e9:.1f} GB of the GPU's memory; at least {LEFT_BYTES / 1e9:.1f} must stay free"
            raise CandidateFault(Outcome.OUT_OF_MEMORY, what)

    def _wall(self, sets: list[int], seconds: float) -> float:
        """Microseconds of one request by the judge's clock."""
        self._process.ask({"do": "launch", "sets": sets}, seconds)
        return self._process.wall

    def _nothing(self) -> float:
        """Microseconds of an empty request behind the work that the judge does before each: asked one after the other, they take less than
        the same part of a request that launches, and the difference would be the candidate's."""
        self._prepare("device-warm", list(self._exchange[0].tensors.values()))
        return self._wall([], SETUP_SECONDS)

    def _longest(self, cold: bool, launches: int) -> float:
        """Microseconds of a collection after so many launches, before any of the candidate's code is there."""
        group, taken = list(range(launches)), []
        for _ in range(COLLECTIONS):
            self._prepare("device-cold" if cold else "device-warm", [t for i in group for t in self._exchange[i].tensors.values()])
            taken.append(self._gather(group, SETUP_SECONDS))
        return max(taken)

    def _allowed(self, mode: str, launches: int) -> float:
        one, all_sets = (self._collecting[mode in COLD_MODES, n] for n in (1, len(self._sets)))
        return one + (all_sets - one) * (launches - 1) / max(1, len(self._sets) - 1)

    def _gather(self, sets: list[int], seconds: float) -> float:
        """Has the results of these launches copied into the area; microseconds beyond an empty request."""
        answer, _ = self._process.ask({"do": "collect", "sets": sets}, seconds)
        if answer.get("shared") is True:
            self._alone = True
        return max(0.0, self._process.wall - self._empty)

    def close(self) -> None:
        self._process.close()
        self._private.cleanup()
        self._exchange = []
        if isinstance(self._area, int):
            if self._area >= 0:
                os.close(self._area)
                self._area = -1
        else:
            self._area.free()
            self._area = -1


def _cpu_area(size: int) -> tuple[int, torch.Tensor]:
    fd = os.memfd_create("exchange")
    os.ftruncate(fd, size)
    return fd, torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def _cuda_area(size: int):
    from kernelwright.targets.cuda_ipc import Allocation

    torch.cuda.empty_cache()  # what references took and gave back: the area is no memory of PyTorch's, nor is what the candidate takes
    try:
        area = Allocation(size)
    except RuntimeError as error:
        raise CandidateFault(Outcome.OUT_OF_MEMORY, f"the exchange area of {size} bytes: {error}") from None
    return area, area.tensor


def _switches() -> int:
    """Involuntary context switches of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
