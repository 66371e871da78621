"""What the programs that measure the runtime share: lines of raw samples that a later call goes on with, a budget of seconds, a watchdog,
interleaved rounds, ratios with their intervals.

A program runs twice: the outer process (`supervise`) keeps the time and starts the inner one, which measures; should the inner one hang or
lose the GPU, it is started again and what it was at is passed over the second time.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from kernelwright.evaluate import stats
from kernelwright.records import Comparison

OURS, AGAIN = "kw", "kw again"
"""Contenders: ours, and ours a second time in each round: the A/A pair that gives the noise floor."""
STARTS = 2
"""Times that a step is begun before it counts as one that hangs or crashes."""
RESTARTS = 20
GRACE = 30.0
"""Seconds that the inner process may take to come to its end once its time is up."""
SHORT = 0.005
"""Seconds: a sample below this counts only if the system did not take the core away meanwhile. In a longer one that is a small part, and
happens so often that hardly one would be left."""
MODES = {"offline": "host-offline", "server": "host-server"}
"""Ours to the names that a Timing has."""

Call = Callable[..., object]


# ------------------------------------------------------------------------------------------------------------- raw lines


class Lines:
    """A file of JSON lines that is only added to; each line is on disk before the next step begins."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
            path.write_bytes(text + b"\n")  # a process died within its last line: the reader passes over it

    def add(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def hopeless(lines: Iterable[Mapping[str, Any]]) -> set[str]:
    """Steps that were begun STARTS times (`start`) since they last came to an end (`end`), to a known fault (`spoils`) or to the end of the
    time (`stopped`): the process hung or died in them."""
    begun: Counter[str] = Counter()
    for line in lines:
        if "start" in line:
            begun[line["start"]] += 1
        elif name := line.get("end") or line.get("spoils") or line.get("stopped"):
            begun[name] = 0
    return {name for name, count in begun.items() if count >= STARTS}


def of_one_place(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """The last environment, the lines of runs in such ones, and how many lines there are of others, whose times do not compare."""
    last = next((line["environment"] for line in reversed(lines) if "environment" in line), {})
    kept, others, same = [], 0, True
    for line in lines:
        if "environment" in line:
            same = all(line["environment"].get(x) == last.get(x) for x in ("device", "torch", "cuda", "pack"))
        if same:
            kept.append(line)
        else:
            others += "end" in line
    return last, kept, others


def commands(lines: Iterable[Mapping[str, Any]]) -> str:
    """What was typed to make these lines."""
    return "; ".join(dict.fromkeys(line["command"] for line in lines if "command" in line))


# ---------------------------------------------------------------------------------------------------- time and watchdogs


class Budget:
    def __init__(self, seconds: float, hang: float):
        """`seconds` from now on; a step of more than `hang` seconds ends the process."""
        self.ends, self.hang = time.monotonic() + seconds, hang

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def watch(self) -> None:
        """Called as each step begins. The watchdog is a thread of C: it works while the main thread is stuck in CUDA with the GIL."""
        faulthandler.dump_traceback_later(self.hang, exit=True, file=sys.__stderr__)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def supervise(seconds: float, raw: Path) -> bool:
    """Runs this very command with `--inner` until it ends by itself or the time is up. False where it failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the inner process does not go on by itself
    ends, before = time.monotonic() + seconds, -1
    for _ in range(RESTARTS):
        left = ends - time.monotonic()
        if left < 1:
            return True
        inner = subprocess.Popen([sys.executable, *sys.argv, "--inner", "--seconds", str(left)])
        try:
            code = inner.wait(left + GRACE)
        except subprocess.TimeoutExpired:
            print("the time is up: the process was ended", flush=True)
            begun = [line["start"] for line in read(raw) if "start" in line]
            if begun:
                Lines(raw).add({"stopped": begun[-1]})
            return True
        finally:
            if inner.poll() is None:
                inner.kill()
                inner.wait()
        if code in (0, 2):  # done, or refused: the sentence is on the screen
            return code == 0
        lines = len(read(raw))
        print(f"the process ended with {code}; {'it is started again' if lines > before else 'nothing new was measured'}", flush=True)
        if lines <= before:
            return False
        before = lines
    return False


def refuse(sentence: str) -> NoReturn:
    """Ends the program: started again, it would only say this again."""
    faulthandler.cancel_dump_traceback_later()
    print(sentence, file=sys.stderr, flush=True)
    raise SystemExit(2)


def device() -> str:
    if not torch.cuda.is_available():
        refuse("this program measures a GPU, and PyTorch finds none here; its summary alone is made without the PACK")
    return "cuda"


# ---------------------------------------------------------------------------------------------------------------- rounds


def sample(call: Call, operands: Sequence[Any], pause: float = 0.0) -> float | None:
    """Microseconds of one call: synchronise, clock, call, synchronise, clock; after a pause of `pause` seconds on average, exponentially
    distributed (CUDA-L2's modes offline and server). None where it was disturbed."""
    if pause:
        torch.cuda.synchronize()
        time.sleep(random.expovariate(1 / pause))
    torch.cuda.synchronize()
    switched = _switches()
    started = time.perf_counter()
    call(*operands)
    torch.cuda.synchronize()
    ended = time.perf_counter()
    return _microseconds(ended - started, switched)


def enqueued(loop: Call, operands: Sequence[Any]) -> float | None:
    """Microseconds of `loop(*operands)` up to its return, whatever it enqueued; the GPU is idle before and after."""
    torch.cuda.synchronize()
    switched = _switches()
    started = time.perf_counter()
    loop(*operands)
    ended = time.perf_counter()
    torch.cuda.synchronize()
    return _microseconds(ended - started, switched)


def _microseconds(seconds: float, switched: int) -> float | None:
    return None if seconds < SHORT and _switches() != switched else round(seconds * 1e6, 2)


def _switches() -> int:
    """How often the system took the core away from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def rounds(
    contenders: Mapping[str, Call],
    sets: Sequence[Sequence[Any]],
    count: int,
    budget: Budget,
    take: Callable[[Call, Sequence[Any]], float | None] = sample,
) -> dict[str, list[float | None]]:
    """`count` samples (`take`) of each contender by name, a round at a time, in random order within it; each call takes the operands that
    have been out of use for longest. Ends early when the time is up."""
    taken: dict[str, list[float | None]] = {name: [] for name in contenders}
    order, turn = list(contenders), 0
    gc.disable()  # a collection in the middle of a sample takes 50 ms with PyTorch loaded
    try:
        for call in contenders.values():
            take(call, sets[0])
        for _ in range(count):
            if budget.left <= 0:
                break
            budget.watch()
            random.shuffle(order)
            for name in order:
                taken[name].append(take(contenders[name], sets[turn % len(sets)]))
                turn += 1
    finally:
        gc.enable()
    return taken


def ratios(theirs: Sequence[float | None], ours: Sequence[float | None]) -> list[float]:
    """Round by round; a round with a disturbed sample is left out."""
    return [t / o for t, o in zip(theirs, ours, strict=True) if t and o]


def compared(samples: Mapping[str, Sequence[float | None]], mode: str) -> dict[str, Comparison]:
    """Rival to the Comparison of `kw` with it; without those that have fewer than stats.LEAST_ROUNDS clean rounds beside ours."""
    noise = stats.noise_floor(ratios(samples[AGAIN], samples[OURS]) if AGAIN in samples else [])
    found = {}
    for rival, theirs in samples.items():
        if rival not in (OURS, AGAIN) and (per_round := ratios(theirs, samples[OURS])):
            us = float(np.median([t for t in theirs if t]))
            found[rival] = stats.comparison(rival, MODES.get(mode, mode), per_round, us, noise)
    return {rival: c for rival, c in found.items() if c is not None}


def environment(**more: str | int | float) -> dict[str, Any]:
    """Of this process, for summary.json."""
    from kernelwright.targets import target

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda or "", "python": sys.version.split()[0], **more}
    if torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        found |= {"device": p.name, "sms": p.multi_processor_count, "memory_gib": round(p.total_memory / 2**30, 1)}
        found["target"] = target("cuda").name
    return found
