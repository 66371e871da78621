"""Packs of kernels that nobody measured: real builds, and Trials whose times and verdicts are invented so that `pack.save` takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kernelwright.evaluate.build import build
from kernelwright.problems import resolve
from kernelwright.records import (
    Candidate,
    Environment,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    ScalarArg,
    TensorArg,
    Timing,
    Trial,
    Verdict,
)
from kernelwright.runtime import pack
from kernelwright.runtime.pack import Pack
from kernelwright.targets import target as target_of

PRODUCT = """
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
    EXTRA
}
"""


ARGS = (*(TensorArg(name=t) for t in "abc"), *(ScalarArg(ctype="i64", value=v) for v in ("M", "N", "K", "ld_a", "ld_b", "ld_c")))


def product(extra: str = "", requires: tuple[str, ...] = ()) -> Candidate:
    """A C++ product that is right but for `extra`."""
    plan = LaunchPlan(launches=(Launch(kernel="kernel", args=ARGS),), requires=requires)
    return Candidate(kind="cpu", source=PRODUCT.replace("EXTRA", extra), plan=plan, origin=Origin(kind="file", name="product.cpp"))


def scripted(**script: object) -> Candidate:
    return Candidate(kind="fake", source=json.dumps(script), origin=Origin(kind="script", name="scripted"))


def made_up_pack(path: Path, target: str, environment: Environment, kernels: Sequence[tuple[str, Candidate]]) -> Pack:
    """A Pack of (problem, kernel) with real builds and invented evidence."""
    timing = Timing(mode="device-cold" if target.startswith("cuda") else "device-warm", samples=(10.0,), median=10.0, low=10.0, high=10.0)
    trials = [
        Trial(
            workload=resolve(problem),
            candidate=c,
            verdict=Verdict(outcome=Outcome.OK, evidence="made up by a test"),
            environment=environment,
            build=build(target_of(target), c),
            timings=(timing,),
            stage="confirm",
        )
        for problem, c in kernels
    ]
    return pack.save(path, trials)
