"""The Archive: every Trial ever made, in one SQLite file. Append-only; several processes may read and write it at once.

Each `append` is one transaction in write-ahead-log mode with `synchronous=NORMAL`: once it returned, the Trial survives the
death of the process (kill -9, a crash, Ctrl-C). A power cut may lose the last few transactions, but never damages the file.
What it does NOT protect against: network file systems without POSIX locks (put the file on a local disk), and a second machine.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from kernelwright.records import Outcome, Trial, Workload
from kernelwright.settings import SettingsError, writable

APPLICATION_ID = 0x6B77_6172  # "kwar": tells our files from other programs' SQLite files

_REFUSE_CHANGES = tuple(
    f"""CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table}
        BEGIN SELECT RAISE(ABORT, 'the archive is append-only'); END"""
    for table in ("workloads", "candidates", "environments", "trials")
    for change in ("UPDATE", "DELETE")
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: the records, each stored once under its id; what a Trial alone has is in trials.rest.
    (
        "CREATE TABLE workloads (id TEXT PRIMARY KEY, name TEXT NOT NULL, json TEXT NOT NULL) WITHOUT ROWID",
        # source is zlib-compressed UTF-8: 40,000 kernels of 15 KB are 600 MB as text and about 120 MB so
        "CREATE TABLE candidates (id TEXT PRIMARY KEY, kind TEXT NOT NULL, json TEXT NOT NULL, source BLOB NOT NULL)",
        "CREATE TABLE environments (id TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE trials (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            workload TEXT NOT NULL REFERENCES workloads (id),
            candidate TEXT NOT NULL REFERENCES candidates (id),
            environment TEXT NOT NULL REFERENCES environments (id),
            outcome TEXT NOT NULL,
            stage TEXT NOT NULL,
            session TEXT NOT NULL,
            created TEXT NOT NULL,
            mode TEXT,    -- of the first timing, as are median and ratio
            median REAL,  -- microseconds
            ratio REAL,   -- against the strongest rival beside it
            rest TEXT NOT NULL
        )""",
        "CREATE INDEX trials_by_workload ON trials (workload, outcome)",
        "CREATE INDEX trials_by_session ON trials (session)",
        *_REFUSE_CHANGES,
    ),
    # 2: target and device as columns, so that best() and tried() need not open every environment.
    (
        "ALTER TABLE environments ADD COLUMN target TEXT GENERATED ALWAYS AS (json_extract(json, '$.target')) VIRTUAL",
        "ALTER TABLE environments ADD COLUMN device TEXT GENERATED ALWAYS AS (json_extract(json, '$.device')) VIRTUAL",
    ),
)


def compressing(raw: IO[bytes], suffix: str) -> Any:
    """Compresses what is written to it as the suffix of the file's name says; the same Trials give the same bytes.

    `.gz` is read everywhere, but it sees repetitions over 32 KB only, and a Trial with its source is longer: of 300 Trials with 24 sources
    it leaves 3.2 MB, `.xz` 0.06 MB."""
    if suffix == ".xz":
        return lzma.LZMAFile(raw, "wb")
    return gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if suffix == ".gz" else raw


def reading(path: Path) -> IO[bytes]:
    """The lines that `compressing` wrote, by the suffix of the file's name."""
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # pyright: ignore[reportReturnType]


class ArchiveError(RuntimeError):
    """The archive cannot be used; the message is one sentence with the fix."""


@dataclass(frozen=True)
class Session:
    """The Trials of one run."""

    name: str
    trials: int
    first: str
    last: str
    """`created` of the first and last Trial."""


@dataclass(frozen=True)
class Imported:
    added: int
    known: int
    """Trials that were there already."""
    bad: tuple[str, ...]
    """One sentence for each line that was left out, with its number."""


class Archive:
    """Opens the file, makes or migrates it where needed. Raises ArchiveError, as every method does.

    >>> with Archive(settings().archive) as archive:
    ...     archive.append(trial)
    ...     fastest = archive.best(trial.workload, "cpu")

    One Archive may be used by several threads; another process opens its own.
    """

    def __init__(self, path: str | Path, *, timeout: float = 30.0):
        """`timeout`: seconds to wait while another process writes."""
        self.path = Path(path)
        self._process = os.getpid()
        self._lock = threading.RLock()
        try:
            writable(self.path.parent, "KERNELWRIGHT_ARCHIVE")
        except SettingsError as error:
            raise ArchiveError(f"the archive {self.path} cannot be opened: {error}") from None
        with self._explain():
            self._db = sqlite3.connect(self.path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            with self._explain():
                self._prepare(timeout)
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------------------------------------------------- writing

    def append(self, trial: Trial) -> bool:
        """Stores a Trial durably; False if it was there already."""
        row = _row(trial)
        with self._transaction():
            return self._insert(trial, row)

    def _insert(self, trial: Trial, row: dict[str, Any]) -> bool:
        if self._db.execute("SELECT 1 FROM trials WHERE id = ?", (row["id"],)).fetchone():
            return False
        w, c, e = trial.workload, trial.candidate, trial.environment
        ignore = "INSERT OR IGNORE INTO"
        self._db.execute(f"{ignore} workloads (id, name, json) VALUES (?, ?, ?)", (row["workload"], w.name, w.to_json()))
        if not self._db.execute("SELECT 1 FROM candidates WHERE id = ?", (row["candidate"],)).fetchone():
            content = msgspec.to_builtins(c)
            source = zlib.compress(content.pop("source").encode())
            del content["origin"]  # not part of the identity: each Trial keeps its own
            values = (row["candidate"], c.kind, msgspec.json.encode(content).decode(), source)
            self._db.execute("INSERT INTO candidates (id, kind, json, source) VALUES (?, ?, ?, ?)", values)
        self._db.execute(f"{ignore} environments (id, json) VALUES (?, ?)", (row["environment"], e.to_json()))
        names = ", ".join(row)
        self._db.execute(f"INSERT INTO trials ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        return True

    def import_(self, path: str | Path) -> Imported:
        """Adds the Trials of a file that `export` wrote: JSON lines, compressed if it ends in `.gz` or `.xz`. Bad lines are left out."""
        path = Path(path)
        added = known = 0
        bad: list[str] = []
        number = 0
        try:
            with reading(path) as lines:
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        trial = Trial.from_json(line)
                    except (msgspec.DecodeError, ValueError) as error:
                        why = " ".join(str(error).split())  # it may quote what stands in the line
                        bad.append(f"line {number} of {path} is not a trial: {why}")
                        continue
                    if self.append(trial):
                        added += 1
                    else:
                        known += 1
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            bad.append(f"{path} is damaged after line {number}: {error}")
        except OSError as error:
            raise ArchiveError(f"{path} cannot be read: {error.strerror or error}") from None
        return Imported(added, known, tuple(bad))

    # ------------------------------------------------------------------------------------------------------- reading

    def trials(
        self,
        workload: Workload | None = None,
        session: str | None = None,
        stage: str | None = None,
        outcome: Outcome | str | None = None,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Trials in the order they were appended; with `limit` the newest so many. Trials may be appended while iterating."""
        wanted = {"workload": workload and workload.id, "session": session, "stage": stage, "outcome": outcome and str(outcome)}
        conditions = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join([f"t.{column} = ?" for column in conditions] or ["1"])
        values = tuple(conditions.values())
        after = 0
        if limit is not None:
            if limit < 1:
                return
            first = f"SELECT min(number) FROM (SELECT number FROM trials t WHERE {where} ORDER BY number DESC LIMIT ?)"
            after = (self._rows(first, (*values, limit))[0][0] or 1) - 1
        page = f"{_SELECT} WHERE {where} AND t.number > ? ORDER BY t.number LIMIT 200"
        while rows := self._rows(page, (*values, after)):
            with self._explain():
                found = [_trial(*row[1:]) for row in rows]
            yield from found
            after = rows[-1][0]

    def trial(self, id_prefix: str) -> Trial:
        """The one Trial whose id starts so."""
        if not id_prefix or set(id_prefix) - set("0123456789abcdef"):
            raise ArchiveError(f"{id_prefix!r} is not a trial id; an id is up to 16 hex digits")
        rows = self._rows(f"{_SELECT} WHERE t.id BETWEEN ? AND ? LIMIT 2", (id_prefix, id_prefix + "g"))
        if not rows:
            raise ArchiveError(f"no trial {id_prefix} in {self.path}")
        if len(rows) > 1:
            raise ArchiveError(f"several trials start with {id_prefix}; give more digits")
        with self._explain():
            return _trial(*rows[0][1:])

    def best(
        self, workload: Workload, target: str, device: str | None = None, *, mode: str | None = None, own: bool = False
    ) -> Trial | None:
        """The fastest right Candidate: confirmed ones before screened ones, then the lower median.

        `device` narrows to one GPU model (an H100 and an H200 are both sm_90), `mode` to one timing mode (else that of
        the newest Trial), `own=True` leaves out rivals. A Candidate that ever failed there otherwise than by noise is out.
        """
        scope = "t.workload = :workload AND e.target = :target AND (:device IS NULL OR e.device = :device)"
        values = {"workload": workload.id, "target": target, "device": device, "mode": mode, "own": own}
        timed = f"{scope} AND t.outcome = 'OK' AND t.mode IS NOT NULL"
        if mode is None:
            newest = self._rows(f"SELECT t.mode FROM {_TRIALS} WHERE {timed} ORDER BY t.number DESC LIMIT 1", values)
            if not newest:
                return None
            values["mode"] = newest[0][0]
        failed = f"SELECT t.candidate FROM {_TRIALS} WHERE {scope} AND t.outcome NOT IN ('OK', 'NOISY')"
        rows = self._rows(
            f"""{_SELECT} WHERE {timed} AND t.mode = :mode AND t.candidate NOT IN ({failed}) AND NOT (:own AND c.kind = 'rival')
            ORDER BY t.stage NOT IN ('confirm', 'replay'), t.median, t.number LIMIT 1""",
            values,
        )
        with self._explain():
            return _trial(*rows[0][1:]) if rows else None

    def tried(self, workload: Workload, target: str, session: str | None = None, device: str | None = None) -> set[str]:
        """Ids of the Candidates that have a Trial, whatever its outcome."""
        query = f"""SELECT DISTINCT t.candidate FROM {_TRIALS} WHERE t.workload = ? AND e.target = ?
            AND (? IS NULL OR t.session = ?) AND (? IS NULL OR e.device = ?)"""
        return {row[0] for row in self._rows(query, (workload.id, target, session, session, device, device))}

    def workloads(self) -> list[Workload]:
        """In the order of their names."""
        with self._explain():
            return [Workload.from_json(row[0]) for row in self._rows("SELECT json FROM workloads ORDER BY name, id")]

    def counts(self, session: str | None = None) -> dict[Outcome, int]:
        """Trials by outcome; outcomes that never happened are left out."""
        query = "SELECT outcome, count(*) FROM trials WHERE ? IS NULL OR session = ? GROUP BY outcome"
        return Counter({Outcome(name): n for name, n in self._rows(query, (session, session))})

    def sessions(self) -> list[Session]:
        """Oldest first."""
        query = "SELECT session, count(*), min(created), max(created) FROM trials GROUP BY session ORDER BY min(number)"
        return [Session(*row) for row in self._rows(query)]

    def __len__(self) -> int:
        return self._rows("SELECT count(*) FROM trials")[0][0]

    def export(self, to: str | Path | IO[str], **filters: Any) -> int:
        """Writes JSON lines, one Trial each, and returns how many. `filters` are those of `trials`.

        A path that ends in `.gz` or `.xz` is compressed. An existing file is replaced only by a complete one.
        """
        if not isinstance(to, str | Path):
            return self._write_lines(to, filters)
        path = Path(to)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(compressing(stack.enter_context(open(partial, "wb")), path.suffix))
                count = self._write_lines(stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8")), filters)
            partial.replace(path)
        except OSError as error:
            raise ArchiveError(f"{path} cannot be written: {error.strerror or error}; choose another place") from None
        finally:
            partial.unlink(missing_ok=True)
        return count

    def _write_lines(self, stream: IO[str], filters: dict[str, Any]) -> int:
        count = 0
        for count, trial in enumerate(self.trials(**filters), 1):  # noqa: B007, the last number is the count
            stream.write(trial.to_json() + "\n")
        return count

    # ------------------------------------------------------------------------------------------------------ the file

    def _prepare(self, timeout: float) -> None:
        """Checks whose file it is, migrates it, and sets it up for several processes."""
        version = self._version()
        application = self._pragma("application_id")
        empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not empty and application != APPLICATION_ID:
            raise ArchiveError(f"{self.path} is another program's SQLite file; set KERNELWRIGHT_ARCHIVE to another file")
        if version > len(MIGRATIONS):
            raise ArchiveError(
                f"{self.path} was written by a newer kernelwright (schema {version}, this one knows {len(MIGRATIONS)}); "
                "upgrade kernelwright, or set KERNELWRIGHT_ARCHIVE to another file"
            )
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        # The switch to WAL does not wait for other processes that open the file at the same moment, whatever the timeout says.
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if version < len(MIGRATIONS):
            with self._transaction():  # a second process waits here, then finds the work done
                for number in range(self._version(), len(MIGRATIONS)):
                    for statement in MIGRATIONS[number]:
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
                self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _pragma(self, name: str) -> int:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    def _version(self) -> int:
        return self._pragma("user_version")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._check_process()
        with self._lock, self._explain():
            self._db.execute("BEGIN IMMEDIATE")  # takes the write lock at once: a read that turns into a write cannot wait for it
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: tuple | dict[str, Any] = ()) -> list[tuple]:
        self._check_process()
        with self._lock, self._explain():
            return self._db.execute(query, values).fetchall()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ArchiveError(f"{self.path} was opened in another process; a forked process must open its own Archive")

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Turns SQLite's errors into one sentence with the fix."""
        try:
            yield
        except (sqlite3.Error, msgspec.DecodeError, zlib.error, UnicodeDecodeError) as error:
            raise ArchiveError(f"the archive {self.path} {_cause(error)}") from error


_TRIALS = "trials t JOIN environments e ON e.id = t.environment"
_SELECT = f"""SELECT t.number, w.json, c.json, c.source, e.json, t.stage, t.session, t.created, t.rest
    FROM {_TRIALS} JOIN workloads w ON w.id = t.workload JOIN candidates c ON c.id = t.candidate"""

_CAUSES = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite file; move it away, or set KERNELWRIGHT_ARCHIVE to another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away and import your last export, or try `sqlite3 FILE .recover`",
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full; make room and run the same command again",
    sqlite3.SQLITE_READONLY: "is read-only; make it writable, or set KERNELWRIGHT_ARCHIVE to another file",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; set KERNELWRIGHT_ARCHIVE to a file in a folder that can be written",
    sqlite3.SQLITE_PERM: "may not be opened by this user; set KERNELWRIGHT_ARCHIVE to another file",
    sqlite3.SQLITE_BUSY: "is locked by another process; wait for it to end and run the same command again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; wait for it to end and run the same command again",
    sqlite3.SQLITE_IOERR: "has an input/output error; check the disk, or set KERNELWRIGHT_ARCHIVE to a file on another one",
}


def _cause(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and not isinstance(error, sqlite3.Error):
        return _CAUSES[sqlite3.SQLITE_CORRUPT]
    return _CAUSES.get((code or 0) & 0xFF, f"cannot be used: {error}")  # the low byte is the primary result code


def _row(trial: Trial) -> dict[str, Any]:
    """Columns of the trials table."""
    rest = msgspec.to_builtins(trial)
    for column in ("workload", "environment", "stage", "session", "created"):
        del rest[column]
    rest["origin"] = rest.pop("candidate")["origin"]
    timing = trial.timings[0] if trial.timings else None
    ratios = [c.ratio for c in trial.comparisons if timing and c.mode == timing.mode]
    return {
        "id": trial.id,
        "workload": trial.workload.id,
        "candidate": trial.candidate.id,
        "environment": trial.environment.id,
        "outcome": str(trial.verdict.outcome),
        "stage": trial.stage,
        "session": trial.session,
        "created": trial.created,
        "mode": timing and timing.mode,
        "median": timing and timing.median,
        "ratio": min(ratios, default=None),
        "rest": msgspec.json.encode(rest).decode(),
    }


def _trial(workload: str, candidate: str, source: bytes, environment: str, stage: str, session: str, created: str, rest: str) -> Trial:
    content = msgspec.json.decode(rest)
    origin = content.pop("origin")
    return msgspec.convert(
        {
            **content,
            "workload": msgspec.json.decode(workload),
            "candidate": {**msgspec.json.decode(candidate), "source": zlib.decompress(source).decode(), "origin": origin},
            "environment": msgspec.json.decode(environment),
            "stage": stage,
            "session": session,
            "created": created,
        },
        Trial,
    )
