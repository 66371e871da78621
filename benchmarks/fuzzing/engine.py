"""The fuzzer's engine: inputs are mutated, run under a limit of time, kept where they run a line that no other ran, and counted.

Property testing (hypothesis, see tests/fuzz) draws what is right in form and is not guided by coverage; what is there for that (Atheris)
needs a build of libFuzzer. `sys.settrace` needs nothing, and is told of our own lines only.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.cli.common import _explain

ROOT = Path(__file__).resolve().parents[2]
SOURCES = str(ROOT / "src" / "kernelwright") + os.sep
HANG_SECONDS = 20
"""Wall-clock time of one input; all areas need milliseconds."""
MEMORY = 8 << 30
"""Address space of the process: a mutated size must be refused, not let the machine swap."""


class Hang(BaseException):
    """Not an Exception: nothing that is fuzzed may catch it."""


class Broken(AssertionError):
    """An invariant that does not hold; the message says which."""


@dataclass
class Area:
    """One kind of input."""

    name: str
    share: int
    """Of 1,000 inputs."""
    seeds: list[bytes]
    words: list[bytes]
    run: Callable[[bytes], None]
    """Raises what the command line turns into a sentence, Broken, or anything else, which is a fault."""
    mutable: bool = True
    """Whether bytes may be mutated; else only JSON trees are."""
    inputs: int = 0
    refused: int = 0
    corpus: list[bytes] = field(default_factory=list)
    lines: int = 0


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """A folder to write in, memory-backed where there is such a place; limits on time and memory; all of it undone afterwards."""

    def hang(number: int, frame: object) -> None:
        raise Hang

    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="kernelwright-fuzz-", dir=shared if os.access(shared, os.W_OK) else None))
    saved, limits = signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    home, here = os.environ.get("KERNELWRIGHT_HOME"), Path.cwd()
    os.environ["KERNELWRIGHT_HOME"] = str(folder / "home")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, limits[1]))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, saved)
        os.environ.pop("KERNELWRIGHT_HOME") if home is None else os.environ.update(KERNELWRIGHT_HOME=home)
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------- mutations

ODD = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    1e-320,
    "",
    "x",
    "\0",
    "ä€😀",
    "../..",
    "/",
    "*" * 300,
    [],
    {},
    [[]],
    {"": 0},
    [None] * 3,
    "M // 0",
    "1 << 62",
    "((((((((((1))))))))))",
    "numel_a",
    "OK",
    "fp16",
    "cuda",
    "nan",
]


def mutate(data: bytes, g: random.Random, area: Area) -> bytes:
    if g.random() < (0.6 if area.mutable else 1.0):
        for begin, end in _json_in(data, g):
            try:
                tree = json.loads(data[begin:end])
            except (ValueError, RecursionError):
                continue
            for _ in range(g.choice((1, 1, 1, 2, 4))):
                tree = _tree(tree, g, area)
            return data[:begin] + json.dumps(tree).encode("utf-8", "surrogatepass") + data[end:]
    for _ in range(g.choice((1, 1, 2, 3, 8))):
        data = _bytes(data, g, area)
    return data


def _json_in(data: bytes, g: random.Random) -> Iterator[tuple[int, int]]:
    """Where JSON may stand: all of it, a line, from the first brace to the last."""
    yield 0, len(data)
    if starts := [i for i in range(len(data)) if data[i : i + 1] in b"{[" and (i == 0 or data[i - 1 : i] in b"\n\0")][:64]:
        begin = g.choice(starts)
        yield begin, begin + len(data[begin:].split(b"\n", 1)[0])
    if b"{" in data:
        yield data.index(b"{"), data.rindex(b"}") + 1 if b"}" in data else len(data)


def _tree(value: Any, g: random.Random, area: Area) -> Any:
    """The value with one place changed."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any, depth: int) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            places.append((node, key))
            if depth < 12:
                walk(child, depth + 1)

    walk(value, 0)
    if not places or g.random() < 0.02:
        return _odd(g)
    node, key = g.choice(places)
    old = node[key]
    match g.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[str(g.choice(area.words), "utf-8", "replace") if area.words else "x"] = node.pop(key)
        case 1:
            node.insert(key, old)
        case 2:
            other, at = g.choice(places)
            with contextlib.suppress(KeyError, IndexError):  # what it is put into may be gone
                node[key] = json.loads(json.dumps(other[at]))
        case 3 if isinstance(old, int | float) and not isinstance(old, bool):
            node[key] = g.choice([old + 1, old - 1, -old, old * 2, old * 10**6, str(old)[:40]])
        case 3 | 4 if isinstance(old, str):
            node[key] = str(_bytes(old.encode("utf-8", "surrogatepass"), g, area), "utf-8", "replace")
        case 5:
            node[key] = [old]
        case 6 if area.words:
            node[key] = str(g.choice(area.words), "utf-8", "replace")
        case _:
            node[key] = _odd(g)
    return value


def _odd(g: random.Random) -> Any:
    value = g.choice(ODD)
    return json.loads(json.dumps(value)) if isinstance(value, list | dict) else value  # one of its own: it may be changed


def _bytes(data: bytes, g: random.Random, area: Area) -> bytes:
    if not data:
        return g.choice(area.words) if area.words else b"x"
    i, n = g.randrange(len(data)), g.choice((1, 1, 2, 4, 16, 64))
    match g.randrange(8):
        case 0:
            return data[:i] + bytes([g.randrange(256)]) + data[i + 1 :]
        case 1:
            return data[:i] + data[i + n :]
        case 2:
            return data[:i] + data[i : i + n] * g.choice((2, 3, 50)) + data[i + n :]
        case 3 | 4 if area.words:
            return data[:i] + g.choice(area.words) + data[i + g.choice((0, n)) :]
        case 5:
            return data[:i] + bytes([data[i] ^ (1 << g.randrange(8))]) + data[i + 1 :]
        case 6 if area.corpus:
            other = g.choice(area.corpus)
            return data[:i] + other[g.randrange(len(other) or 1) :]
        case _:
            return data[:i] if g.random() < 0.3 else data[:i] + bytes(g.randrange(256) for _ in range(n)) + data[i:]


# -------------------------------------------------------------------------------------------------------------- the loop


class Coverage:
    """Lines of kernelwright that have run."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def _line(self, frame: Any, event: str, arg: object) -> Any:
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def __call__(self, frame: Any, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCES) else None


@dataclass
class Fault:
    """Of one place, with the first input that led there."""

    area: str
    kind: str
    place: str
    text: str
    input: str
    count: int = 1


class Fuzzer:
    def __init__(self, areas: list[Area], seed: int):
        self.areas, self.g = areas, random.Random(seed)
        self.coverage = Coverage()
        self.faults: dict[tuple[str, str, str], Fault] = {}

    def fuzz(self, inputs: int, told: Callable[[str], None] = lambda text: None) -> None:
        total = sum(a.share for a in self.areas)
        for area in self.areas:
            started, wanted = time.monotonic(), max(len(area.seeds), round(inputs * area.share / total))
            for data in area.seeds:
                self.one(area, data)
                area.corpus.append(data)
            while area.inputs < wanted:
                data = mutate(self.g.choice(area.corpus), self.g, area)[: 1 << 20]
                before = area.lines
                self.one(area, data)
                if area.lines > before:
                    area.corpus.append(data)
            told(f"{area.name}: {area.inputs} inputs, {area.refused} refused, {len(area.corpus)} kept, {time.monotonic() - started:.0f} s")

    def one(self, area: Area, data: bytes) -> None:
        area.inputs += 1
        before = len(self.coverage.seen)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        try:
            sys.settrace(self.coverage)
            area.run(data)
        except Hang as error:
            self._fault(area, data, error, f"no end within {HANG_SECONDS} s")
        except Exception as error:
            sys.settrace(None)
            sentence, code = _explain(error)
            if isinstance(error, Broken) or sentence is None or code not in (1, 2):
                self._fault(area, data, error, f"{type(error).__name__}: {error}")
            elif not sentence.strip() or "Traceback" in sentence:
                self._fault(area, data, error, f"{type(error).__name__} without a clear sentence: {sentence[:80]!r}")
            else:
                area.refused += 1
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            area.lines += len(self.coverage.seen) - before

    def _fault(self, area: Area, data: bytes, error: BaseException, text: str) -> None:
        ours = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(SOURCES)]
        place = f"{ours[-1].filename.removeprefix(SOURCES)}:{ours[-1].lineno}" if ours else "outside"
        key = (area.name, type(error).__name__, place if not isinstance(error, Broken) else str(error)[:40])
        if key in self.faults:
            self.faults[key].count += 1
        else:
            self.faults[key] = Fault(area.name, type(error).__name__, place, text[:300], repr(data[:400]))
