"""`kill -9` at random moments of a run, then resume: no Trial lost, none doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from kernelwright.archive import Archive
from kernelwright.problems import resolve

TRIALS = 60
COMMAND = [
    sys.executable, "-m", "kernelwright", "optimize", "gemm:16x16x16:fp32", "--target", "fake",
    "--trials", str(TRIALS), "--seconds", "300", "--json",
]  # fmt: skip


@pytest.mark.slow
def test_twenty_kills_lose_nothing(home, tmp_path):
    rng = random.Random(7)
    environment = os.environ | {"KERNELWRIGHT_HOME": str(home)}
    seen: set[str] = set()
    for _ in range(20):
        process = subprocess.Popen(
            [*COMMAND, "--out", str(tmp_path)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(rng.uniform(0.5, 6.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if (home / "archive.db").exists():
            with Archive(home / "archive.db") as archive:
                now = {t.id for t in archive.trials()}
            assert seen <= now, "a recorded trial is gone"
            seen = now
    done = subprocess.run([*COMMAND, "--out", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with Archive(home / "archive.db") as archive:
        trials = list(archive.trials(workload=resolve("gemm:16x16x16:fp32"), stage="screen"))
        assert seen <= {t.id for t in archive.trials()}
    candidates = [t.candidate.id for t in trials]
    assert len(candidates) == len(set(candidates)) == TRIALS
