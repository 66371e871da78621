"""Malformed input of every kind that kernelwright reads: no traceback, no hang, one clear sentence, no lost Trial.

    python benchmarks/fuzz.py [--inputs 100000] [--seed 0] [--area cli] [--out results/fuzz]

A loop of mutations guided by the coverage of kernelwright's own lines (`sys.settrace`): an input that runs a line no other ran is kept and
mutated further. JSON is mutated as a tree, everything else as bytes with the words of its area. The same seed gives the same inputs. What
the command line's verbs would start in earnest (a judge, a compiler) is stubbed; what decides whether to start it is not.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import resource
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SOURCES = str(ROOT / "src" / "kernelwright") + os.sep
HANG_SECONDS = 20
"""Wall-clock time of one input; all areas need milliseconds."""
MEMORY = 8 << 30
"""Address space of the process: a mutated size must be refused, not let the machine swap."""


class Hang(BaseException):
    """Not an Exception: nothing that is fuzzed may catch it."""


class Broken(AssertionError):
    """An invariant that does not hold; the message says which."""


class Started(ValueError):
    """What a stub raises in place of real work."""


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
        self.fresh = 0

    def _line(self, frame: Any, event: str, arg: object) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self.fresh += 1
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
                before = self.coverage.fresh
                self.one(area, data)
                if self.coverage.fresh > before:
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
            from kernelwright.cli.common import _explain

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


# ----------------------------------------------------------------------------------------------------------------- areas


def areas(folder: Path) -> list[Area]:
    """All of them; files are written in `folder`."""
    made = _made(folder)
    return [
        _records(folder, made),
        _plans(made),
        _candidates(folder, made),
        _problem_texts(),
        _problem_files(folder),
        _manifests(folder, made),
        _pack_files(folder, made),
        _archives(folder, made),
        _imports(folder, made),
        _environments(folder),
        _command_line(folder, made),
    ]


@dataclass
class _Made:
    """Sound things to start from."""

    trials: list[Any]
    pack: Path
    archive: Path


def _made(folder: Path) -> _Made:
    from kernelwright.archive import Archive
    from kernelwright.problems import resolve
    from kernelwright.records import (
        Candidate,
        Comparison,
        Environment,
        Launch,
        LaunchPlan,
        Origin,
        Outcome,
        ScalarArg,
        TensorArg,
        TensorMapArg,
        Timing,
        Trial,
        Verdict,
        WorkspaceArg,
    )
    from kernelwright.runtime import pack

    plan = LaunchPlan(
        launches=(
            Launch(
                kernel="k",
                grid=("cdiv(N, 128)", "M", 1),
                block=(128, 1, 1),
                smem="min(K * 4, 49152)",
                args=(
                    TensorArg(name="a"),
                    ScalarArg(ctype="i64", value="ld_a"),
                    WorkspaceArg(offset="M * 4"),
                    TensorMapArg(name="b", dims=("N", "K"), strides=("ld_b * 2",), box=(64, 64), swizzle="128B"),
                ),
            ),
        ),
        workspace="M * N * 4",
        requires=("K % 8 == 0 and M > 0", "align_a >= 16"),
    )
    environment = Environment(target="fake", device="scripted device", versions={"torch": "2"}, facts={"threads": 1})
    timing = Timing(mode="device-warm", samples=(10.0, 10.5, 9.9), median=10.0, low=9.9, high=10.5)
    against = Comparison(
        rival="eager", mode="device-warm", ratio=2.0, low=1.9, high=2.1, rival_us=20.0, noise_low=0.99, noise_high=1.01, rounds=9
    )
    trials = []
    for i, problem in enumerate(("gemm:64x64x64:fp32", "linear:64x64x64:fp16:bias+gelu", "chain:softmax:8x64:fp32")):
        candidate = Candidate(
            kind="cpu", source=f'// {i}\nextern "C" void k() {{}}\n', plan=plan, origin=Origin(kind="family", name="f", config={"x": 1})
        )
        trials.append(
            Trial(
                workload=resolve(problem),
                candidate=candidate,
                verdict=Verdict(outcome=Outcome.OK, evidence="made up"),
                environment=environment,
                timings=(timing,),
                comparisons=(against,),
                stage="confirm",
                session="s",
                created=f"2026-01-01T00:00:0{i}+00:00",
            )
        )
    pack.save(folder / "pack", trials)
    path = folder / "archive.db"
    with Archive(path) as archive:
        for t in trials:
            archive.append(t)
    with sqlite3.connect(path) as db:  # into one file: its log is a file of its own
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    return _Made(trials, folder / "pack", path)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def _records(folder: Path, made: _Made) -> Area:
    from kernelwright.archive import Archive
    from kernelwright.problems import problem_of
    from kernelwright.records import Candidate, Trial, Workload
    from kernelwright.report import tables

    archive = Archive(folder / "records.db")

    def run(data: bytes) -> None:
        kind = {0: Trial, 1: Workload, 2: Candidate}[len(data) % 5 if len(data) % 5 < 3 else 0]
        record = kind.from_json(data)
        _check(kind.from_json(record.to_json()) == record, "a record that was read is another after it was written")
        _check(len(record.id) == 16, "an id of 16 digits")
        w = record if isinstance(record, Workload) else getattr(record, "workload", None)
        if w is not None and not w.source:
            problem = problem_of(w)
            problem.tensors(w), problem.cases(w), problem.cost(w), problem.bound(w), problem.variants(w)
        if isinstance(record, Trial):
            archive.append(record)
            tables.result_table([record])
            _check(archive.trial(record.id) == record, "a Trial that was appended is not the one that is there")

    seeds = [t.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    seeds += [t.workload.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    seeds += [t.candidate.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    words = [b'"axes"', b'"OK"', b"NaN", b"1e999", b"\\ud800", b"null", b"[", b"}", b"fp16", b'"tensor"', b"WRONG_RESULT", b"-1", b"screen"]
    return Area("records", 220, seeds, words, run)


def _plans(made: _Made) -> Area:
    import msgspec

    from kernelwright.plan import Names, evaluate, unmet
    from kernelwright.records import LaunchPlan

    names = Names({"M": 64, "N": 48, "K": 0, "ld_a": 64, "numel_a": 2**40, "align_a": 16, "sms": 132, "rows": 3, "cols": 5, "ld_b": 8})

    def run(data: bytes) -> None:
        if data[:1] not in b"{[":
            text = data.decode("utf-8", "replace")
            value = evaluate(text, names)
            _check(type(value) is int and evaluate(text, names) == value, "an expression is one whole number")
            return
        plan = msgspec.json.decode(data, type=LaunchPlan)
        unmet(plan, names)
        for launch in plan.launches:
            for expr in (*launch.grid, *launch.block, launch.smem, plan.workspace):
                evaluate(expr, names)

    expressions = [
        b"cdiv(M, 128) * (N + K)",
        b"M % 8 == 0 and not K",
        b"min(M, N, 4) << 2",
        b"max(1, K) // 3 - -2",
        b"1 if M else 2",
        b"M ** 9",
    ]
    words = [
        b"M",
        b"N",
        b"K",
        b"(",
        b")",
        b" // ",
        b" % ",
        b" << ",
        b"cdiv(",
        b"min(",
        b", ",
        b"not ",
        b" and ",
        b"9" * 30,
        b"lambda:0",
        b"-" * 99,
        b"(" * 90,
        b"\n",
        b"0x",
        b"f'{M}'",
        b"await M",
        b"[M]",
        b"M.x",
        b"*M",
        b"1e9",
        b":=",
        b"x" * 300,
    ]
    return Area("plans", 220, [*expressions, made.trials[0].candidate.plan.to_json().encode()], words, run)


def _candidates(folder: Path, made: _Made) -> Area:
    from kernelwright.candidate_file import load
    from kernelwright.families.family import DeviceFacts

    w = made.trials[0].workload
    facts = DeviceFacts(target="cpu", name="x", sms=1, smem_per_block=0)

    def run(data: bytes) -> None:
        suffix, _, content = data.partition(b"\n")
        path = folder / ("candidate" + {b".cu": ".cu", b".cpp": ".cpp", b".py": ".py", b".json": ".json"}.get(suffix, ".txt"))
        path.write_bytes(content)
        found = load(path, w, "cuda:sm_90" if suffix == b".cu" else "cpu", facts)
        _check(found.from_json(found.to_json()) == found, "a candidate that was read is another after it was written")

    examples = [f".{f.suffix[1:]}\n".encode() + f.read_bytes() for f in sorted((ROOT / "examples").glob("matmul.*"))]
    seeds = [
        *examples,
        b".json\n" + made.trials[0].candidate.to_json().encode(),
        b".py\nclass ModelNew: pass\n",
        b".cu\n/* kernelwright-plan {} */",
    ]
    words = [
        b"/* kernelwright-plan",
        b"*/",
        b"{",
        b"}",
        b'"launches"',
        b'"args"',
        b"\xff\xfe",
        b"\0",
        b'"kind": "cuda"',
        b".json\n",
        b".cu\n",
        b"[[[[[[",
    ]
    return Area("candidate files", 160, seeds, words, run)


def _problem_texts() -> Area:
    from kernelwright.problems import resolve

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if text.split(":")[0].endswith(".py"):
            return  # files are an area of their own
        w = resolve(text)
        _check(resolve(w.name) == w, "the name of a Workload does not lead back to it")

    seeds = [
        b"gemm:512x512x512:fp16:nn",
        b"gemm:1x2x3:fp16:tt:acc=fp16",
        b"linear:64x64x64:bias+gelu",
        b"linear:8x8x8:bf16:alpha=2+beta=0.5+residual",
        b"chain:softmax:1024x1024:fp32",
        b"chain:rotary:4x8",
        b"gemm",
        b"x/y.py",
    ]
    words = [
        b":",
        b"x",
        b"gemm",
        b"linear",
        b"chain",
        b"fp16",
        b"bf16",
        b"fp32",
        b"nn",
        b"acc=",
        b"+",
        b"gelu",
        b"alpha=",
        b"beta=",
        b"1e400",
        b"inf",
        b"nan",
        b"0",
        b"-1",
        b"99999999999999999999",
        "٣".encode(),
        "²".encode(),
        b" ",
        b"\0",
        b"softmax",
        b"kernelbench",
        b"residual",
    ]
    return Area("problem texts", 120, seeds, words, run)


PROBLEM_FILE = b"""import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
    def forward(self, x, y):
        return torch.tanh(x * self.weight) + y
rows, cols = 4, 16
def get_inputs():
    return [torch.randn(rows, cols), torch.rand(rows, cols)]
def get_init_inputs():
    return [cols]
"""


def _problem_files(folder: Path) -> Area:
    import torch

    from kernelwright.problems import problem_of
    from kernelwright.problems.kernelbench import load
    from kernelwright.problems.shrink import constants

    path = folder / "fuzzed.py"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w = load(path)
            constants(w.source)
            problem = problem_of(w)
            inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
            problem.reference(w, inputs)

    words = [
        b"return ",
        b"[]",
        b"None",
        b"x",
        b"y",
        b"self",
        b"torch",
        b"\n",
        b"    ",
        b"(",
        b")",
        b",",
        b"0",
        b"-1",
        b"999",
        b"raise SystemExit",
        b"yield x",
        b"n, n",
        b".long()",
        b".sum()",
        b".bool()",
        b"[0]",
        b"lambda: 0",
        b"Model",
        b"get_inputs",
        b"1/0",
        b"*",
        b"@",
    ]
    return Area("problem files", 12, [PROBLEM_FILE], words, run)


def _manifests(folder: Path, made: _Made) -> Area:
    from kernelwright.runtime import pack
    from kernelwright.runtime.pack_format import _Stored, decode

    home = folder / "pack-manifest"
    shutil.copytree(made.pack, home)

    def run(data: bytes) -> None:
        with contextlib.suppress(ValueError):  # a right checksum, so that what comes after it is met too
            stored = _Stored.from_json(data)
            data = stored.replace(checksum=stored.digest()).text()
        decode(data, home)
        (home / "manifest.json").write_bytes(data)
        _use(pack.load(home))

    text = (made.pack / "manifest.json").read_bytes()
    words = [
        b"sources/",
        b"../",
        b'"rival"',
        b"builds/x",
        b'"format":1',
        b'"format":9',
        b"[]",
        b"null",
        b"1e999",
        b'"kernels"',
        b"device-cold",
        b"\xff",
    ]
    return Area("pack manifests", 120, [text], words, run)


def _use(loaded: Any) -> None:
    loaded.info()
    loaded.times()
    loaded.unbuilt()
    for entry in loaded.entries:
        if not entry.rival:
            loaded.candidate(entry)


def _pack_files(folder: Path, made: _Made) -> Area:
    """Input: a list of [what, which file, which other, content]."""
    from kernelwright.runtime import pack

    home = folder / "pack-files"

    def run(data: bytes) -> None:
        steps = json.loads(data)
        if not isinstance(steps, list):
            return
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(made.pack, home)
        files = sorted(p for p in home.rglob("*") if p.is_file())
        for step in steps[:4]:
            if not (isinstance(step, list) and len(step) == 4 and all(isinstance(i, int) for i in step[1:3])):
                continue
            one, other = (files[i % len(files)] for i in step[1:3])
            content = str(step[3]).encode("utf-8", "surrogatepass")
            with contextlib.suppress(OSError):
                match step[0]:
                    case "remove":
                        one.unlink()
                    case "swap":
                        first, second = one.read_bytes(), other.read_bytes()
                        one.write_bytes(second), other.write_bytes(first)
                    case "write":
                        one.write_bytes(content)
                    case "cut":
                        one.write_bytes(one.read_bytes()[: step[2] % 4096])
                    case "folder":
                        one.unlink()
                        one.mkdir()
                    case "times":
                        (home / "times.json").write_bytes(content)
        _use(pack.load(home))

    kinds = ["remove", "swap", "write", "cut", "folder", "times"]
    seeds = [json.dumps([[kind, i, i + 1, "{}"]]).encode() for kind in kinds for i in range(3)] + [b"[]"]
    return Area("pack files", 30, seeds, [k.encode() for k in kinds], run, mutable=False)


def _archives(folder: Path, made: _Made) -> Area:
    from kernelwright.archive import Archive, ArchiveError

    path = folder / "fuzzed.db"
    extra = made.trials[0].replace(session="added")

    def run(data: bytes) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(data)
        with Archive(path, timeout=0.2) as archive:
            archive.counts(), archive.sessions(), archive.workloads(), list(archive.trials())
            archive.best(extra.workload, "fake")
            stored = archive.append(extra)
            before = len(archive)
        with Archive(path, timeout=0.2) as archive:
            _check(len(archive) == before, "fewer Trials than were counted before the archive was closed")
            if stored:
                try:
                    _check(archive.trial(extra.id) == extra, "a Trial that was appended is another")
                except ArchiveError as error:
                    # damage that was there before may hide it, but must be named
                    _check("damaged" in str(error) or "cannot be used" in str(error), f"an appended Trial is lost: {error}")

    whole = made.archive.read_bytes()
    foreign = folder / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE trials (id TEXT)")
    other = folder / "newer.db"
    shutil.copy(made.archive, other)
    with sqlite3.connect(other) as db:
        db.execute("PRAGMA user_version = 99")
    dropped = folder / "dropped.db"
    shutil.copy(made.archive, dropped)
    with sqlite3.connect(dropped) as db:
        db.execute("DROP TABLE candidates")
    strange = folder / "strange.db"
    shutil.copy(made.archive, strange)
    with sqlite3.connect(strange) as db:
        db.executescript("DROP TRIGGER trials_no_update; UPDATE trials SET rest = '[]', outcome = 'x'")
    seeds = [
        whole,
        whole[: len(whole) // 2],
        b"",
        b"SQLite format 3\0" + b"\0" * 84,
        *(p.read_bytes() for p in (foreign, other, dropped, strange)),
    ]
    words = [b"SQLite format 3\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"CREATE TABLE", b"trials", b"{}", b"null", b'"OK"']
    return Area("archives", 40, seeds, words, run)


def _imports(folder: Path, made: _Made) -> Area:
    from kernelwright.archive import Archive

    archive = Archive(folder / "imports.db")
    for t in made.trials:
        archive.append(t)
    known = {t.id for t in made.trials}

    def run(data: bytes) -> None:
        suffix = (".jsonl", ".gz", ".xz")[data[0] % 3] if data else ".jsonl"
        path = folder / f"trials{suffix}"
        path.write_bytes(data[1:])
        found = archive.import_(path)
        _check(all("\n" not in line and line for line in found.bad), "bad lines are named in one sentence each")
        _check(all(archive.trial(i).id == i for i in known), "a Trial was lost by an import")

    lines = b"".join(t.to_json().encode() + b"\n" for t in made.trials)
    import lzma

    seeds = [b"\0" + lines, b"\1" + gzip.compress(lines), b"\2" + lzma.compress(lines), b"\0\n\n", b"\0" + lines[:900]]
    return Area("imports", 40, seeds, [b"\n", b"{}", b"null", b'{"workload":', b"\x1f\x8b", b"\xfd7zXZ\0", b"NaN"], run)


def _environments(folder: Path) -> Area:
    from kernelwright.settings import VARIABLES, settings, writable

    def run(data: bytes) -> None:
        env = json.loads(data)
        if not isinstance(env, dict):
            return
        found = settings({str(k): str(v) for k, v in env.items()})
        _check(found.home.is_absolute() and found.archive.is_absolute(), "paths of the settings are absolute")
        if str(found.home).startswith(str(folder)) and len(str(found.home)) < 3000:
            writable(found.home)

    seeds = [json.dumps({v.name: "1"}).encode() for v in VARIABLES] + [
        json.dumps({"KERNELWRIGHT_HOME": str(folder / "h")}).encode(),
        b'{"XDG_CACHE_HOME": "~x"}',
    ]
    words = [v.name.encode() for v in VARIABLES] + [
        b"~nobody/x",
        b"~",
        b"\0",
        b"1e3",
        b"-1",
        b"inf",
        b"nan",
        str(folder / "h").encode(),
        b"0",
        b"1",
        "³".encode(),
    ]
    return Area("environment", 60, seeds, words, run, mutable=False)


VERBS = (
    ["doctor"],
    ["optimize", "gemm:8x8x8:fp32", "--target", "fake"],
    ["tune", "chains", "--minutes", "1"],
    ["bench", "llm-shapes", "--limit", "2"],
    ["verify", "candidate.cpp", "--problem", "gemm:8x8x8:fp32"],
    ["lint", "chain:softmax:8x64"],
    ["report", "--out", "reports"],
    ["replay", "0"],
    ["pack", "save", "p", "chains"],
    ["pack", "info", "pack"],
    ["pack", "times", "pack"],
    ["pack", "build", "pack"],
    ["pack", "merge", "pack", "--out", "m"],
    ["pack", "export", "pack", "e", "--format", "sources"],
    ["pack", "verify", "pack", "--limit", "1"],
    ["archive", "info"],
    ["archive", "export", "x.jsonl.gz"],
    ["archive", "import", "trials.jsonl"],
    ["--help"],
    ["pack", "--help"],
)


def _command_line(folder: Path, made: _Made) -> Area:
    """Every verb in process, as `main` runs it. A judge, a compiler and a lint are stubbed where the verbs would start them."""
    import typer.main

    from kernelwright import cli, loop, tune
    from kernelwright.archive import Archive
    from kernelwright.cli import common
    from kernelwright.evaluate import build, evaluator, pack_build
    from kernelwright.problems import lint

    def started(*args: object, **kwargs: object) -> Any:
        raise Started("the request is right; what it asks for is not done here")

    stubbed = (
        (loop, "Evaluator"),
        (tune, "Evaluator"),
        (evaluator, "Evaluator"),
        (build, "build"),
        (pack_build, "build_pack"),
        (lint, "lint"),
    )
    place = folder / "work"
    place.mkdir()
    shutil.copytree(made.pack, place / "pack")
    (place / "trials.jsonl").write_text("".join(t.to_json() + "\n" for t in made.trials))
    (place / "candidate.cpp").write_text("// none\n")
    os.environ["KERNELWRIGHT_HOME"] = str(place / "home")
    with Archive(place / "home" / "archive.db") as archive:
        for t in made.trials:
            archive.append(t)
    ids = {t.id for t in made.trials}
    command = typer.main.get_command(cli.app)

    def run(data: bytes) -> None:
        words = json.loads(data)
        if not isinstance(words, list):
            words = [words]
        words = [str(w)[:4000] for w in words[:12]]
        if any(w.startswith(("/", "~")) or ".." in w for w in words):
            return  # nothing is written outside of the folder
        out, err = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, ["kernelwright", *words]
        code: object = None
        os.chdir(place)
        try:
            with contextlib.ExitStack() as stack:
                for context in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings()):
                    stack.enter_context(context)
                for module, name in stubbed:
                    stack.enter_context(mock.patch.object(module, name, started))
                warnings.simplefilter("ignore")
                common.run(command)  # pyright: ignore[reportArgumentType]: an app builds this command on every call, 0.3 s
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv = before
            os.chdir(folder)
        text = err.getvalue()
        _check(code in (0, 1, 2), f"exit code {code}: {text[-200:]}")
        _check("Traceback" not in text, f"a traceback: {text[-200:]}")
        _check(code != 2 or bool(text.strip() or out.getvalue().strip()), f"exit code 2 without a word: {words}")
        if "--json" in words and out.getvalue().strip() and code != 0:
            json.loads(out.getvalue())
        with Archive(place / "home" / "archive.db") as archive:
            _check(all(archive.trial(i).id == i for i in ids), "a Trial was lost")

    seeds = [json.dumps(v).encode() for v in VERBS] + [json.dumps([*v, "--json"]).encode() for v in VERBS[:18]]
    words = [w.encode() for v in VERBS for w in v]
    words += [
        b"--json",
        b"--target",
        b"cpu",
        b"cuda",
        b"cuda:sm_90",
        b"fake",
        b"--dtype",
        b"--layout",
        b"nt",
        b"--limit",
        b"--minutes",
        b"--seed",
        b"--rival",
        b"--mode",
        b"device-chain",
        b"--out",
        b"--strict",
        b"--repair",
        b"--memory",
        b"-1",
        b"0",
        b"1e999",
        b"nan",
        b"",
        b"--session",
        b"--no-time",
        b"--rounds",
        b"--help",
        b"--tolerance",
        b"--random",
        b"--proposer",
        b"tpe",
        b"[bold]",
        b"[/x]",
        b"\xff",
        b"--format",
        b"hf-kernels",
        b"hgemm-1000-small",
        b"gemm:0x0x0",
    ]
    return Area("command line", 22, seeds, words, run, mutable=False)


# ------------------------------------------------------------------------------------------------------------------ main


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", action="append", help="only this one; may be given several times")
    parser.add_argument("--out", type=Path, default=None, help="folder of summary.json")
    a = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SyntaxWarning)
    started = time.monotonic()
    with prepared() as folder:
        chosen = [x for x in areas(folder) if not a.area or x.name in a.area]
        fuzzer = Fuzzer(chosen, a.seed)
        fuzzer.fuzz(a.inputs, lambda text: print(text, flush=True))
    faults = sorted(fuzzer.faults.values(), key=lambda f: -f.count)
    for f in faults:
        print(f"FAULT {f.count} x {f.area}, {f.kind} at {f.place}: {f.text}\n      {f.input}")
    summary = {
        "command": shlex.join(["python", "benchmarks/fuzz.py", *sys.argv[1:]]),
        "engine": "mutations guided by line coverage (sys.settrace)",
        "seed": a.seed,
        "python": sys.version.split()[0],
        "inputs": sum(x.inputs for x in chosen),
        "refused": sum(x.refused for x in chosen),
        "lines_covered": len(fuzzer.coverage.seen),
        "areas": {x.name: {"inputs": x.inputs, "refused": x.refused, "kept": len(x.corpus), "new_lines": x.lines} for x in chosen},
        "faults": [vars(f) for f in faults],
        "seconds": round(time.monotonic() - started, 1),
    }
    if a.out is not None:
        a.out.mkdir(parents=True, exist_ok=True)
        (a.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{summary['inputs']} inputs, {len(faults)} faults, {summary['seconds']:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
