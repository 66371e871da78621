"""Realistic invented Trials: what an `optimize` run and a `bench` run over many Workloads leave in the archive."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kernelwright.records import (
    Build,
    Candidate,
    Check,
    Comparison,
    Environment,
    KernelResources,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    ScalarArg,
    TensorArg,
    Timing,
    Trial,
    Verdict,
    Workload,
)

RIVALS = {"eager": 1.0, "compile": 0.31, "compile-max": 0.30, "onednn": 0.44, "numpy": 2.3}
"""Time relative to torch eager."""

MODE_COST = {"device-cold": 1.0, "device-warm": 0.82, "host-offline": 1.12, "host-server": 1.6}

PEAKS = {
    "flops": {"vector": 1.1e11, "fp32": 1.1e11, "fp16": 1.1e11},
    "bandwidth_cold": 1.5e10,
    "bandwidth_warm": 6e10,
    "measured_flops": {"fp32": 9.1e10},
    "measured_bandwidth": 1.3e10,
}

SOURCE = """// Fused new-gelu: one pass over memory.
#include <immintrin.h>
#include <cstdint>

static inline __m256 tanh_poly(__m256 x) {
    /* Pade approximant of degree 7/6; error below 2 ulp on [-9, 9],
       clamped outside it */
    const __m256 c = _mm256_set1_ps(135135.0f);
    const __m256 x2 = _mm256_mul_ps(x, x);
    return _mm256_div_ps(_mm256_mul_ps(x, _mm256_add_ps(c, x2)), c);
}

extern "C" void new_gelu(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, tanh_poly(v)));  // 0.5 * v * (1 + tanh(...))
    }
}
"""

ENVIRONMENT = Environment(
    target="cpu",
    device="AMD EPYC 7763 64-Core Processor",
    facts={
        "threads": 1,
        "isa": "avx2 fma f16c",
        "l2_bytes": 524288,
        "l3_bytes": 33554432,
        "isolation": "process",
        "clock_mhz": 2445.43,
    },
    versions={"kernelwright": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "compiler": "g++ 12.2.0"},
    host="bench-01",
)

EVIDENCE = {
    Outcome.COMPILE_ERROR: "kernel.cpp:14:22: error: '_mm512_loadu_ps' was not declared in this scope; did you mean '_mm256_loadu_ps'?",
    Outcome.LAUNCH_ERROR: "kernel new_gelu asks for 232448 bytes of shared memory; the device has 101376",
    Outcome.TIMEOUT: "no answer after 10 s on case normal",
    Outcome.CRASH: "the worker ended with signal 11 (SIGSEGV) on case ternary",
    Outcome.OUT_OF_MEMORY: "workspace of 96 GiB asked for; 12 GiB are free",
    Outcome.WRONG_RESULT: "case nan: y[512, 17] is 0.0, the reference is nan",
    Outcome.OUT_OF_BOUNDS: "32 bytes after the end of y were written",
    Outcome.INPUT_MUTATED: "x[0, 0] changed from 0.5 to 0.0",
    Outcome.NONDETERMINISTIC: "two launches on the same inputs differ in 12 elements",
    Outcome.CHEAT: "3.1 us is below the roofline floor of 559 us",
    Outcome.REFUSED: "it requires n % 16 == 0 (n = 1000)",
    Outcome.NOISY: "5 of 40 samples were undisturbed; 12 are needed",
}

CHECKS = tuple(
    Check(rung=rung, case=case, passed=True, error=error, bound=bound, vendor_ratio=vendor)
    for rung, case, error, bound, vendor in (
        ("exact", "zeros", 0.0, 0.0, None),
        ("normal", "normal", 0.81, 4.0, 1.05),
        ("normal", "wide", 1.12, 4.0, 1.17),
        ("adversarial", "nan", 0.0, 0.0, None),
        ("adversarial", "inf", 0.0, 0.0, None),
        ("adversarial", "denormal", 0.4, 4.0, 0.8),
        ("memory", "guard bands", 0.0, 0.0, None),
        ("repeat", "8 launches", 0.0, 0.0, None),
        ("after-timing", "last round", 0.79, 4.0, 1.05),
        ("shapes", "1x1", 0.2, 4.0, 0.2),
        ("shapes", "33x1027", 0.85, 4.0, 0.8),
        ("shapes", "0x16", 0.0, 0.0, None),
    )
)


@dataclass(frozen=True)
class FakeCost:
    flops: float
    bytes: float
    unit: str


GELU = Workload(problem="chain:new-gelu", axes={"rows": 1024, "cols": 1024}, dtype="fp32")
GELU_COST = FakeCost(flops=15 * 1024**2, bytes=8 * 1024**2, unit="vector")


def candidate(rng: random.Random, **changes) -> Candidate:
    config = {
        "unroll": rng.choice((1, 2, 4, 8)),
        "tanh": rng.choice(("pade", "minimax", "libm")),
        "prefetch": rng.random() < 0.5,
    }
    launch = Launch(kernel="new_gelu", args=(TensorArg(name="x"), TensorArg(name="y"), ScalarArg(ctype="i64", value="rows * cols")))
    fields = {
        "kind": "cpu",
        "source": SOURCE + f"// variant {rng.random():.12f}\n",
        "plan": LaunchPlan(launches=(launch,), requires=("cols % 8 == 0",)),
        "flags": ("-O3", "-march=native"),
        "origin": Origin(kind="family", name="chain_cpu", config=config, proposer="evolve"),
    }
    return Candidate(**{**fields, **changes})


def timing(rng: random.Random, mode: str, us: float, rounds: int = 20) -> Timing:
    samples = sorted(us * rng.lognormvariate(0, 0.01) for _ in range(rounds))
    return Timing(mode=mode, samples=tuple(samples), median=us, low=samples[2], high=samples[-3], launches=10, stopped="converged")


def comparison(rival: str, mode: str, ratio: float, rival_us: float, half: float = 0.02, noise: float = 0.012) -> Comparison:
    return Comparison(
        rival=rival,
        mode=mode,
        ratio=ratio,
        low=ratio * (1 - half),
        high=ratio * (1 + half),
        rival_us=rival_us,
        noise_low=1 - noise,
        noise_high=1 + noise,
        rounds=20,
    )


def ok_trial(
    workload: Workload,
    us: float,
    eager_us: float,
    rng: random.Random,
    *,
    rivals: dict[str, float] = RIVALS,
    modes: tuple[str, ...] = tuple(MODE_COST),
    stage: str = "screen",
    number: int = 0,
    **changes,
) -> Trial:
    """A verified Trial of `us` microseconds; each rival takes `eager_us` times its factor."""
    cost = MODE_COST
    fields = {
        "workload": workload,
        "candidate": candidate(rng),
        "verdict": Verdict(outcome=Outcome.OK, checks=CHECKS),
        "environment": ENVIRONMENT,
        "build": Build(
            key="k" * 16,
            artifact="/cache/k.so",
            compiler="g++ 12.2.0",
            arch="x86-64-v3",
            resources={"new_gelu": KernelResources(registers=14, stack=32)},
            seconds=0.4,
        ),
        "timings": tuple(timing(rng, m, us * cost.get(m, 1.0)) for m in modes),
        "comparisons": tuple(
            comparison(r, m, eager_us * f / us, eager_us * f * cost.get(m, 1.0)) for m in modes for r, f in rivals.items()
        ),
        "sensors": {"clock_mhz": 2445.1, "temperature_c": 61.0},
        "stage": stage,
        "session": "s-0001",
        "created": f"2026-01-05T10:{number // 60:02d}:{number % 60:02d}Z",
        "seconds": 0.8,
    }
    return Trial(**{**fields, **changes})


def failed_trial(workload: Workload, outcome: Outcome, rng: random.Random, number: int = 0, evidence: str | None = None) -> Trial:
    check = Check(rung="adversarial", case="nan", passed=False, error=float("inf"), bound=4.0, vendor_ratio=9.1)
    return Trial(
        workload=workload,
        candidate=candidate(rng),
        verdict=Verdict(
            outcome=outcome,
            evidence=EVIDENCE[outcome] if evidence is None else evidence,
            checks=(check,) if outcome is Outcome.WRONG_RESULT else (),
        ),
        environment=ENVIRONMENT,
        session="s-0001",
        created=f"2026-01-05T10:{number // 60:02d}:{number % 60:02d}Z",
        seconds=0.3,
    )


def rival_trial(workload: Workload, name: str, us: float, rng: random.Random, verdict: Verdict | None = None) -> Trial:
    verdict = verdict or Verdict(outcome=Outcome.OK, checks=CHECKS[:3])
    return Trial(
        workload=workload,
        candidate=Candidate(kind="rival", source=name, origin=Origin(kind="rival", name=name)),
        verdict=verdict,
        environment=ENVIRONMENT,
        timings=tuple(timing(rng, m, us * c) for m, c in MODE_COST.items()) if verdict.ok else (),
        session="s-0001",
        created="2026-01-05T09:59:00Z",
    )


def optimize_run(trials: int = 60, *, best: float = 5.2, seed: int = 0, failures: float = 0.35) -> list[Trial]:
    """One Workload: rivals, a search whose candidates approach `best` times eager's speed, all Outcomes, three confirmed finalists."""
    rng = random.Random(seed)
    eager_us = 3510.0
    made = [rival_trial(GELU, name, eager_us * factor, rng) for name, factor in RIVALS.items()]
    bad = [o for o in Outcome if o is not Outcome.OK]
    weights = [9, 2, 2, 3, 1, 8, 2, 1, 2, 1, 3, 2]
    for i in range(trials):
        if rng.random() < failures:
            outcome = bad[i % len(bad)] if i < 2 * len(bad) else rng.choices(bad, weights)[0]
            made.append(failed_trial(GELU, outcome, rng, i))
        else:
            ratio = best * (1 - 0.8 * rng.random() ** 0.7 * (1 - i / trials) - 0.25 * rng.random())
            made.append(ok_trial(GELU, eager_us / ratio, eager_us, rng, modes=("device-cold",), number=i))
    for i in range(3):
        confirmed = ok_trial(GELU, eager_us / best * (1 + 0.03 * i), eager_us, rng, stage="confirm", number=trials + i)
        wrong = Verdict(outcome=Outcome.WRONG_RESULT, evidence="case wide: normalised error 7.3 above the bound 4")
        made.append(confirmed.replace(rivals={"eager": Verdict(outcome=Outcome.OK), "inductor-fast-math": wrong}))
    return made


def bench_run(workloads: int = 40, seed: int = 1) -> tuple[list[Trial], dict[str, FakeCost]]:
    """Many Workloads of two Problems: wins, ties, losses and two without a verified candidate. Also their Costs by Workload name."""
    rng = random.Random(seed)
    made: list[Trial] = []
    costs: dict[str, FakeCost] = {}
    chains = ("softmax", "rmsnorm", "layernorm", "new-gelu", "l2-normalise")
    for i in range(workloads):
        if i % 2:
            m, n, k = (rng.choice((8, 64, 128, 512, 1024)), rng.choice((64, 512, 1024, 4096)), 64 * (i + 1))
            w = Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype="fp32", layout=rng.choice(("nn", "nt")))
            costs[w.name] = FakeCost(2.0 * m * n * k, 4.0 * (m * k + k * n + m * n), "fp32")
            eager_us = max(2.0, costs[w.name].flops / 1.5e10 * 1e6)
        else:
            rows, cols = 128 * (i + 1), rng.choice((512, 1024, 4096))
            w = Workload(problem=f"chain:{chains[i // 2 % 5]}", axes={"rows": rows, "cols": cols}, dtype="fp32")
            costs[w.name] = FakeCost(12.0 * rows * cols, 8.0 * rows * cols, "vector")
            eager_us = costs[w.name].bytes / 4e9 * 1e6
        factors = {"eager": 1.0, "compile": rng.uniform(0.3, 1.1), "onednn": rng.uniform(0.4, 1.2)}
        made += [rival_trial(w, name, eager_us * f, rng) for name, f in factors.items()]
        if i in (7, 22):
            made += [failed_trial(w, o, rng, i) for o in (Outcome.WRONG_RESULT, Outcome.CRASH, Outcome.WRONG_RESULT)]
            continue
        strongest = min(factors.values())
        against = 1.004 if i % 9 == 4 else rng.lognormvariate(0.25, 0.35)
        us = eager_us * strongest / against
        made.append(failed_trial(w, Outcome.COMPILE_ERROR, rng, i))
        made.append(ok_trial(w, us * 1.1, eager_us, rng, rivals=factors, modes=("device-cold",), number=i))
        made.append(ok_trial(w, us, eager_us, rng, rivals=factors, modes=("device-cold", "device-warm"), stage="confirm", number=i))
    return made, costs
