"""Areas of the fuzzer whose input lies in a folder that a verb works on: packs, archives, settings, and the command line itself."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sqlite3
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
from fuzzing.engine import ROOT, Area, check
from fuzzing.made import Made

from kernelwright import cli, loop, tune
from kernelwright.archive import Archive, ArchiveError
from kernelwright.cli import common
from kernelwright.evaluate import build, evaluator, pack_build
from kernelwright.problems import lint
from kernelwright.runtime import pack
from kernelwright.runtime.pack_format import _Stored, decode
from kernelwright.settings import settings, writable


class Started(ValueError):
    """What a stub raises in place of real work."""


def manifests(folder: Path, made: Made) -> Area:

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
    words = b'sources/|../|"rival"|builds/x|"format":1|"format":9|[]|null|1e999|"kernels"|device-cold|\xff'.split(b"|")
    return Area("pack manifests", 120, [text], words, run)


def _use(loaded: pack.Pack) -> None:
    loaded.info()
    loaded.times()
    loaded.unbuilt()
    for entry in loaded.entries:
        if not entry.rival:
            loaded.candidate(entry)


def pack_files(folder: Path, made: Made) -> Area:
    """Input: a list of [what, which file, which other, content]."""

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


def archives(folder: Path, made: Made) -> Area:

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
            check(len(archive) == before, "fewer Trials than were counted before the archive was closed")
            if stored:
                try:
                    check(archive.trial(extra.id) == extra, "a Trial that was appended is another")
                except ArchiveError as error:
                    # damage that was there before may hide it, but must be named
                    check("damaged" in str(error) or "cannot be used" in str(error), f"an appended Trial is lost: {error}")

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


def imports(folder: Path, made: Made) -> Area:

    archive = Archive(folder / "imports.db")
    for t in made.trials:
        archive.append(t)
    known = {t.id for t in made.trials}

    def run(data: bytes) -> None:
        suffix = (".jsonl", ".gz", ".xz")[data[0] % 3] if data else ".jsonl"
        path = folder / f"trials{suffix}"
        path.write_bytes(data[1:])
        found = archive.import_(path)
        check(all("\n" not in line and line for line in found.bad), "bad lines are named in one sentence each")
        check(all(archive.trial(i).id == i for i in known), "a Trial was lost by an import")

    lines = b"".join(t.to_json().encode() + b"\n" for t in made.trials)

    seeds = [b"\0" + lines, b"\1" + gzip.compress(lines), b"\2" + lzma.compress(lines), b"\0\n\n", b"\0" + lines[:900]]
    return Area("imports", 40, seeds, [b"\n", b"{}", b"null", b'{"workload":', b"\x1f\x8b", b"\xfd7zXZ\0", b"NaN"], run)


def environments(folder: Path) -> Area:
    variables = sorted(set(re.findall("KERNELWRIGHT_[A-Z_]*[A-Z]", (ROOT / "src" / "kernelwright" / "settings.py").read_text())))

    def run(data: bytes) -> None:
        env = json.loads(data)
        if not isinstance(env, dict):
            return
        found = settings({str(k): str(v) for k, v in env.items()})
        check(found.home.is_absolute() and found.archive.is_absolute(), "paths of the settings are absolute")
        if str(found.home).startswith(str(folder)) and len(str(found.home)) < 3000:
            writable(found.home)

    seeds = [json.dumps({name: "1"}).encode() for name in variables] + [
        json.dumps({"KERNELWRIGHT_HOME": str(folder / "h")}).encode(),
        b'{"XDG_CACHE_HOME": "~x"}',
    ]
    words = [name.encode() for name in variables] + [
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


def command_line(folder: Path, made: Made) -> Area:
    """Every verb in process, as `main` runs it. A judge, a compiler and a lint are stubbed where the verbs would start them."""

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
        check(code in (0, 1, 2), f"exit code {code}: {text[-200:]}")
        check("Traceback" not in text, f"a traceback: {text[-200:]}")
        check(code != 2 or bool(text.strip() or out.getvalue().strip()), f"exit code 2 without a word: {words}")
        if "--json" in words and out.getvalue().strip() and code != 0:
            json.loads(out.getvalue())
        with Archive(place / "home" / "archive.db") as archive:
            check(all(archive.trial(i).id == i for i in ids), "a Trial was lost")

    seeds = [json.dumps(v).encode() for v in VERBS] + [json.dumps([*v, "--json"]).encode() for v in VERBS[:18]]
    words = [w.encode() for v in VERBS for w in v]
    words += (
        b"--json|--target|cpu|cuda|cuda:sm_90|fake|--dtype|--layout|nt|--limit|--minutes|--seed|--rival|--mode|device-chain|"
        b"--out|--strict|--repair|--memory|-1|0|1e999|nan||--session|--no-time|--rounds|--help|--tolerance|--random|--proposer|"
        b"tpe|[bold]|[/x]|\xff|--format|hf-kernels|hgemm-1000-small|gemm:0x0x0"
    ).split(b"|")
    return Area("command line", 22, seeds, words, run, mutable=False)
