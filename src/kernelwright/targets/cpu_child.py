"""The contender's side of the CPU target: loads the code, runs and clocks it when the judge asks.

Nothing here protects anything: this side runs in the candidate's process. What it says is held against the judge's own clocks.
"""

from __future__ import annotations

import ctypes
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from kernelwright.plan import evaluate
from kernelwright.records import LaunchPlan, Outcome, ScalarArg, TensorArg, WorkspaceArg
from kernelwright.targets.target import Bound, CandidateFault, Run

_CTYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
_libc = ctypes.CDLL(None)
_GUARD = 4096
_POISON = 0xFF
JUDGE_SECONDS = 200e-6
"""Enough for the judge to begin to wait."""


_WATCHED = {
    time: ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time", "clock_gettime"),
    statistics: ("median", "mean", "fmean"),
    json: ("dumps", "loads"),
    resource: ("getrusage",),
    torch.Tensor: ("copy_", "clone", "contiguous"),
}
"""What no honest code replaces. A candidate that knows of this can undo it in time; it is told by its clocks then."""


class Work:
    """What a child does when it is asked; this one does nothing, and shows what asking costs."""

    def load(self) -> None:
        """Loads the contender's code. Raises CandidateFault."""

    def seal(self) -> Sequence[str]:
        """Confines the process further, once it is set up: layers reached."""
        return ()

    def state(self, index: int) -> None:
        """Makes ready for set `index`, outside the clock, before the set's inputs are there."""

    def prepare(self, index: int) -> None:
        """What a rival does with set `index` before its clock starts."""

    def launch(self, index: int) -> Any:
        """Runs once on set `index`: this is what is clocked."""

    def store(self, index: int, result: Any) -> None:
        """Copies what a trusted `launch` returned into the set's outputs."""

    def collect(self, indices: Sequence[int]) -> bool:
        """Copies what launches on these sets returned to where the judge reads it; whether two of the results share memory."""
        return False

    def describe(self, result: Any) -> list[dict[str, Any]] | None:
        """Where in this process the outputs lie, if a launch returns them instead of writing them into the set."""
        return None


class Trusted(Work):
    """A rival."""

    def __init__(self, runs: Sequence[Run], setup: Callable[[], None] | None, sets: Sequence[Bound]):
        self._runs, self._setup, self._sets = runs, setup, sets

    def load(self) -> None:
        if self._setup is not None:
            self._setup()

    def prepare(self, index: int) -> None:
        if prepare := self._runs[index].prepare:
            prepare()
        # the objects of a tensor lie in a dozen cache lines: cold, they were 2 of eager's 5 us for a product of 16x16x16; a program has
        # them at hand, and takes 2
        for tensor in self._sets[index].tensors.values() if self._sets else ():
            tensor.stride()
            tensor.data_ptr()

    def launch(self, index: int) -> Any:
        return self._runs[index].call()

    def store(self, index: int, result: Any) -> None:
        self._runs[index].store(result)


class Program(Work):
    """A C++ candidate's functions with their arguments for each set of buffers. Made in the judge, before the fork."""

    def __init__(
        self,
        plan: LaunchPlan,
        artifact: str,
        sets: Sequence[Bound],
        allocate: Callable[[int], torch.Tensor],
        charged: tuple[tuple[int, ...], ...],
    ):
        self.plan, self.artifact, self.sets, self.charged = plan, artifact, sets, charged
        size = evaluate(plan.workspace, sets[0].names)
        if size > 4 << 30:
            raise CandidateFault(Outcome.LAUNCH_ERROR, f"the plan asks for {size} bytes of workspace; at most 4 GiB are given")
        self._size = max(size, 0)
        self._calls: list[Callable[[], None]] = []
        self._workspace = allocate(self._size + 2 * _GUARD)
        self._workspace.fill_(_POISON)
        if plan.workspace_zeroed:
            self._workspace[_GUARD : _GUARD + self._size].zero_()

    def disturbed(self) -> str | None:
        """The workspace's guards: whether anything outside it was written."""
        before, after = self._workspace[:_GUARD], self._workspace[_GUARD + self._size :]
        if bool((before == _POISON).all()) and bool((after == _POISON).all()):
            return None
        return "memory outside the workspace was written"

    def load(self) -> None:
        for one in self.sets:
            for address in one.fences:
                _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_GUARD), 0)  # for this process alone
        library = _open(self.artifact)
        functions = []
        for launch in self.plan.launches:
            try:
                function = getattr(library, launch.kernel)
            except AttributeError:
                raise CandidateFault(
                    Outcome.LAUNCH_ERROR, f'the library has no function {launch.kernel!r}; declare it extern "C"'
                ) from None
            function.restype = None
            functions.append(function)
        self._calls = [self._call(functions, one) for one in self.sets]

    def launch(self, index: int) -> None:
        self._calls[index]()

    def _call(self, functions: list[Any], one: Bound) -> Callable[[], None]:
        prepared = []
        for launch, function in zip(self.plan.launches, functions, strict=True):
            arguments: list[Any] = []
            for arg in launch.args:
                match arg:
                    case TensorArg(name=name):
                        if name not in one.tensors:
                            known = ", ".join(one.tensors)
                            raise CandidateFault(Outcome.LAUNCH_ERROR, f"the plan names tensor {name!r}; the problem has {known}")
                        arguments.append(ctypes.c_void_p(one.tensors[name].data_ptr()))
                    case WorkspaceArg(offset=offset):
                        arguments.append(ctypes.c_void_p(self._workspace.data_ptr() + _GUARD + evaluate(offset, one.names)))
                    case ScalarArg(ctype="f32", value=value) if not isinstance(value, str):
                        arguments.append(ctypes.c_float(value))
                    case ScalarArg(ctype=ctype, value=value) if not isinstance(value, float):
                        arguments.append(_CTYPES[ctype](evaluate(value, one.names)))
                    case _:
                        raise CandidateFault(Outcome.LAUNCH_ERROR, f"the cpu target takes no {type(arg).__name__} {arg}")
            prepared.append((function, arguments))
        charged = self.charged
        if len(prepared) == 1 and not charged:
            function, arguments = prepared[0]
            return lambda: function(*arguments)

        def call() -> None:
            for shape in charged:
                torch.empty(shape)
            for function, arguments in prepared:
                function(*arguments)

        return call


def serve(pipe: Connection, work: Work, enter: Callable[[], Sequence[str]], *, wait: float = JUDGE_SECONDS) -> None:
    """Answers the judge's requests until the pipe closes. `enter` confines the process; it is called before the candidate's code is loaded.
    `wait`: seconds before a launch. Where the judge's clock runs meanwhile there must be none: a candidate could leave it out.

    What is used here is bound before that code runs: a Python candidate that patches `time` or `json` patches its own copies. It can still
    reach these frames; `cpu_device` trusts nothing of what is answered but what its own clocks bear out.
    """
    receive, send, decode, encode = pipe.recv_bytes, pipe.send_bytes, json.loads, json.dumps
    clock, pause, usage, thread = time.perf_counter_ns, time.sleep, resource.getrusage, resource.RUSAGE_THREAD
    prepare, launch, describe, store, collect = work.prepare, work.launch, work.describe, work.store, work.collect
    handles = [(module, name, getattr(module, name)) for module, names in _WATCHED.items() for name in names]
    while True:
        try:
            request = decode(receive())
        except EOFError:
            return
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            match request["do"]:
                case "launch":
                    claims, switched, result = [], [], None
                    # waking took the core from the judge, who is on its way to wait for the answer: it would take the core back after the
                    # scheduler's 3 ms (without this pause, four of five launches of 6 ms were cut in two)
                    if wait:
                        pause(wait)
                    for index in request["sets"]:
                        prepare(index)
                        before = usage(thread).ru_nivcsw
                        t0 = clock()
                        result = launch(index)
                        t1 = clock()
                        claims.append(t1 - t0)
                        switched.append(usage(thread).ru_nivcsw != before)
                    for module, name, handle in handles:
                        if getattr(module, name) is not handle:
                            raise CandidateFault(Outcome.CHEAT, f"it replaced {module.__name__}.{name}")
                    answer |= {"ns": claims, "switched": switched, "results": describe(result)}
                case "collect":
                    answer["shared"] = collect(request["sets"])
                case "seal":
                    answer["layers"] = list(work.seal())
                case "state":
                    work.state(request["set"])
                case "store":
                    prepare(request["set"])
                    store(request["set"], launch(request["set"]))
                case "load":
                    answer["layers"] = list(enter())
                    work.load()
        except CandidateFault as fault:
            answer = {"id": request["id"], "fault": fault.outcome, "evidence": fault.evidence}
        except MemoryError:
            answer = {"id": request["id"], "fault": Outcome.OUT_OF_MEMORY, "evidence": "the process ran out of memory"}
        except Exception as error:  # a Python candidate or rival may raise anything; it is a value for the judge
            answer = {"id": request["id"], "fault": Outcome.CRASH, "evidence": f"{type(error).__name__}: {error}"[:2000]}
        send(encode(answer).encode())


def _open(artifact: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(artifact)
    except OSError as error:
        raise CandidateFault(Outcome.LAUNCH_ERROR, f"the library cannot be loaded: {error}") from None
