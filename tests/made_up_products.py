"""Made-up confirmed Trials of fp16 products on an H200 that was never asked: for tests and for looking at the pages."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping

from kernelwright.problems.suites import HGEMM_SIZES
from kernelwright.records import (
    Candidate,
    Check,
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

ENVIRONMENT = Environment(
    target="cuda:sm_90",
    device="NVIDIA H200 (made up by a test)",
    facts={"SMs": 132, "memory GB": 150.8, "driver": "580.95"},
    versions={"kernelwright": "0.1.0", "torch": "2.13.0", "cuBLASLt": "13.1", "compiler": "NVRTC 13.0"},
    host="made up by a test",
)
RIVALS = {"eager": 1.06, "cublas": 1.04, "cublaslt-auto": 1.0, "cublaslt-auto-nt": 0.99, "cublaslt-all": 0.97}
"""Time relative to auto-tuned cuBLASLt in the Workload's layout."""


def product(m: int, n: int, k: int, layout: str = "nn") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype="fp16", layout=layout)


def timing(mode: str, us: float) -> Timing:
    return Timing(mode=mode, samples=(us,) * 3, median=us, low=us * 0.995, high=us * 1.005)


def confirmed(
    w: Workload, us: float, rivals: Mapping[str, float], *, modes: Iterable[str] = ("device-cold",), scheme: str = "ring", **changes: object
) -> Trial:
    """Our Trial of `us` microseconds; `rivals` are their ratios to it, each known to 1 % with a noise floor of 0.5 %."""
    comparisons = [
        Comparison(
            rival=name,
            mode=mode,
            ratio=ratio,
            low=ratio * 0.99,
            high=ratio * 1.01,
            rival_us=us * ratio,
            noise_low=0.995,
            noise_high=1.005,
            rounds=25,
        )
        for mode in modes
        for name, ratio in rivals.items()
    ]
    plan = LaunchPlan(launches=(Launch(kernel="gemm", args=(TensorArg(name="a"),)),))
    origin = Origin(kind="family", name=f"gemm_sm90_{scheme}", config={"block_p": 128, "block_q": 256, "stages": 4, "split_k": 1})
    fields: dict = {
        "workload": w,
        "candidate": Candidate(kind="cuda", source=f"// {scheme} {w.layout}", plan=plan, origin=origin),
        "verdict": Verdict(
            outcome=Outcome.OK,
            evidence="made up by a test",
            checks=(Check(rung="normal", case="normal", passed=True, error=0.6, bound=2.0, vendor_ratio=1.01),),
        ),
        "environment": ENVIRONMENT,
        "timings": tuple(timing(mode, us) for mode in modes),
        "comparisons": tuple(comparisons),
        "stage": "confirm",
        "session": "made-up",
        "created": "2026-11-30T00:00:00.000000+00:00",
    }
    return Trial(**fields | changes)


def suite_trials(
    layouts: Iterable[str] = ("nn", "nt"), sizes: tuple[int, ...] = HGEMM_SIZES, share: float = 1.0, seed: int = 0
) -> list[Trial]:
    """All shapes of a grid (or a random share of them), ours faster where they are small and a little slower where they are huge."""
    rng = random.Random(seed)
    found = []
    for m in sizes:
        for n in sizes:
            for k in sizes:
                if rng.random() > share:
                    continue
                flops = 2.0 * m * n * k
                advantage = 1.45 - 0.034 * math.log2(flops / 2**19)
                scheme = "tiny" if flops < 2**22 else "ring" if flops < 2**34 else "persistent"
                us = 2.0 + flops / 7e8
                for layout in layouts:
                    ratio = advantage * rng.lognormvariate(0, 0.05) * (0.97 if layout == "nn" else 1.0)
                    stored = {n: r for n, r in RIVALS.items() if not n.endswith(f"-{layout}")}
                    rivals = {n: ratio * r * rng.lognormvariate(0, 0.01) for n, r in stored.items()}
                    found.append(confirmed(product(m, n, k, layout), us / ratio, rivals, scheme=scheme))
    return found
