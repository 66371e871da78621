"""The opened CPU: buffers in shared memory, each contender in a forked process of its own.

The judge process forks a child for each contender before it draws any input, so the child never holds a reference result; inputs and
outputs lie in memory that both share. The child clocks each launch; the judge holds the sum against its own clock. Samples in which the
kernel was switched out by the system are dropped. What this does NOT protect against: a native candidate may do anything that a process
of this user may do (see docs/verification.md); it is isolated from the results, not from the machine.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import platform
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch

import kernelwright
from kernelwright.plan import PlanError, unmet
from kernelwright.records import COLD_MODES, Build, Candidate, Environment, Outcome, Workload
from kernelwright.settings import settings
from kernelwright.targets import cpu
from kernelwright.targets.cpu_child import Program, serve
from kernelwright.targets.processes import die_with_parent, kill_group
from kernelwright.targets.target import Bound, CandidateFault, Contender, Device, Fresh, Peaks, Run

RUN_SECONDS = 10.0
SETUP_SECONDS = 300.0
"""A rival's set-up may compile for minutes (torch.compile with autotuning)."""


class CpuDevice(Device):
    torch_device = "cpu"

    def __init__(self) -> None:
        # The judge itself stays single-threaded: a process that has started an OpenMP pool cannot fork children that use OpenMP.
        torch.set_num_threads(1)
        self.threads = settings().threads
        cores = cpu.usable_cores()
        self.cores = cores[-self.threads :] if len(cores) > self.threads else cores
        self._maps: list[mmap.mmap] = []
        # Private memory, written once: its page tables go to each child with the fork. Shared memory would be mapped anew in each child,
        # page by page, in its first cold sample (seconds for 600 MB on a virtual machine); untouched pages would all be the zero page.
        # Huge pages make forking and ending a child 55 ms faster: 300 entries of the page table instead of 150,000.
        size = min(2 * max(cpu.cache_bytes(3), cpu.cache_bytes(2), 2**20), 2**30)
        private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        private.madvise(mmap.MADV_HUGEPAGE)
        self._flush = torch.frombuffer(private, dtype=torch.uint8).fill_(1)

    def environment(self) -> Environment:
        return Environment(
            target="cpu",
            device=cpu.cpu_name(),
            facts={
                "threads": self.threads,
                "cores": len(cpu.usable_cores()),
                "L2 bytes": cpu.cache_bytes(2),
                "L3 bytes": cpu.cache_bytes(3),
                "isolation": "own process, resource limits",
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
        flops = {"fp32": 64 * clock, "fp16": 128 * clock, "bf16": 2048 * clock, "vector": 64 * clock}
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
            from kernelwright.targets.python_module import module_runs

            # the source runs only in the child: `setup` is called there, after the fork
            runs, setup = module_runs(candidate.source, w, sets)
            return CpuContender(self, sets, runs=runs, setup=setup, trusted=False)
        if candidate.kind != "cpu" or candidate.plan is None or build is None:
            raise CandidateFault(Outcome.LAUNCH_ERROR, f"the cpu target runs C++ candidates, not {candidate.kind!r}")
        try:
            for one in sets:
                if reason := unmet(candidate.plan, one.names):
                    raise CandidateFault(Outcome.REFUSED, reason)
            program = Program(candidate.plan, build.artifact, sets, self.allocate, charge_outputs(w))
        except PlanError as error:
            raise CandidateFault(Outcome.LAUNCH_ERROR, str(error)) from None
        return CpuContender(self, sets, program=program, trusted=False)

    def load_trusted(self, runs: Sequence[Run], setup: Callable[[], None] | None = None, sets: Sequence[Bound] = ()) -> CpuContender:
        return CpuContender(self, sets or [Bound({}, {})] * len(runs), runs=runs, setup=setup, trusted=True)

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back on this target."""

    def sensors(self) -> dict[str, float]:
        return {"load average": os.getloadavg()[0]}

    def flush_caches(self) -> None:
        self._flush.view(torch.int64).sum()

    def close(self) -> None:
        self._flush = torch.empty(0)


def charge_outputs(w: Workload) -> tuple[tuple[int, ...], ...]:
    """Shapes of the outputs whose allocation the rivals pay inside the clock, so that the candidate pays it too."""
    from kernelwright.problems import problem_of

    problem = problem_of(w)
    if not problem.allocates:
        return ()
    return tuple(s.shape for s in problem.tensors(w) if s.role == "out")


class CpuContender(Contender):
    """Parent's side of one child process."""

    def __init__(
        self,
        device: CpuDevice,
        sets: Sequence[Bound],
        *,
        program: Program | None = None,
        runs: Sequence[Run] = (),
        setup: Callable[[], None] | None = None,
        trusted: bool,
    ):
        self.cold_launches, self.in_place = len(sets), program is not None
        self._alterable = sets[0].alterable
        self._program, self._trusted, self._threads = program, trusted, device.threads
        _reap()
        ours, theirs = Pipe()
        read_err, write_err = os.pipe()
        gc.disable()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _child(device, theirs, ours, read_err, write_err, program, runs, setup, self._alterable, trusted)
        gc.enable()
        theirs.close()
        os.close(write_err)
        self._pipe, self._stderr = ours, read_err
        self._ask({"do": "load"}, SETUP_SECONDS if trusted or program is None else RUN_SECONDS)

    def run(self, index: int = 0) -> None:
        self._ask({"do": "run", "set": index}, SETUP_SECONDS if self._trusted else RUN_SECONDS)

    def sample(self, mode: str, launches: int, fresh: Fresh | None = None) -> tuple[float, int]:
        seed = None
        if fresh is not None and mode not in COLD_MODES:
            # calls follow each other on one set, whose inputs the child alters before each; where it cannot, one call has to do
            seed, launches = secrets.randbits(48), launches if self._alterable else 1
        clock = (~self._pid << 3) | 2  # Linux's clock id of another process's CPU time: not moved by other load, as the wall clock is
        started = time.clock_gettime(clock)
        seconds = SETUP_SECONDS if self._trusted else RUN_SECONDS * max(1, launches)
        answer = self._ask({"do": "sample", "mode": mode, "launches": launches, "seed": seed}, seconds)
        used = (time.clock_gettime(clock) - started) * 1e6 / self._threads
        # What the child clocked must account for the processor time that the judge sees it use.
        if not self._trusted and used - answer["between"] > 1.5 * answer["sum"] + 5000:
            raise CandidateFault(
                Outcome.CHEAT,
                f"the candidate's process used {used:.0f} us of processor time while it clocked {answer['sum']:.0f} us ({mode})",
            )
        if fresh is not None and seed is not None:
            fresh.altered(seed, launches)
        return (answer["median"] if answer["median"] is not None else math.nan), answer["dropped"]

    def disturbed(self) -> str | None:
        return self._program.disturbed() if self._program else None

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            if not self._pipe.poll(seconds):
                self._kill()
                raise CandidateFault(Outcome.TIMEOUT, f"no answer to {request['do']!r} within {seconds:.0f} s; the process was killed")
            answer = json.loads(self._pipe.recv_bytes(1 << 20))
        except (EOFError, OSError, ValueError):
            raise self._obituary() from None
        if "fault" in answer:
            raise CandidateFault(Outcome(answer["fault"]), answer["evidence"])
        return answer

    def _obituary(self) -> CandidateFault:
        """Why the child died."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        os.set_blocking(self._stderr, False)
        try:
            words = os.read(self._stderr, 4000).decode(errors="replace").strip()
        except BlockingIOError:
            words = ""
        if "bad_alloc" in words or "out of memory" in words.lower():
            return CandidateFault(Outcome.OUT_OF_MEMORY, f"the process ran out of memory: {words[:500]}")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name
            what = (
                "the process was killed, as the system does when memory runs out"
                if number == signal.SIGKILL
                else f"the process died of {name}"
            )
            outcome = Outcome.OUT_OF_MEMORY if number == signal.SIGKILL else Outcome.CRASH
            return CandidateFault(outcome, f"{what}{': ' + words[:500] if words else ''}")
        return CandidateFault(
            Outcome.CRASH, f"the process exited by itself with code {os.waitstatus_to_exitcode(status)} {words[:500]}".rstrip()
        )

    def _kill(self) -> None:
        if self._pid:
            kill_group(self._pid)
            _killed.append(self._pid)  # its memory takes the system 15 ms to free: nobody need wait for that
            self._pid = 0

    def close(self) -> None:
        self._kill()
        self._pipe.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1


_killed: list[int] = []


def _reap() -> None:
    """Takes note of children that have ended since they were killed."""
    _killed[:] = [pid for pid in _killed if os.waitpid(pid, os.WNOHANG)[0] == 0]


def _child(
    device: CpuDevice,
    pipe: Connection,
    parents: Connection,
    read_err: int,
    write_err: int,
    program: Program | None,
    runs: Sequence[Run],
    setup: Callable[[], None] | None,
    alterable: Sequence[torch.Tensor],
    trusted: bool,
) -> None:
    """Never returns: whatever happens in the child, no frame of the judge may run on in it."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        parents.close()
        os.close(read_err)
        os.dup2(write_err, 2)
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 0)
        os.dup2(quiet, 1)
        if not trusted:
            # what the judge has open, its pipe to the user's process among it, is nothing for a candidate
            os.closerange(3, pipe.fileno())
            os.closerange(pipe.fileno() + 1, 1 << 16)
        os.sched_setaffinity(0, device.cores)
        torch.set_num_threads(device.threads)
        serve(pipe, program, runs, setup, device.flush_caches, alterable, limited=not trusted)
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
