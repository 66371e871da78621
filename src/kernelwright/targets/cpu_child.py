"""The contender's side of the CPU target: loads the code, runs and clocks it when the judge asks."""

from __future__ import annotations

import ctypes
import json
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from kernelwright.plan import evaluate
from kernelwright.records import LaunchPlan, Outcome, ScalarArg, TensorArg, WorkspaceArg
from kernelwright.targets.target import Bound, CandidateFault, Run, alter

_CTYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
_GUARD = 4096
_POISON = 0xFF
_SERVER_PAUSE = 0.010
"""Mean pause before a call in mode host-server: 100 queries a second, CUDA-L2's default."""
_MEMORY_LIMIT = 8 << 30
"""Address space a candidate may add to what the judge had mapped."""


class Program:
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

    def calls(self, library: ctypes.CDLL) -> list[Callable[[], None]]:
        """One closure for each set."""
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
        return [self._call(functions, one) for one in self.sets]

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


def serve(
    pipe: Connection,
    program: Program | None,
    runs: Sequence[Run],
    setup: Callable[[], None] | None,
    flush: Callable[[], None],
    alterable: Sequence[torch.Tensor],
    *,
    limited: bool,
) -> None:
    """Answers the judge's requests until the pipe closes."""
    calls: list[Callable[[], Any]] = []
    stores: list[Callable[[Any], None]] = []
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            if request["do"] == "load":
                if limited:
                    _limit()
                if setup is not None:
                    setup()
                if program is not None:
                    calls = program.calls(_open(program.artifact))
                    stores = [lambda _: None] * len(calls)
                else:
                    calls, stores = [r.call for r in runs], [r.store for r in runs]
                answer: dict[str, Any] = {}
            elif request["do"] == "run":
                stores[request["set"]](calls[request["set"]]())
                answer = {}
            else:
                answer = _sample(request["mode"], request["launches"], calls, flush, alterable, request["seed"])
        except CandidateFault as fault:
            answer = {"fault": fault.outcome, "evidence": fault.evidence}
        except MemoryError:
            answer = {"fault": Outcome.OUT_OF_MEMORY, "evidence": "the process ran out of memory"}
        except Exception as error:  # a Python candidate or rival may raise anything; it is a value for the judge
            answer = {"fault": Outcome.CRASH, "evidence": f"{type(error).__name__}: {error}"[:2000]}
        pipe.send_bytes(json.dumps(answer).encode())


def _open(artifact: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(artifact)
    except OSError as error:
        raise CandidateFault(Outcome.LAUNCH_ERROR, f"the library cannot be loaded: {error}") from None


def _limit() -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _MEMORY_LIMIT, mapped + _MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _sample(
    mode: str,
    launches: int,
    calls: Sequence[Callable[[], Any]],
    flush: Callable[[], None],
    alterable: Sequence[torch.Tensor],
    seed: int | None,
) -> dict[str, Any]:
    """Clocks `launches` calls; a call during which the system took the core away is dropped. With `seed` each call on the same set meets
    other inputs."""
    rng = random.Random(seed)
    clean: list[int] = []
    total = between = 0
    clock, usage, thread = time.perf_counter_ns, resource.getrusage, resource.RUSAGE_THREAD
    begun = clock()
    if mode == "device-cold":
        flush()
    elif seed is None or alterable:
        calls[0]()  # brings code and data back into the caches, and memory into the heap, that the other contenders have used meanwhile
    between += clock() - begun
    for i in range(launches):
        call = calls[i % len(calls)] if mode == "device-cold" else calls[0]
        if seed is not None:
            t = clock()
            alter(alterable, rng)
            between += clock() - t
        if mode == "host-server":
            pause = random.expovariate(1 / _SERVER_PAUSE)
            t = clock()
            time.sleep(pause)
            between += clock() - t
        switches = usage(thread).ru_nivcsw
        t0 = clock()
        call()
        t1 = clock()
        total += t1 - t0
        if usage(thread).ru_nivcsw == switches:
            clean.append(t1 - t0)
    return {
        "median": statistics.median(clean) / 1e3 if clean else None,
        "dropped": launches - len(clean),
        "sum": total / 1e3,
        "between": between / 1e3,
    }
