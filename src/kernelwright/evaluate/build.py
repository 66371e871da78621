"""Compiles candidates in a pool of processes apart from the device, into a content-addressed cache.

A Build's key covers all that the artifact depends on, so a hit is always right. An artifact is made in a temporary folder beside its
place and renamed there atomically; who loses a race uses the winner's. A compiler error is the candidate's Verdict.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from kernelwright.records import Build, Candidate, Outcome, Verdict
from kernelwright.settings import SettingsError, settings
from kernelwright.targets import target as target_of
from kernelwright.targets.sandbox import MEMORY, bound_memory
from kernelwright.targets.target import CandidateFault, Target

_RECORD = "build.json"
SECONDS = 240
"""Of one build, and `sandbox.MEMORY` bytes beyond what its process begins with: NVRTC knows no limit, and four lines of templates keep it
busy for days. The largest of our kernels takes some tens of seconds on a busy core."""


def build(target: Target, candidate: Candidate, cache: Path | None = None) -> Build:
    """The candidate's Build, from the cache or compiled now. Raises CandidateFault(COMPILE_ERROR), SettingsError for a cache that cannot be
    written."""
    cache = cache or settings().builds
    key = target.build_key(candidate)
    place = cache / key[:2] / key
    if (found := _read(place)) is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    except OSError as error:
        raise _unwritable(cache, error) from None
    try:
        made = target.compile(candidate, work)
        made = made.replace(artifact=str(place / Path(made.artifact).name))
        (work / _RECORD).write_text(made.to_json())
        _sync(work)
        try:
            os.rename(work, place)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return _read(place) or made
        return made
    except OSError as error:
        raise _unwritable(cache, error) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unwritable(cache: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"the build cache {cache} cannot be written ({error.strerror}): free some space or set KERNELWRIGHT_HOME to another folder"
    )


def _read(place: Path) -> Build | None:
    try:
        found = Build.from_json((place / _RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        shutil.rmtree(place, ignore_errors=True)  # written by another version, or damaged: make it anew
        return None
    artifact = place / Path(found.artifact).name  # the cache may have been moved
    return found.replace(artifact=str(artifact)) if artifact.exists() else None


def _sync(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def _work(target_name: str, candidate: bytes, cache: str, seconds: int) -> tuple[str, str]:
    """Runs in a pool process: (`ok`, Build as JSON), or (outcome, evidence), or (`error`, sentence). The process dies when the time is
    up: nothing else ends a compiler that is a library."""
    signal.alarm(seconds)
    try:
        return "ok", build(target_of(target_name), Candidate.from_json(candidate), Path(cache)).to_json()
    except CandidateFault as fault:
        return fault.outcome.value, fault.evidence
    except SettingsError as error:
        return "error", str(error)
    finally:
        signal.alarm(0)


def _begin() -> None:
    """In each process of the pool, before its first build."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loop, which ends the pool in order
    bound_memory(MEMORY)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed loop ends no pool: its processes would wait for work for ever, and keep the forkserver alive."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Builder:
    """The pool. Use as a context manager."""

    def __init__(self, target: Target, jobs: int | None = None, *, seconds: int = SECONDS):
        self._target, self._seconds = target, seconds
        self._jobs = jobs or max(1, len(os.sched_getaffinity(0)))
        self._pool: ProcessPoolExecutor | None = None
        self._futures: dict[str, Future[tuple[str, str]]] = {}
        """By Candidate: what has been asked for."""

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def want(self, candidates: Iterable[Candidate]) -> None:
        """Has them built in the background; each once, however often it is asked for."""
        for c in candidates:
            if c.id not in self._futures and c.kind == self._target.kind:
                self._futures[c.id] = self._submit(c)

    def ready(self, candidates: Iterable[Candidate]) -> bool:
        """Whether `builds` of them would not wait."""
        return all(f.done() for c in candidates if (f := self._futures.get(c.id)))

    def builds(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Build | Verdict | None]]:
        """In the order given: the Build, the Verdict of one that does not compile, or None where nothing is compiled."""
        candidates = list(candidates)
        self.want(candidates)
        for c in candidates:
            future = self._futures.get(c.id)
            if future is not None and isinstance(future.exception(), BrokenProcessPool):
                # a compiler that is killed takes the pool and all that waits there with it: each is tried again alone before it is blamed
                future = self._futures[c.id] = self._submit(c)
            yield c, None if future is None else self._outcome(future)

    def _submit(self, candidate: Candidate) -> Future[tuple[str, str]]:
        work = (_work, self._target.name, candidate.to_json().encode(), str(settings().builds), self._seconds)
        try:
            return self._running().submit(*work)
        except BrokenProcessPool:  # by an earlier candidate whose outcome nobody has asked for yet
            self._pool = None
            return self._running().submit(*work)

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._jobs, multiprocessing.get_context("forkserver"), _begin)
        return self._pool

    def _outcome(self, future: Future[tuple[str, str]]) -> Build | Verdict:
        try:
            kind, text = future.result()
        except BrokenProcessPool:
            self._pool = None
            evidence = f"the compiler process died: out of memory, or not done within {self._seconds} s"
            return Verdict(outcome=Outcome.COMPILE_ERROR, evidence=evidence)
        if kind == "ok":
            return Build.from_json(text)
        if kind == "error":
            raise SettingsError(text)
        return Verdict(outcome=Outcome(kind), evidence=text)
