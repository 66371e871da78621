"""Sound Trials, a pack and an archive: what mutations start from."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

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


@dataclass
class Made:
    """Sound things to start from."""

    trials: list[Trial]
    pack: Path
    archive: Path


def made(folder: Path) -> Made:
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
    return Made(trials, folder / "pack", path)
