"""Clocks work on the GPU, a candidate's and a rival's alike.

Device time is the time of a CUDA graph of `launches` executions between two events. Three things make it honest:
- the graph is enqueued while a spin kernel keeps the GPU busy, so no gap of the host falls between the events; whether that worked is asked
  of the start event (it must not have happened yet when all is enqueued), and a sample that fails is repeated with a longer spin;
- before a cold sample the L2 is emptied by reading twice its size, which leaves no dirty lines to be written back inside the window;
- lines that an earlier kernel marked as persisting are released.
"""

from __future__ import annotations

import functools
import math
import random
import resource
import statistics
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernelwright.records import COLD_MODES, Outcome
from kernelwright.targets.driver import call, stream_handle
from kernelwright.targets.launch import fault
from kernelwright.targets.target import CandidateFault, Contender, DeviceLost, Fresh

FIRST_SPIN = 100_000
"""Clock cycles, 50 us on an H200: enqueuing a graph of 20 kernels takes 5 to 20 us there."""
LONGEST_SPIN = 20_000_000
LONGEST_ENQUEUING = 0.02
"""Seconds: no spin is longer, at 1 GHz and more."""
LONG = 0.25
"""Seconds on the host, of one execution behind the first, which may compile."""
ATTEMPTS = 9
"""Each doubles the spin: the last is 256 times the first."""
SERVER_PAUSE = 0.010
"""Mean pause before a call in mode host-server, seconds: 100 queries a second."""


class Clock:
    """One for each opened device. `bindings` is cuda.bindings.driver."""

    def __init__(self, bindings: Any, l2_bytes: int):
        self.bindings = bindings
        self._flush = torch.zeros(max(2 * l2_bytes, 2**24) // 4, dtype=torch.float32, device="cuda")
        self._sink = torch.zeros((), dtype=torch.float32, device="cuda")
        self._side = torch.cuda.Stream()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._spin = FIRST_SPIN

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Turns PyTorch's errors into CandidateFaults: after an asynchronous fault every CUDA call reports it, whoever makes it."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise CandidateFault(Outcome.OUT_OF_MEMORY, f"{doing}: the GPU has not enough free memory") from None
        except RuntimeError as error:
            call(doing, self.bindings.cuCtxSynchronize())  # raises DeviceLost when the context is gone
            text = str(error).strip().splitlines()
            raise fault(f"{doing}: {text[0] if text else type(error).__name__}") from error

    def synchronize(self, doing: str = "the GPU") -> None:
        call(doing, self.bindings.cuCtxSynchronize())

    def prepare(self, mode: str, tensors: Sequence[torch.Tensor]) -> None:
        """For work of another process: the L2 emptied, or filled with these tensors, and the device idle."""
        if mode == "host-server":
            time.sleep(random.expovariate(1 / SERVER_PAUSE))
        self.release_persisting()
        if mode in COLD_MODES:
            torch.sum(self._flush, dim=0, out=self._sink)
        else:
            for tensor in tensors:
                (tensor.view(torch.int8) if tensor.element_size() == 1 else tensor).sum()  # torch adds up no fp8
        self.synchronize()

    def release_persisting(self) -> None:
        status = self.bindings.cuCtxResetPersistingL2Cache()
        if status[0].name != "CUDA_ERROR_NOT_SUPPORTED":
            call("the L2 cache", status)

    def between_events(self, work: Callable[[], object], *, cold: bool, before: Callable[[], object] | None = None) -> tuple[float, bool]:
        """(microseconds, whether the host was ahead all the time). Without `before`, what warms up is the work itself."""
        self.release_persisting()
        if cold:
            torch.sum(self._flush, dim=0, out=self._sink)
        else:
            (before or work)()
        torch.cuda._sleep(self._spin)
        self._start.record()
        work()
        self._end.record()
        ahead = not self._start.query()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3, ahead

    def device_us(
        self,
        work: Callable[[], object],
        *,
        cold: bool,
        gaps: bool,
        before: Callable[[], object] | None = None,
        renew: Callable[[], None] = lambda: None,
    ) -> float:
        """Microseconds of `work`; NaN when the host could not keep ahead. With `gaps`, work that waits for the GPU itself, and so
        can never be enqueued ahead, is clocked all the same. `renew` is called before it is clocked once more."""
        spin, us, enqueuing = self._spin, math.nan, 0.0

        def enqueue() -> None:
            nonlocal enqueuing
            begun = time.perf_counter()
            work()
            enqueuing = time.perf_counter() - begun

        for attempt in range(ATTEMPTS):
            if attempt:
                renew()
            us, ahead = self.between_events(enqueue, cold=cold, before=before)
            if ahead:
                # a hiccup of the host must not make every later sample of this process wait longer
                self._spin = max(FIRST_SPIN, int(0.8 * self._spin))
                return us
            if gaps and enqueuing > LONGEST_ENQUEUING:
                break  # loops that wait for values may take seconds: not nine times for nothing
            self._spin = min(2 * self._spin, LONGEST_SPIN)
        self._spin = spin  # a busy host, or work that synchronizes: a longer spin is no cure for either
        return us if gaps else math.nan

    # ------------------------------------------------------------------------------------------------------- graphs

    def capture(self, enqueue: Callable[[int], object], indices: Sequence[int]) -> Callable[[], None]:
        """A graph of one execution on each of the sets `indices`. Returns its replay; the function holds the graph."""
        # not torch.cuda.graph: it empties the allocator's cache each time, milliseconds that a search of thousands of kernels cannot spare
        graph = torch.cuda.CUDAGraph()
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            try:
                graph.capture_begin(capture_error_mode="thread_local")
                for i in indices:
                    enqueue(i)
                graph.capture_end()
            except (RuntimeError, CandidateFault) as error:
                # PyTorch's allocator and random generator stay in capture mode: this process is of no more use
                raise DeviceLost(Outcome.LAUNCH_ERROR, f"capturing it in a CUDA graph failed: {str(error).strip()[:300]}") from error
        return graph.replay

    def capture_launches(self, enqueue: Callable[[int], object], indices: Sequence[int]) -> Callable[[], None]:
        """The same for work that only launches kernels: the driver's own graph, which needs none of what PyTorch does for its allocator
        (8 ms a graph on an H200's host, a third of the time that a screen of a small kernel takes)."""
        b, side = self.bindings, stream_handle(self.bindings, self._side.cuda_stream)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            call("capture", b.cuStreamBeginCapture(side, b.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
            try:
                for i in indices:
                    enqueue(i)
            finally:
                ended = b.cuStreamEndCapture(side)
        graph = call("capture", ended)
        executable = call("capture", b.cuGraphInstantiate(graph, 0))
        call("capture", b.cuGraphDestroy(graph))

        def replay() -> None:
            current = torch.cuda.current_stream().cuda_stream
            call("graph", b.cuGraphLaunch(executable, stream_handle(b, current)))

        weakref.finalize(replay, b.cuGraphExecDestroy, executable)
        return replay

    def warm_up(self, enqueue: Callable[[int], object], count: int) -> None:
        """Runs each set once on the stream of captures, so that libraries allocate their workspaces for it; but not all of what waits for
        the GPU itself and takes long (a search, seconds): its samples are one launch each."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for i in range(count):
                begun = time.perf_counter()
                enqueue(i)
                if i and time.perf_counter() - begun > LONG:
                    break
        self._side.synchronize()

    def capturable(self, enqueue: Callable[[int], object]) -> bool:
        """Whether `enqueue(0)` can be part of a graph. Asked with a bare capture of the driver: one of PyTorch's that fails would leave its
        allocator and its random generator in capture mode for good."""
        b, stream = self.bindings, stream_handle(self.bindings, self._side.cuda_stream)
        with torch.cuda.stream(self._side):
            call("capture", b.cuStreamBeginCapture(stream, b.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
            able = True
            try:
                enqueue(0)
            except (RuntimeError, CandidateFault):
                able = False
            status, graph = b.cuStreamEndCapture(stream)
        if int(status) != 0:
            return False
        call("capture", b.cuGraphDestroy(graph))
        return able


class CudaContender(Contender):
    """What candidates and rivals share: `count` sets, and clocks over `_enqueue`."""

    label = "the kernel"
    spread = True
    only_launches = False
    """Whether `_enqueue` does nothing but launch kernels: no call into PyTorch, whose allocator has to know of a capture."""
    idle = False
    """Nothing is launched at all: an empty Workload."""

    def __init__(self, clock: Clock, count: int, warm_launches: int = 1):
        self.clock, self.count, self.cold_launches, self.warm_launches = clock, count, count, warm_launches
        self._replays: dict[tuple[int, ...], Callable[[], object]] = {}
        self.captured = not self.idle
        """Device times come from a graph; otherwise from launches one by one, gaps of the host included where it synchronizes."""

    @abstractmethod
    def _enqueue(self, index: int) -> object:
        """Enqueues one execution on set `index` on PyTorch's current stream."""

    def _enqueue_dependent(self, index: int) -> object:
        """The same with programmatic edges, for those whose plan asks for them."""
        return self._enqueue(index)

    def launches_for(self, mode: str, once_us: float) -> int:
        launches = super().launches_for(mode, once_us)
        return min(launches, self.warm_launches) if mode == "device-warm" else launches

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        with self.clock.faults(self.label):
            if mode == "device-chain" and not self.dependent:
                mode = "device-cold"  # the same graph
            if mode in (*COLD_MODES, "device-warm"):
                return self._device(mode, launches, fresh)
            if mode in ("host-offline", "host-server"):
                return self._host(mode == "host-server", launches)
        raise ValueError(f"unknown timing mode {mode!r}")

    def estimate(self, mode: str) -> float:
        """Launched one by one, without the cost of a graph that would be used but once."""
        with self.clock.faults(self.label):
            return self.clock.device_us(lambda: self._enqueue(0), cold=mode in COLD_MODES, gaps=True)

    def _device(self, mode: str, launches: int, fresh: Fresh | None) -> tuple[float, int]:
        cold = mode in COLD_MODES
        indices = tuple(i % self.count if cold or fresh else 0 for i in range(launches))
        key = (mode == "device-chain", *indices)
        work = self._replays.get(key)
        if work is None:
            work = self._replays[key] = self._replayable(mode == "device-chain", indices)
            if fresh is not None:
                fresh.renew()  # making it ran it
        if fresh is None:
            us = self.clock.device_us(work, cold=cold, gaps=not self.captured)
        else:
            # warm: the data lie in the L2 because they were read, not because the kernel has already worked on them
            touch = functools.partial(fresh.touch, launches)
            us = self.clock.device_us(work, cold=cold, gaps=not self.captured, before=touch, renew=fresh.renew)
        return (us, launches) if math.isnan(us) else (us / launches, 0)

    def _replayable(self, dependent: bool, indices: Sequence[int]) -> Callable[[], object]:
        enqueue = self._enqueue_dependent if dependent else self._enqueue
        if self.captured:
            # an eager run first: it loads the kernels, which capture forbids, and shows faults where they can be told
            self._enqueue(0)
            self.clock.synchronize(self.label)
            capture = self.clock.capture_launches if self.only_launches else self.clock.capture
            replay = capture(enqueue, indices)
            replay()  # the first launch of a graph uploads it
            self.clock.synchronize(self.label)
            return replay

        def one_by_one() -> None:
            for i in indices:
                enqueue(i)

        return one_by_one

    def _host(self, server: bool, launches: int) -> tuple[float, int]:
        clean: list[float] = []
        for i in range(launches):
            if server:
                time.sleep(random.expovariate(1 / SERVER_PAUSE))
            torch.cuda.synchronize()
            switched = _switches()
            started = time.perf_counter()
            self._enqueue(i % self.count)
            torch.cuda.synchronize()
            ended = time.perf_counter()
            if _switches() == switched:
                clean.append(ended - started)
        return (statistics.median(clean) * 1e6 if clean else math.nan), launches - len(clean)

    def close(self) -> None:
        self._replays.clear()


def _switches() -> int:
    """Involuntary context switches of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
