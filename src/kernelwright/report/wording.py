"""The sentences: what a run showed, said as plainly when it lost as when it won."""

from __future__ import annotations

from kernelwright.records import Comparison, Environment, Outcome, Workload
from kernelwright.report.numbers import count, interval, ratio
from kernelwright.report.summary import STRONGEST, RunSummary, Standing, WorkloadSummary
from kernelwright.report.svg import shorten

MODE_NAMES = {
    "device-cold": "device time, cold cache",
    "device-chain": "device time, cold cache, in a chain",
    "device-warm": "device time, warm cache",
    "host-offline": "host time, offline (one call at a time)",
    "host-server": "host time, server (random pauses)",
}

CHAIN_NOTE = (
    "device-chain is device-cold with programmatic dependent launch: each of our launches starts while the one before it still runs, as it "
    "would among neighbours that allow it; the rivals are launched as they are."
)

STANDING_NAMES: dict[Standing, str] = {
    "win": "faster",
    "tie": "tie",
    "loss": "slower",
    "alone": "no rival",
    "failed": "nothing verified",
}

STANDING_MARKS: dict[Standing, str] = {"win": "▲", "tie": "=", "loss": "▼", "alone": "●", "failed": "✕"}
"""Beside every colour, so that colour alone never carries the result."""


_RIVAL_NAMES = {
    "eager": "torch eager",
    "compile": "torch.compile",
    "compile-max": "torch.compile (max-autotune)",
    "compile-reduce": "torch.compile (reduce-overhead)",
    "channels-last": "torch eager, channels last",
    "cudnn-benchmark": "torch eager, cuDNN benchmark",
    "tf32": "torch eager, TF32",
    "graph": "CUDA graph",
    "expert": "the fastest library",
    "cublas-nn": "cublas, B as K x N",
    "cublas-nt": "cublas, B as N x K",
}


def rival_name(rival: str) -> str:
    """`torch eager` for `eager`, `torch.compile` for `compile`; library names stay as they are."""
    return _RIVAL_NAMES.get(rival, shorten(rival, 80))


def outcome_name(outcome: Outcome | str) -> str:
    """`wrong result` for WRONG_RESULT."""
    return str(outcome).lower().replace("_", " ")


def workload_name(w: Workload) -> str:
    """`new-gelu 1024x1024 fp32`: the name of `Workload.name`, made to be read."""
    parts = [w.problem.partition(":")[2] or w.problem, "x".join(str(n) for n in w.axes.values()), w.dtype, w.layout]
    if w.accumulate != "fp32":
        parts.append(f"accumulate {w.accumulate}")
    parts.append(w.epilogue)
    return shorten(" ".join(p for p in parts if p), 120)


def device_name(environment: Environment) -> str:
    """Device and, on a CPU, the thread count: `AMD EPYC 7763, 1 thread`."""
    device = shorten(environment.device, 120)
    threads = environment.facts.get("threads")
    if environment.target.startswith("cpu") and isinstance(threads, int):
        return f"{device}, {count(threads, 'thread')}"
    return device


def against(c: Comparison) -> str:
    """One comparison as a phrase, with its interval."""
    name, inside = rival_name(c.rival), f"95 % interval {interval(c.low, c.high)}"
    match c.outcome:
        case "win":
            return f"{ratio(c.ratio)} faster than {name} ({inside})"
        case "loss":
            return f"slower than {name}: {ratio(c.ratio)} its speed ({inside})"
        case _:
            return f"a tie with {name}: {ratio(c.ratio)} ({inside}, noise floor {interval(c.noise_low, c.noise_high)})"


def headline(s: WorkloadSummary, environment: Environment) -> str:
    """The result of one Workload in a sentence: against torch eager and against the strongest rival, whichever way it went."""
    where = f"{workload_name(s.workload)} on {device_name(environment)}"
    if s.winner is None:
        tried = count(len(s.own), "candidate")
        return f"{where}: nothing verified. {tried} tried, none both right and timed; nothing of ours is used here."
    claims = [against(c) for c in dict.fromkeys((s.reference, s.strongest)) if c is not None]
    if claims:
        said = "; ".join(claims)
    else:
        said = f"verified and timed; no rival could be compared in {MODE_NAMES[s.mode]}"
        other = next((m for m in s.modes if s.comparisons(m)), None)
        if other is not None:
            said += f". In {MODE_NAMES[other]}: {against(s.comparisons(other)[0])}"
    return f"{where}: {said}. Verified on {count(len(s.checks), 'check')}."


def run_headline(run: RunSummary) -> str:
    """The result of a run over many Workloads: the geometric mean, then wins, ties, losses and failures, then the worst case."""
    failed = len(run.standing("failed"))
    parts = [f"{count(len(run.workloads), 'workload')} on {device_name(run.environments[0])}"]
    if not run.aggregates:
        parts.append("no candidate could be compared with a rival" if failed < len(run.workloads) else "nothing verified")
        return ": ".join(parts) + "."
    strongest = run.aggregates[0]
    name, worst = strongest.worst
    parts.append(f"{ratio(strongest.geomean)} the speed of the {STRONGEST} of each, as geometric mean")
    counts = [count(strongest.count("win"), "win"), count(strongest.count("tie"), "tie")]
    losses = strongest.count("loss")
    counts.append("1 loss" if losses == 1 else f"{losses} losses")
    if failed:
        counts.append(f"{failed} without a verified candidate")
    return f"{': '.join(parts)}; {', '.join(counts)}. Worst: {ratio(worst.ratio)} on {shorten(name, 120)}."


def caveats(s: WorkloadSummary) -> list[str]:
    """What a careful reader would want to know before believing the headline."""
    notes = []
    if s.winner is not None and not s.confirmed:
        notes.append("The winner was screened but not measured again in a fresh process: its lead may owe something to luck.")
    if s.winner is not None and not s.checks:
        notes.append("The archive holds no record of single correctness checks for the winner.")
    for name, verdict in s.failed_rivals.items():
        evidence = f": {verdict.evidence}" if verdict.evidence else ""
        notes.append(f"{rival_name(name)} is not compared: {outcome_name(verdict.outcome)}{evidence}")
    return notes
