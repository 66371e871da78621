"""The opened CPU: buffers in shared memory, each contender in a forked process of its own.

The judge process forks a child for each contender before it draws any input, so the child never holds a reference result; inputs and
outputs lie in memory that both share. A candidate's process is confined (`sandbox`), and stopped (SIGSTOP) except while the judge waits for
its answer: it does nothing while inputs are drawn, while caches are made cold or warm, while a rival computes the same results, and while
its outputs are read. Each launch of a sample has a set of buffers of its own, with inputs that the process has never run on. So every
microsecond of processor time that it uses, by any of its threads, belongs to launches that it claims, and the judge holds its claims
against that. Calls during which the system took the core away are dropped, long ones (`LONG_US`) only if it took more than a little.

What this does NOT protect against: claims below the truth by less than the factor `HELD` and by less than `SLACK_US` divided among a
sample's launches and `SLACK_LAUNCH_US`; where several threads are allowed, work handed from one
short-lived thread to the next; work of a thread in the microseconds between the answer and the stop. What it may do to the machine:
`sandbox`.
"""

from __future__ import annotations

import functools
import gc
import math
import mmap
import os
import platform
import random
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch

import kernelwright
from kernelwright.plan import PlanError, unmet
from kernelwright.records import COLD_MODES, Build, Candidate, Environment, Outcome, Workload
from kernelwright.settings import answer_environment, replace_environment, settings
from kernelwright.targets import cpu, sandbox
from kernelwright.targets.contender_process import ContenderProcess, reap
from kernelwright.targets.cpu_child import Program, Trusted, Work, serve
from kernelwright.targets.processes import die_with_parent
from kernelwright.targets.python_module import Answer
from kernelwright.targets.target import Bound, CandidateFault, Contender, Device, Fresh, Peaks, Run, TargetUnavailable

RUN_SECONDS = 10.0
SETUP_SECONDS = 300.0
"""A rival's set-up may compile for minutes (torch.compile with autotuning)."""
SERVER_PAUSE = 0.010
"""Mean pause before a call in mode host-server: 100 queries a second, CUDA-L2's default."""
HELD = 1.3
"""The judge's clock may see this many times what a request claims of its launches on the average ..."""
SKEW = 2.5
"""... and this many times what it claims of most of them: the first of 16 small launches finds its code and address translations gone."""
REQUESTS, MOST = 9, 2 / 3
"""Nobody is accused before so many requests, nor for less than this share of them; a request whose claims do not account for its processor
time is dropped. On a busy machine three requests running have taken 36 us in most of their launches and 106 us on the average, of
a kernel that starts a thread in each."""
SLACK_US, SLACK_LAUNCH_US = 40.0, 3.0
"""Processor time of a request and of each of its launches that may come on top, besides half of what an empty one takes: caches and
translations are gone. Seen: 51 us of honest work in a request of 16 launches, on a busy machine."""
ANSWER_US = 40.0
"""Processor time of saying where outputs are, which an empty request does not do."""
LONG_US, LEAST_SHARE = 20_000.0, 0.95
"""A launch this long is seldom left alone: it counts as undisturbed if it had the core for this share of its time. No launch
that does not count goes before it."""
LARGEST_VIEW = 64 << 20
"""Bytes that a Python candidate's output may span beyond four times its own size."""


@dataclass(frozen=True)
class _Seen:
    """A launch request: what the process claimed of each launch, and what the judge's clock says of all; microseconds."""

    claims: list[float]
    switched: list[bool]
    cpu: float
    """The least wall-clock time that the processor time used can have taken."""


class CpuDevice(Device):
    torch_device = "cpu"

    def __init__(self) -> None:
        try:
            self._isolation = sandbox.isolation(sandbox.probe())
        except sandbox.SandboxError as error:
            raise TargetUnavailable(str(error)) from None
        # The judge itself stays single-threaded: a process that has started an OpenMP pool cannot fork children that use OpenMP.
        torch.set_num_threads(1)
        self.threads = settings().threads
        cores = cpu.usable_cores()
        self.cores = cores[-self.threads :] if len(cores) > self.threads else cores
        # On the contenders' cores, which wait while the judge works and the other way round: caches that it fills are theirs.
        os.sched_setaffinity(0, self.cores)
        self._empty: dict[tuple[str, int], _Seen] = {}
        self._maps: list[mmap.mmap] = []
        self._beyond_l2 = torch.ones(4 * max(cpu.cache_bytes(2), 2**18), dtype=torch.uint8)

    @functools.cached_property
    def _beyond_l3(self) -> torch.Tensor:
        """Made by the first cold sample: it takes half a second. Private memory, written once: its page tables go to each child with the
        fork. Shared memory would be mapped anew in each child, page by page, in its first cold sample (seconds for 600 MB on a virtual
        machine); untouched pages would all be the zero page. Huge pages make forking and ending a child 55 ms faster: 300 entries of the
        page table instead of 150,000."""
        size = min(2 * max(cpu.cache_bytes(3), cpu.cache_bytes(2), 2**20), 2**30)
        private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        private.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(private, dtype=torch.uint8).fill_(1)

    def environment(self) -> Environment:
        return Environment(
            target="cpu",
            device=cpu.cpu_name(),
            facts={
                "threads": self.threads,
                "cores": len(cpu.usable_cores()),
                "L2 bytes": cpu.cache_bytes(2),
                "L3 bytes": cpu.cache_bytes(3),
                "isolation": self._isolation,
                "capability": torch.backends.cpu.get_cpu_capability(),
            },
            versions={
                "kernelwright": kernelwright.__version__,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "compiler": cpu.compiler_version(),
            },
            host=f"{platform.system()} {platform.release()} {platform.machine()}, {socket.gethostname()}",
        )

    def peaks(self) -> Peaks:
        # Ceilings no core passes, for the CHEAT test: two 512-bit FMA a clock (AMX: 1024 bf16 multiply-adds) at 5 GHz; 128 bytes a clock
        # from
        # L1; 100 GB/s from memory for a core, 600 GB/s for a socket.
        clock = 5e9 * self.threads
        flops = {"fp32": 64 * clock, "tf32": 64 * clock, "vector": 64 * clock}
        flops |= {"fp16": 128 * clock, "bf16": 2048 * clock, "int8": 4096 * clock}
        copy, product = _measured()
        return Peaks(
            flops=flops,
            bandwidth_cold=min(100e9 * self.threads, 600e9),
            bandwidth_warm=192 * clock,
            measured_flops={"fp32": product, "vector": product},
            measured_bandwidth=copy,
        )

    def allocate(self, size: int) -> torch.Tensor:
        shared = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        self._maps.append(shared)
        return torch.frombuffer(shared, dtype=torch.uint8)[:size]

    def load(self, candidate: Candidate, build: Build | None, w: Workload, sets: Sequence[Bound]) -> CpuContender:
        if candidate.kind == "python":
            return CpuContender(self, sets, Answer(candidate.source, w, sets), trusted=False)
        if candidate.kind != "cpu" or candidate.plan is None or build is None:
            raise CandidateFault(Outcome.LAUNCH_ERROR, f"the cpu target runs C++ candidates, not {candidate.kind!r}")
        try:
            for one in sets:
                if reason := unmet(candidate.plan, one.names):
                    raise CandidateFault(Outcome.REFUSED, reason)
            program = Program(candidate.plan, build.artifact, sets, self.allocate, charge_outputs(w))
        except PlanError as error:
            raise CandidateFault(Outcome.LAUNCH_ERROR, str(error)) from None
        return CpuContender(self, sets, program, trusted=False)

    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> CpuContender:
        return CpuContender(self, sets, Trusted(runs, setup, sets), trusted=True)

    def sets(self, set_bytes: int, modes: Collection[str]) -> int:
        """Each launch of a sample has its own, and one is for warming up: as many as half the L2 holds, where they are small."""
        if not modes:
            return 1
        return max(5, min(17, cpu.cache_bytes(2) // 2 // max(1, set_bytes)))

    def prepare(self, mode: str, sets: Sequence[Bound]) -> None:
        """Before a sample or, in host-server, a launch: caches emptied, or filled with the buffers of the sets. No contender runs."""
        if mode == "host-server":
            time.sleep(random.expovariate(1 / SERVER_PAUSE))
        elif mode in COLD_MODES:
            self.flush_caches()
        else:
            for one in sets:
                for tensor in one.tensors.values():
                    (tensor.view(torch.int8) if tensor.element_size() == 1 else tensor).sum()  # torch adds up no fp8

    def empty(self, mode: str, launches: int) -> _Seen:
        """What the judge's clocks show of a request for so many launches of nothing, in a timing mode: measured once, with a confined
        process. Caches are emptied of its code before, as the judge's own work between samples does."""
        if (mode, launches) not in self._empty:
            self._empty[mode, launches] = self.empty_now(mode, launches)
        return self._empty[mode, launches]

    def empty_now(self, mode: str, launches: int) -> _Seen:
        """The same, as the machine is now."""
        nobody = CpuContender(self, [], Work(), trusted=False)
        seen = []
        for _ in range(7):
            self.prepare(mode, [])
            self._beyond_l2.view(torch.int64).sum()
            seen.append(nobody._launch(list(range(launches)), RUN_SECONDS))
        nobody.close()
        return _Seen([], [], statistics.median(one.cpu for one in seen))

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back on this target."""

    def sensors(self) -> dict[str, float]:
        return {"load average": os.getloadavg()[0]}

    def flush_caches(self) -> None:
        self._beyond_l3.view(torch.int64).sum()
        for core in self.cores[:-1]:  # its own L2, too
            os.sched_setaffinity(0, [core])
            self._beyond_l2.view(torch.int64).sum()
        os.sched_setaffinity(0, self.cores)


def charge_outputs(w: Workload) -> tuple[tuple[int, ...], ...]:
    """Shapes of the outputs whose allocation the rivals pay inside the clock, so that the candidate pays it too."""
    from kernelwright.problems import problem_of

    problem = problem_of(w)
    if not problem.allocates:
        return ()
    return tuple(s.shape for s in problem.tensors(w) if s.role == "out")


class CpuContender(Contender):
    """Parent's side of one child process."""

    spread = True

    def __init__(self, device: CpuDevice, sets: Sequence[Bound], work: Work, *, trusted: bool):
        self.cold_launches, self.in_place = max(1, len(sets) - 1), not trusted  # one is for warming up
        self.apart = isinstance(work, Answer)
        self._device, self._sets, self._work, self._trusted = device, sets, work, trusted
        self._seen: dict[str, list[_Seen]] = {}
        self._long = False
        """Launches are so long that code and address translations, which the first brings back, are nothing beside them."""
        self._earlier: dict[str, torch.Tensor] = {}
        """Inputs of `forward` that a Python candidate has met, for launches that do not count."""
        self._private = None if trusted else tempfile.TemporaryDirectory(prefix="kernelwright-", ignore_cleanup_errors=True)
        reap()
        ours, theirs = Pipe()
        stderr = os.memfd_create("stderr")
        enter = functools.partial(_enter, self._private and Path(self._private.name), _readable(work), device.threads)
        gc.disable()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child(device, theirs, stderr, work, enter)
        gc.enable()
        theirs.close()
        self._process = ContenderProcess(pid, ours, stderr, stops=not trusted, threads=device.threads)
        slow = trusted or not isinstance(work, Program)
        try:
            layers = self._process.ask({"do": "load"}, SETUP_SECONDS if slow else RUN_SECONDS)[0].get("layers")
        except CandidateFault:
            self.close()
            raise
        if not trusted and layers != list(sandbox.probe()):
            self.close()
            raise RuntimeError(f"a candidate's process reached the isolation {layers}, this machine offers {sandbox.probe()}")

    # ------------------------------------------------------------------------------------------------------------ running

    def run(self, index: int = 0) -> None:
        if self._trusted:
            self._process.ask({"do": "store", "set": index}, SETUP_SECONDS)
        else:
            self._make_ready(index)
            self._launch([index], RUN_SECONDS)
            if isinstance(self._work, Answer) and not self._earlier:
                self._earlier = {name: self._sets[index].tensors[name].clone() for name in self._work.hidden}

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        return self._sample(mode, launches, held=True)

    def estimate(self, mode: str) -> float:
        return self._sample(mode, 1, held=False)[0]

    def _sample(self, mode: str, launches: int, *, held: bool) -> tuple[float, int]:
        """Each launch has a set of its own: inputs that the process has not run on, poisoned outputs. A warm sample is one request that
        begins with a launch that does not count, on a set of its own: it brings back code and address translations (30 us for eager, 6 to
        13 for a kernel of ours). Sets that together exceed the L2 come from the L3, for all contenders alike. (Asked for one by one, each
        touched before, eager took 50 us for a product of 1x512x512, and 17 in a program.)"""
        sets, warm = list(range(launches)), mode not in (*COLD_MODES, "host-server")
        alone = mode == "host-server" or self.apart
        lead = [len(self._sets) - 1] if warm and not alone and not self._long and len(self._sets) > 1 else []
        seconds = SETUP_SECONDS if self._trusted else RUN_SECONDS * max(1, launches)
        seen = []
        for group in [[i] for i in sets] if alone else [lead + sets]:
            self._make_ready(group[0], warm=warm)
            self._device.prepare(mode, [self._sets[i] for i in group])
            seen.append(self._launch(group, seconds))
        self._long = seen[-1].claims[-1] > LONG_US
        if not self._trusted:
            for one in seen:
                self._hold_at_once(one, mode)
            if held:
                self._seen.setdefault(mode, []).extend(seen)
                if not self._hold(mode):
                    return math.nan, launches
        timed = [list(zip(self._times(one, mode), one.switched, strict=True))[len(lead) :] for one in seen]
        whole_time = [one.claims[-1] > LONG_US and one.cpu >= LEAST_SHARE * sum(one.claims) for one in seen]
        clean = [us for one, whole in zip(timed, whole_time, strict=True) for us, switched in one if whole or not switched]
        return (statistics.median(clean) if clean else math.nan), launches - len(clean)

    def _times(self, one: _Seen, mode: str) -> list[float]:
        """Microseconds of each launch. A Python candidate's clock is in its own reach: where a request is one launch, the processor time
        that the judge saw is what counts, if it is more than was claimed. So it is with its rivals. Of a C++ candidate each launch takes at
        least what it may hide of the request's mean (`HELD`): one launch that works for the others is worth nothing."""
        if self.apart:
            return [max(one.claims[0], one.cpu - self._device.empty(mode, 1).cpu - ANSWER_US)]
        if self._trusted:
            return one.claims
        n, nothing = len(one.claims), self._device.empty(mode, len(one.claims)).cpu
        least = ((one.cpu - nothing) / n - self._slack(nothing, n)) / HELD
        return [max(us, least) for us in one.claims]

    def _slack(self, nothing: float, launches: int) -> float:
        """Microseconds of a launch that need not be claimed, given what an empty request takes."""
        extra = ANSWER_US if isinstance(self._work, Answer) else 0
        return (nothing / 2 + SLACK_US + extra) / launches + SLACK_LAUNCH_US

    def _make_ready(self, index: int, *, warm: bool = False) -> None:
        """A Python candidate's state for the set, and a launch that does not count, if `warm`. The inputs of `forward` are replaced by
        earlier ones meanwhile: what runs now runs outside the clock."""
        if self._trusted and self.apart and warm:
            self._launch([index], SETUP_SECONDS)
        if not (isinstance(self._work, Answer) and (self._work.stateful or warm)):
            return
        hidden = [self._sets[index].tensors[name] for name in self._work.hidden]
        kept = [t.clone() for t in hidden]
        for name, t in zip(self._work.hidden, hidden, strict=True):
            # zeros would do for numbers, but not for the indices of a graph
            t.copy_(self._earlier[name]) if self._earlier else t.zero_()
        if self._work.stateful:
            self._process.ask({"do": "state", "set": index}, RUN_SECONDS)
        if warm:
            self._process.ask({"do": "launch", "sets": [index]}, RUN_SECONDS)
        for t, value in zip(hidden, kept, strict=True):
            t.copy_(value)

    def _launch(self, sets: list[int], seconds: float) -> _Seen:
        answer, cpu = self._process.ask({"do": "launch", "sets": sets}, seconds)
        try:
            claims = [float(ns) / 1e3 for ns in answer["ns"]]
            switched = [bool(s) for s in answer["switched"]]
            if len(claims) != len(sets) or len(switched) != len(sets) or not all(0 <= us < 1e12 for us in claims):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise CandidateFault(Outcome.CHEAT, "the process answered a launch with something else than its times") from None
        if isinstance(self._work, Answer):
            self._fetch(sets[-1], answer.get("results"))
        return _Seen(claims, switched, cpu)

    def _fetch(self, index: int, results: Any) -> None:
        """Copies a Python candidate's outputs out of its memory, now that it is stopped, into the set."""
        assert isinstance(self._work, Answer)
        try:
            with open(f"/proc/{self._process.pid}/mem", "rb", buffering=0) as memory:
                for name, where in zip(self._work.outputs, results, strict=True):
                    _copy_out(memory.fileno(), where, self._sets[index].tensors[name], name)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise CandidateFault(Outcome.CHEAT, "the process did not say where its outputs are") from None
        except OSError as error:
            raise CandidateFault(Outcome.WRONG_RESULT, f"the memory of its outputs cannot be read: {error.strerror}") from None

    # ---------------------------------------------------------------------------------------------------------- the clocks

    def _hold_at_once(self, one: _Seen, mode: str) -> None:
        used = one.cpu - self._device.empty(mode, len(one.claims)).cpu
        if used > 1.5 * sum(one.claims) + 5000:
            raise self._cheat(mode, f"used {used:.0f} us of processor time while it claimed {sum(one.claims):.0f} us")

    def _hold(self, mode: str) -> bool:
        """Holds what was claimed in the last request against the processor time that the judge saw; False where the request counts for
        nothing, since the claims do not account for that time. Who is beyond it in most requests is accused; once or twice it was the
        machine. The wall clock would tell no more: on a busy machine it runs three times as long as honest work."""
        seen = self._seen[mode]
        n = len(seen[-1].claims)

        def beyond(one: _Seen, nothing: float) -> bool:
            used, average, claimed = _launch_of(one, nothing)
            slack = self._slack(nothing, len(one.claims))
            return used > HELD * average + slack or used > SKEW * claimed + slack

        nothing = self._device.empty(mode, n).cpu
        if not beyond(seen[-1], nothing):
            return True
        if len(seen) < REQUESTS or sum(beyond(one, nothing) for one in seen) <= MOST * len(seen):
            return False
        # where other load has come up, an empty request takes more as well: nobody is accused before that was asked
        nothing = self._device.empty_now(mode, n).cpu
        guilty = [_launch_of(one, nothing) for one in seen if beyond(one, nothing)]
        if len(guilty) <= MOST * len(seen):
            return not beyond(seen[-1], nothing)
        used, average, claimed = (statistics.median(each) for each in zip(*guilty, strict=True))
        claims = f"{average:.3g} us on the average, {claimed:.3g} us for most"
        how_often = f"in {len(guilty)} of {len(seen)} requests"
        raise self._cheat(mode, f"used {used:.3g} us of processor time a launch and claimed {claims}, {how_often}")

    def _cheat(self, mode: str, what: str) -> CandidateFault:
        return CandidateFault(Outcome.CHEAT, f"the candidate's process {what} ({mode})")

    # ------------------------------------------------------------------------------------------------------------ the child

    def disturbed(self) -> str | None:
        return self._work.disturbed() if isinstance(self._work, Program) else None

    def close(self) -> None:
        self._process.close()
        if self._private is not None:
            self._private.cleanup()  # nothing that a candidate wrote is there for the next


def _launch_of(one: _Seen, nothing: float) -> tuple[float, float, float]:
    """Microseconds of a request's launch: processor time beyond an empty request's, claimed on the average, claimed in the median."""
    return (one.cpu - nothing) / len(one.claims), statistics.fmean(one.claims), statistics.median(one.claims)


def _copy_out(memory: int, where: dict[str, Any], out: torch.Tensor, name: str) -> None:
    """Copies one strided tensor from another process's memory, given its address, shape, strides and dtype."""
    shape, strides, address = tuple(map(int, where["shape"])), tuple(map(int, where["strides"])), int(where["address"])
    if where["dtype"] != str(out.dtype) or shape != tuple(out.shape) or len(strides) != len(shape) or min(strides, default=0) < 0:
        raise CandidateFault(Outcome.WRONG_RESULT, f"{name} is {where['dtype']} {shape}, want {out.dtype} {tuple(out.shape)}")
    if not out.numel():
        return
    size = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * out.element_size()
    if size > LARGEST_VIEW + 4 * out.numel() * out.element_size():
        raise CandidateFault(Outcome.WRONG_RESULT, f"{name} is a view over {size} bytes; make it contiguous")
    raw, done = bytearray(size), 0
    buffer = memoryview(raw)
    while done < size:
        read = os.preadv(memory, [buffer[done:]], address + done)
        if not read:
            raise OSError(0, "end of memory")
        done += read
    out.copy_(torch.frombuffer(raw, dtype=out.dtype).as_strided(shape, strides))


def _readable(work: Work) -> list[str]:
    return [work.artifact] if isinstance(work, Program) else []


def _enter(private: Path | None, readable: list[str], threads: int) -> tuple[str, ...]:
    """Confines a candidate's process; a rival's is trusted."""
    if private is None:
        return ()
    tempfile.tempdir = str(private)
    replace_environment(answer_environment(str(private)))
    os.chdir(private)
    return sandbox.enter(private, readable, threads=threads)


def _child(device: CpuDevice, pipe: Connection, stderr: int, work: Work, enter: Callable[[], Sequence[str]]) -> None:
    """Never returns: whatever happens in the child, no frame of the judge may run on in it."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        quiet = os.open(os.devnull, os.O_RDWR)
        for fd, to in ((quiet, 0), (quiet, 1), (stderr, 2)):
            os.dup2(fd, to)
        # the judge's own pipe and those of other contenders: whoever holds them can speak in their name
        keep = pipe.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        os.sched_setaffinity(0, device.cores)
        torch.set_num_threads(device.threads)
        serve(pipe, work, enter)
        status = 0
    except BaseException:  # the last line of the process: nothing is swallowed, the parent reads it from stderr
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _measured() -> tuple[float, float]:
    """Copy bandwidth (bytes read and written a second) and fp32 product rate (FLOP/s) of this process, for `percent of peak` only."""
    a = torch.ones(16 << 20, dtype=torch.uint8)
    b = torch.empty_like(a)
    m = torch.randn(512, 512)
    copy = product = math.inf
    for _ in range(12):  # on a busy machine a few copies can all be slow, and results then seem to pass the peak
        t0 = time.perf_counter()
        b.copy_(a)
        t1 = time.perf_counter()
        torch.mm(m, m)
        t2 = time.perf_counter()
        copy, product = min(copy, t1 - t0), min(product, t2 - t1)
    return 2 * a.numel() / copy, 2 * 512**3 / product
