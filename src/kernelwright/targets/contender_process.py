"""A contender's process, as the judge holds it: asked through a pipe, clocked from outside, stopped while nobody waits for it, killed.

What it answers is JSON of its own making: read with suspicion, never unpickled. A candidate is believed about itself where it says that it
failed, and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from kernelwright.records import Outcome
from kernelwright.targets.processes import kill_group
from kernelwright.targets.target import CandidateFault

_OWN_FAULTS = ("COMPILE_ERROR", "LAUNCH_ERROR", "REFUSED", "CRASH", "OUT_OF_MEMORY", "WRONG_RESULT", "CHEAT")
"""What a candidate's process may say of itself."""


_LONGEST = 1 << 20
"""Bytes of an answer; those of honest candidates take some hundreds."""


class ContenderProcess:
    """`pid` leads a process group and is a child of this process; `stderr` is a file that it writes its last words to. With `stops` it is
    stopped except while `ask` waits. `threads` is how many it may use. With `starts` it may start others, in a session that it leads."""

    def __init__(self, pid: int, pipe: Connection, stderr: int, *, stops: bool, threads: int = 1, starts: bool = False):
        self.pid, self._pipe, self._stderr, self._stops, self._threads, self._starts = pid, pipe, stderr, stops, threads, starts
        self._stopped = False
        self._cpu_clock = (~pid << 3) | 2
        """Linux's clock id of another process's CPU time: not moved by other load, as the wall clock is."""
        self.wall = 0.0
        """Microseconds by the judge's clock from the last request to its answer."""

    def _used(self) -> tuple[float, dict[str, int]]:
        """The process's CPU time so far, seconds; and that of each thread, nanoseconds, where it may use several."""
        total = time.clock_gettime(self._cpu_clock)
        if not self._stops or self._threads == 1:
            return total, {}
        each = {}
        for task in os.scandir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(OSError), open(f"{task.path}/schedstat") as stat:  # a thread may just have ended
                each[task.name] = int(stat.read().split()[0])
        return total, each

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], float]:
        """The answer; and the least time, microseconds, that the processor time used for it can have taken: that of all threads divided by
        the number allowed, or that of the busiest. A candidate is stopped before and after: it does nothing while inputs are drawn, rivals
        run, or outputs are read."""
        if not self.pid:
            raise CandidateFault(Outcome.CRASH, "the process has ended")
        request["id"] = secrets.token_hex(4)
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            total, each = self._used()
            started = time.perf_counter()
            if self._stopped:
                os.kill(self.pid, signal.SIGCONT)
            words = self._words(started + seconds)
            self.wall = 1e6 * (time.perf_counter() - started)
            if self._stops:
                os.kill(self.pid, signal.SIGSTOP)
                self._stopped = True
            now_total, now_each = self._used()
            busiest = max((ns - each.get(task, 0) for task, ns in now_each.items()), default=0)
            used = max(1e6 * (now_total - total) / self._threads, busiest / 1e3)
            if words is None:
                self.kill()
                raise CandidateFault(Outcome.TIMEOUT, f"no answer to {request['do']!r} within {seconds:.0f} s; the process was killed")
            answer = json.loads(words)
            if not isinstance(answer, dict):
                raise ValueError
        except (EOFError, OSError, ValueError, RecursionError):
            raise self._obituary() from None
        if answer.get("id") != request["id"]:
            self.kill()
            raise CandidateFault(Outcome.CHEAT, f"the process sent an answer that nobody had asked for, at {request['do']!r}")
        if "fault" in answer:
            outcome = answer["fault"] if answer["fault"] in _OWN_FAULTS else Outcome.CRASH
            raise CandidateFault(Outcome(outcome), str(answer.get("evidence"))[:2000])
        return answer, used

    def _words(self, deadline: float) -> bytes | None:
        """The one message of an answer, as `Connection.send_bytes` frames it; None when the deadline came first. Not by `recv_bytes`: it
        would wait without end for the rest of a message of which a candidate sent the beginning."""
        heard = b""
        while self._pipe.poll(max(deadline - time.perf_counter(), 0)):
            part = os.read(self._pipe.fileno(), 1 << 16)
            if not part:
                raise EOFError
            heard += part
            if len(heard) < 4:
                continue
            size = int.from_bytes(heard[:4], "big", signed=True)
            if not 0 <= size <= _LONGEST:
                raise ValueError
            if len(heard) == 4 + size:
                return heard[4:]
            if len(heard) > 4 + size:
                raise ValueError
        return None

    def _obituary(self) -> CandidateFault:
        """Why the child died; one that only closed or spoilt its pipe is killed."""
        ended, status = 0, 0
        for _ in range(50):
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                break
            os.kill(self.pid, signal.SIGCONT)  # it may have been on its way out when it was stopped
            time.sleep(0.01)
        if not ended:
            self.kill()
            return CandidateFault(Outcome.CRASH, "the process closed its pipe to the judge, or sent what is no answer; it was killed")
        self.pid = 0
        words = os.pread(self._stderr, 4000, max(0, os.fstat(self._stderr).st_size - 4000)).decode(errors="replace").strip()
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
            return CandidateFault(outcome, f"{what}{': ' + words[-500:] if words else ''}")
        return CandidateFault(
            Outcome.CRASH, f"the process exited by itself with code {os.waitstatus_to_exitcode(status)} {words[-500:]}".rstrip()
        )

    def others(self) -> list[int]:
        """The other living processes of the session that this one leads: compilers (ninja gives them groups of their own), and whatever
        else it has started. The filter lets none leave the session."""
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/stat") as stat:
                state, _, _, session = stat.read().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state not in "ZX":
                    found.append(int(entry.name))
        return found

    def kill_others(self) -> None:
        """Ends them, and returns when they are gone."""
        deadline = time.perf_counter() + 10
        while (left := self.others()) and time.perf_counter() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def kill(self) -> None:
        if self.pid:
            kill_group(self.pid)
            if self._starts:
                self.kill_others()
            _killed.append(self.pid)  # its memory takes the system 15 ms to free: nobody need wait for that
            self.pid = 0

    def close(self) -> None:
        self.kill()
        self._pipe.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1


_killed: list[int] = []


def reap() -> None:
    """Takes note of processes that have ended since they were killed."""
    _killed[:] = [pid for pid in _killed if os.waitpid(pid, os.WNOHANG)[0] == 0]
