"""The pool that compiles: order, cache, building ahead, and compilers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.evaluate.build import Builder
from kernelwright.records import Build, Candidate, Origin, Outcome, Verdict
from kernelwright.settings import settings
from kernelwright.targets import target


def scripted(**script) -> Candidate:
    return Candidate(kind="fake", source=json.dumps(script), origin=Origin(kind="script"))


@pytest.fixture
def builder(tmp_path, monkeypatch) -> Iterator[Builder]:
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path))
    with Builder(target("fake"), 2) as one:
        yield one


def test_builds_come_in_order_and_faults_are_verdicts(builder):
    wrong = scripted(fault={"compile": "COMPILE_ERROR"})
    vendor = Candidate(kind="rival", source="eager", origin=Origin(kind="rival", name="eager"))
    first, bad, none = builder.builds([scripted(us=1), wrong, vendor])
    assert isinstance(first[1], Build) and (settings().builds / first[1].key[:2] / first[1].key).is_dir()
    assert isinstance(bad[1], Verdict) and bad[1].outcome is Outcome.COMPILE_ERROR
    assert none == (vendor, None)


def test_what_was_wanted_is_built_once_and_ahead(builder):
    some = [scripted(us=i) for i in range(1, 6)]
    builder.want(some)
    builder.want(some[:2])
    found = list(builder.builds(some))
    assert builder.ready(some) and [c for c, _ in found] == some
    assert len({built.key for _, built in found}) == 5
    assert list(builder.builds(some)) == found


def test_a_killed_compiler_is_blamed_on_its_candidate_alone(builder):
    some = [scripted(us=1), scripted(kills=True), scripted(us=2), scripted(us=3)]
    builder.want(some)
    outcomes = [built.outcome if isinstance(built, Verdict) else "built" for _, built in builder.builds(some)]
    assert outcomes == ["built", Outcome.COMPILE_ERROR, "built", "built"]
    ((_, after),) = builder.builds([scripted(us=4)])
    assert isinstance(after, Build)


def test_a_compiler_without_end_is_killed_and_the_others_are_built(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path))
    endless, quick = scripted(compiles_for_ever=True), scripted(us=1)
    with Builder(target("fake"), 2, seconds=1) as builder:
        (_, stuck), (_, built) = builder.builds([endless, quick])
    assert isinstance(stuck, Verdict) and stuck.outcome is Outcome.COMPILE_ERROR and "within 1 s" in stuck.evidence
    assert isinstance(built, Build)


@pytest.mark.parametrize("name", ["cpu", "cuda:sm_90", "fake"])
def test_a_compiling_process_does_without_torch(name):
    """Its import takes longer than most compilations, and each search starts such a process for every core."""
    code = f"import sys, kernelwright.evaluate.build as b; b.target_of({name!r}).kind; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


LEFT_ALONE = """
import os, sys, time
from kernelwright.evaluate.build import Builder
from kernelwright.records import Candidate, Origin
from kernelwright.targets import target

if __name__ == "__main__":
    with Builder(target("fake"), jobs=2) as builder:
        list(builder.builds([Candidate(kind="fake", source="{}", origin=Origin(kind="file"))]))
        print(*builder._pool._processes, flush=True)
        time.sleep(600)
"""


def test_compilers_end_with_a_loop_that_is_killed(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(LEFT_ALONE)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None
        compilers = [int(pid) for pid in loop.stdout.readline().split()]
        loop.kill()
    assert compilers
    until = time.monotonic() + 60
    while (left := [pid for pid in compilers if _runs(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def _runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that nobody has waited for."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
