"""`kill -9` at random moments of a run, then resume: no Trial lost, none doubled."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from kernelwright.archive import Archive
from kernelwright.problems import resolve

TRIALS = 60
WORDS = ["optimize", "gemm:16x16x16:fp32", "--target", "fake", "--trials", str(TRIALS), "--seconds", "300", "--json"]
FORKING = """
import os, signal, sys
import kernelwright.loop
from kernelwright.cli import main
sys.argv = ["kernelwright", *sys.argv[1:]]
while sys.stdin.readline():
    if (child := os.fork()) == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        sys.exit(main())
    sys.stdin.readline()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(flush=True)
"""
"""Starts the command at one line and kills it at the next. What the command imports, which takes as long as half of the search, is imported
once."""


def recorded(home: Path) -> set[str]:
    """Ids of the Trials."""
    if not (home / "archive.db").exists():
        return set()
    with Archive(home / "archive.db") as archive:
        return {t.id for t in archive.trials()}


@pytest.mark.slow
def test_twenty_kills_lose_nothing(home, tmp_path):
    rng = random.Random(7)
    environment = os.environ | {"KERNELWRIGHT_HOME": str(home)}
    words = [*WORDS, "--out", str(tmp_path)]
    seen: set[str] = set()
    grew = 0
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, *words], env=environment, text=True, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL
    ) as forking:
        assert forking.stdin is not None and forking.stdout is not None
        for turn in range(20):
            print(file=forking.stdin, flush=True)
            if turn % 2:
                time.sleep(rng.uniform(0.1, 2.5))  # while it starts, or soon after
            else:
                deadline = time.monotonic() + 60
                while recorded(home) <= seen and time.monotonic() < deadline:
                    time.sleep(0.05)
                time.sleep(rng.uniform(0.0, 0.3))
            print(file=forking.stdin, flush=True)
            assert forking.stdout.readline() == "\n", "the run was started and killed"
            now = recorded(home)
            assert seen <= now, "a recorded trial is gone"
            grew += seen < now
            seen = now
    assert grew >= 5, "few kills fell into the search"
    done = subprocess.run([sys.executable, "-m", "kernelwright", *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with Archive(home / "archive.db") as archive:
        trials = list(archive.trials(workload=resolve("gemm:16x16x16:fp32"), stage="screen"))
        assert seen <= {t.id for t in archive.trials()}
    candidates = [t.candidate.id for t in trials]
    assert len(candidates) == len(set(candidates)) == TRIALS
