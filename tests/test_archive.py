from __future__ import annotations

import gzip
import io
import itertools
import lzma
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright import archive as module
from kernelwright.archive import MIGRATIONS, Archive, ArchiveError
from kernelwright.records import (
    Candidate,
    Comparison,
    Environment,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    TensorArg,
    Timing,
    Trial,
    Verdict,
    Workload,
)

W = Workload(problem="gemm", axes={"M": 4, "N": 8, "K": 2}, dtype="fp16", layout="nn")
ENV = Environment(target="fake", device="fake one")


def candidate(n: int, kind: Any = "fake", parents=()) -> Candidate:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="a"),)),)) if kind in ("cpu", "cuda") else None
    origin = Origin(kind="rival" if kind == "rival" else "script", name=f"s{n}", parents=parents)
    return Candidate(kind=kind, source=f"run {n}", plan=plan, origin=origin)


def trial(n: int = 0, median: float | None = 10.0, outcome=Outcome.OK, *, kind="fake", w=W, env=ENV, **fields) -> Trial:
    ok = outcome is Outcome.OK
    mode = fields.pop("mode", "device-cold")
    timing = Timing(mode=mode, samples=(median,), median=median, low=median, high=median) if ok and median else None
    return Trial(
        workload=w,
        candidate=fields.pop("candidate", candidate(n, kind)),
        verdict=Verdict(outcome=outcome, evidence="" if ok else "it failed"),
        environment=env,
        timings=(timing,) if timing else (),
        created=fields.pop("created", f"2026-01-01T00:00:{n:02}"),
        **fields,
    )


def test_a_trial_comes_back_as_it_was(tmp_path):
    one = trial(
        1,
        kind="cpu",
        comparisons=(
            Comparison(
                rival="eager",
                mode="device-cold",
                ratio=2.0,
                low=1.9,
                high=2.1,
                rival_us=20.0,
                noise_low=0.99,
                noise_high=1.01,
                rounds=9,
            ),
        ),
        sensors={"clock_mhz": 1980.0},
        session="s",
    )
    with Archive(tmp_path / "a.db") as archive:
        assert archive.append(one)
        assert not archive.append(one), "appending is idempotent"
    with Archive(tmp_path / "a.db") as archive:
        (back,) = archive.trials()
    assert back == one and back.id == one.id
    assert back.workload.name == "gemm:4x8x2:fp16:nn"


def test_one_source_of_two_origins_is_stored_once_and_each_trial_keeps_its_own(tmp_path):
    first, second = trial(1), trial(1, candidate=candidate(1, parents=("abc",)), created="later")
    assert first.candidate.id == second.candidate.id
    with Archive(tmp_path / "a.db") as archive:
        archive.append(first)
        archive.append(second)
        assert [t.candidate.origin for t in archive.trials()] == [first.candidate.origin, second.candidate.origin]
    db = sqlite3.connect(tmp_path / "a.db")
    assert db.execute("SELECT count(*) FROM candidates").fetchone() == (1,)
    db.close()


def test_queries(tmp_path):
    other = W.replace(dtype="bf16")
    rows = [
        trial(1, session="a"),
        trial(2, session="a", outcome=Outcome.WRONG_RESULT),
        trial(3, session="b", stage="confirm"),
        trial(4, session="b", w=other),
    ]
    with Archive(tmp_path / "a.db") as archive:
        for row in rows:
            archive.append(row)
        assert list(archive.trials()) == rows
        assert list(archive.trials(workload=other)) == rows[3:]
        assert list(archive.trials(session="a")) == rows[:2]
        assert list(archive.trials(stage="confirm")) == [rows[2]]
        assert list(archive.trials(outcome=Outcome.WRONG_RESULT)) == [rows[1]]
        assert list(archive.trials(workload=W, limit=2)) == rows[1:3]
        assert list(archive.trials(limit=100)) == rows and list(archive.trials(limit=0)) == []
        assert list(archive.trials(session="none", limit=3)) == []
        assert archive.counts() == {Outcome.OK: 3, Outcome.WRONG_RESULT: 1}
        assert archive.counts("b") == {Outcome.OK: 2}
        assert archive.workloads() == [other, W]
        assert [(s.name, s.trials) for s in archive.sessions()] == [("a", 2), ("b", 2)]
        assert archive.tried(W, "fake") == {r.candidate.id for r in rows[:3]}
        assert archive.tried(W, "fake", session="b") == {rows[2].candidate.id}
        assert archive.tried(W, "cpu") == archive.tried(W, "fake", device="other") == set()
        assert len(archive) == 4


def test_trials_pages_and_sees_appends_while_iterating(tmp_path):
    with Archive(tmp_path / "a.db") as archive:
        rows = [trial(n, created=str(n)) for n in range(450)]
        for row in rows[:-1]:
            archive.append(row)
        seen = []
        for found in archive.trials():
            if not seen:
                archive.append(rows[-1])
            seen.append(found.id)
        assert seen == [r.id for r in rows]


def test_best_prefers_confirmed_then_fast_and_drops_the_convicted(tmp_path):
    with Archive(tmp_path / "a.db") as archive:
        assert archive.best(W, "fake") is None
        lucky, solid, cheat, vendor = trial(1, 1.0), trial(2, 3.0, stage="confirm"), trial(3, 0.5, stage="confirm"), None
        for row in (lucky, solid, cheat):
            archive.append(row)
        assert archive.best(W, "fake") == cheat
        archive.append(trial(3, outcome=Outcome.CHEAT, stage="replay"))
        archive.append(trial(2, outcome=Outcome.NOISY, stage="replay"))
        assert archive.best(W, "fake") == solid
        vendor = trial(4, 2.0, kind="rival", stage="confirm")
        archive.append(vendor)
        assert archive.best(W, "fake") == vendor
        assert archive.best(W, "fake", own=True) == solid
        archive.append(trial(5, 0.1, stage="confirm", env=ENV.replace(device="fake two"), mode="device-warm"))
        assert archive.best(W, "fake", "fake one") == vendor
        assert archive.best(W, "fake", mode="device-cold") == vendor
        assert archive.best(W, "cuda:sm_90") is None


def test_trial_by_prefix(tmp_path):
    rows = [trial(n, created=str(n)) for n in range(40)]
    with Archive(tmp_path / "a.db") as archive:
        for row in rows:
            archive.append(row)
        assert archive.trial(rows[0].id) == rows[0]
        assert archive.trial(rows[5].id[:12]) == rows[5]
        ids = [r.id[0] for r in rows]
        with pytest.raises(ArchiveError, match="give more digits"):
            archive.trial(max(ids, key=ids.count))
        with pytest.raises(ArchiveError, match="no trial ffffffffffff"):
            archive.trial("ffffffffffff")
        for bad in ("", "xyz", "%"):
            with pytest.raises(ArchiveError, match="is not a trial id"):
                archive.trial(bad)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.jsonl.xz"])
def test_export_and_import(tmp_path, name):
    rows = [trial(n) for n in range(3)]
    with Archive(tmp_path / "a.db") as a:
        for row in rows:
            a.append(row)
        assert a.export(tmp_path / name) == 3
        first = (tmp_path / name).read_bytes()
        a.export(tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        stream = io.StringIO()
        assert a.export(stream, outcome=Outcome.OK, limit=1) == 1
        assert Trial.from_json(stream.getvalue()) == rows[-1]
    with Archive(tmp_path / "b.db") as b:
        b.append(rows[1])
        done = b.import_(tmp_path / name)
        assert (done.added, done.known, done.bad) == (2, 1, ())
        assert set(b.trials()) == set(rows)
    assert sorted(p.name for p in tmp_path.iterdir() if "partial" in p.name) == []


def test_import_keeps_the_good_lines_and_names_the_bad(tmp_path):
    good = trial(1).to_json()
    timed_failure = good.replace('"outcome":"OK"', '"outcome":"CHEAT"')
    (tmp_path / "x.jsonl").write_text(f'{good}\n\n{{"a": 1}}\nnot json\n{timed_failure}\n{trial(2).to_json()}\n')
    with Archive(tmp_path / "a.db") as archive:
        done = archive.import_(tmp_path / "x.jsonl")
        assert (done.added, len(archive)) == (2, 2)
    assert [line.split(" of ")[0] for line in done.bad] == ["line 3", "line 4", "line 5"]
    assert "must not carry a time" in done.bad[2] and all("\n" not in line for line in done.bad)


def test_import_of_a_torn_gzip_file_and_of_no_file(tmp_path):
    lines = "".join(trial(n, session=os.urandom(2000).hex()).to_json() + "\n" for n in range(50))
    whole = gzip.compress(lines.encode())
    (tmp_path / "x.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "y.gz").write_text("not gzip")
    (tmp_path / "z.xz").write_bytes(lzma.compress(lines.encode())[:-100])
    with Archive(tmp_path / "a.db") as archive:
        done = archive.import_(tmp_path / "x.gz")
        assert done.added > 5 and "is damaged after line" in done.bad[-1]
        assert "is damaged after line 0" in archive.import_(tmp_path / "y.gz").bad[0]
        assert "is damaged after line" in archive.import_(tmp_path / "z.xz").bad[-1]
        with pytest.raises(ArchiveError, match="cannot be read: No such file"):
            archive.import_(tmp_path / "none")
        with pytest.raises(ArchiveError, match="cannot be written"):
            archive.export(tmp_path / "no" / "folder.jsonl")


def test_nothing_can_be_changed(tmp_path):
    with Archive(tmp_path / "a.db") as archive:
        archive.append(trial())
    db = sqlite3.connect(tmp_path / "a.db")
    for table in ("trials", "candidates", "workloads", "environments"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET id = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)
    db.close()


def test_schema_1_is_migrated(tmp_path, monkeypatch):
    with monkeypatch.context() as old:
        old.setattr(module, "MIGRATIONS", MIGRATIONS[:1])
        with Archive(tmp_path / "a.db") as archive:
            archive.append(trial())
            with pytest.raises(ArchiveError):
                archive.best(W, "fake")  # it needs the columns of schema 2
    with Archive(tmp_path / "a.db") as archive:
        assert archive.best(W, "fake", "fake one") == trial()
        with monkeypatch.context() as old:
            old.setattr(module, "MIGRATIONS", MIGRATIONS[:1])
            with pytest.raises(ArchiveError, match=r"newer kernelwright \(schema 2, this one knows 1\); upgrade"):
                Archive(tmp_path / "a.db")


def test_a_failed_migration_changes_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(module, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE extra (x)", "NONSENSE")))
        with pytest.raises(ArchiveError, match="NONSENSE"):
            Archive(tmp_path / "a.db")
    with Archive(tmp_path / "a.db") as archive:
        assert archive.append(trial())


def test_foreign_and_damaged_files(tmp_path):
    (tmp_path / "text.db").write_text("This is no database at all. " * 100)
    with pytest.raises(ArchiveError, match="is not an SQLite file; move it away"):
        Archive(tmp_path / "text.db")
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE songs (name)")
    db.close()
    with pytest.raises(ArchiveError, match="another program's SQLite file"):
        Archive(tmp_path / "other.db")
    assert sqlite3.connect(tmp_path / "other.db").execute("PRAGMA journal_mode").fetchone() == ("delete",), "left as it was"
    with Archive(tmp_path / "torn.db") as archive:
        for n in range(60):
            archive.append(trial(n, session="x" * 3000))
    data = (tmp_path / "torn.db").read_bytes()
    (tmp_path / "torn.db").write_bytes(data[:8192] + b"\x55" * (len(data) - 8192))
    with pytest.raises(ArchiveError, match="is damaged; move it away"), Archive(tmp_path / "torn.db") as archive:
        list(archive.trials())


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="a file is in its way; set KERNELWRIGHT_ARCHIVE"):
        Archive(tmp_path / "file" / "a.db")
    with pytest.raises(ArchiveError, match="KERNELWRIGHT_ARCHIVE"):
        Archive("/proc/a.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(ArchiveError, match="cannot be opened"):
        Archive(tmp_path / "folder.db")


def test_a_full_disk_loses_nothing_stored(tmp_path):
    with Archive(tmp_path / "a.db") as archive:
        archive.append(trial(1))
        pages = archive._db.execute("PRAGMA page_count").fetchone()[0]
        archive._db.execute(f"PRAGMA max_page_count = {pages + 2}")  # SQLite reports the same error as for a full disk
        with pytest.raises(ArchiveError, match="the disk is full; make room"):
            for n in range(2, 50):
                archive.append(trial(n, session=os.urandom(4000).hex()))
        kept = len(archive)
        archive._db.execute("PRAGMA max_page_count = 100000")
        assert archive.append(trial(60)) and len(archive) == kept + 1


def test_a_locked_archive_is_told(tmp_path):
    with Archive(tmp_path / "a.db", timeout=0.05) as archive:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArchiveError, match="locked by another process; wait"):
            archive.append(trial())
        assert list(archive.trials()) == [], "readers are not held up"
        other.execute("COMMIT")
        other.close()
        assert archive.append(trial())


def test_a_forked_process_is_told_to_open_its_own(tmp_path, monkeypatch):
    with Archive(tmp_path / "a.db") as archive:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ArchiveError, match="must open its own"):
            archive.append(trial())


WRITER = """
import sys
from pathlib import Path
from typing import Any
sys.path.insert(0, {folder!r})
from test_archive import Archive, trial
with Archive({path!r}) as archive:
    for n in range({count}):
        one = trial(n, session={session!r}, created=str(n))
        assert archive.append(one)
        print(one.id, flush=True)
"""


def writer(path: Path, session: str, count: int, **popen) -> subprocess.Popen:
    code = WRITER.format(folder=str(Path(__file__).parent), path=str(path), session=session, count=count)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **popen)


def test_four_processes_write_at_once(tmp_path):
    writers = [writer(tmp_path / "a.db", f"w{n}", 50) for n in range(4)]  # all make the file, too
    said = [w.communicate(timeout=60)[0].split() for w in writers]
    assert [w.returncode for w in writers] == [0] * 4
    with Archive(tmp_path / "a.db") as archive:
        assert sorted(t.id for t in archive.trials()) == sorted(line for lines in said for line in lines)
        assert [s.trials for s in archive.sessions()] == [50] * 4


def write_until_killed(path: Path, session: str, pipe: int) -> None:
    with Archive(path) as archive:
        for n in itertools.count():
            one = trial(n, session=session, created=str(n))
            archive.append(one)
            os.write(pipe, f"{one.id}\n".encode())


def kill_twenty_times(path: Path) -> None:
    """Forks a writer and kills it at a random moment, twenty times; prints a line for each: ids that append() returned from."""
    rng = random.Random(7)
    Archive(path).close()
    for moment in range(20):
        read, write = os.pipe()
        if not (child := os.fork()):
            write_until_killed(path, f"run {moment}", write)
        os.close(write)
        time.sleep(rng.uniform(0.001, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read) as lines:
            print(*(line.strip() for line in lines if line.endswith("\n")))


def test_kill_9_at_twenty_moments_loses_and_doubles_nothing(tmp_path):
    path = tmp_path / "a.db"
    # a process of its own, without threads, so that it may fork
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_archive; test_archive.kill_twenty_times({str(path)!r})"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    promised = [line.split() for line in said.split("\n")[:20]]
    assert sum(map(len, promised)) > 20
    with Archive(path) as archive:
        for moment, ids in enumerate(promised):
            stored = [t.id for t in archive.trials(session=f"run {moment}")]
            assert stored[: len(ids)] == ids, "append() returned, so it must be there, once and in order"
            assert len(stored) <= len(ids) + 1, "at most one Trial was stored and not announced"
        assert not any(archive.append(t) for t in list(archive.trials())), "resume doubles nothing"
        assert archive._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
