"""Is a problem fit to judge kernels by? Finds the faults that let a wrong kernel pass, as benchmarks of generated kernels had them.

METR ("Measuring Automated Kernel Engineering", 2025) found KernelBench problems whose outputs are constant, within tolerance of
zero, or independent of an input. Each check here replaces the right output by such a wrong one and asks whether it would pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelwright.problems import problem_of
from kernelwright.problems.problem import Case, Problem, Tensors
from kernelwright.records import Workload


@dataclass(frozen=True)
class Finding:
    """One fault of a problem."""

    rule: str
    """non-finite, zeros-pass, constant-passes, identity-passes, input-ignored."""
    tensor: str
    text: str
    """One sentence."""


def lint(w: Workload, device: str = "cpu", seed: int = 0) -> list[Finding]:
    """Faults of a Workload on `normal` inputs; empty for a sound one. Runs the float64 reference a few times for each input."""
    problem = problem_of(w)
    rng = torch.Generator(device).manual_seed(seed)
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    inputs = problem.generate(w, case, rng, device)
    reference = problem.reference(w, inputs)
    judge = _Judge(problem, w, reference, problem.scale(w, inputs, reference))
    findings = [f for name, ref in reference.items() if ref.numel() for f in _output(judge, name, ref, inputs)]
    return findings + _ignored_inputs(judge, case, inputs, rng, device)


@dataclass(frozen=True)
class _Judge:
    problem: Problem
    w: Workload
    reference: Tensors
    scales: Tensors

    def passes(self, name: str, output: torch.Tensor) -> bool:
        """Whether the verifier would take this for output `name`."""
        ref = self.reference[name]
        error = ((output.double() - ref).abs() / self.scales[name])[torch.isfinite(ref)]
        return not error.numel() or bool((error <= self.problem.bound(self.w)).all())


def _output(judge: _Judge, name: str, ref: torch.Tensor, inputs: Tensors) -> list[Finding]:
    bad = int((~torch.isfinite(ref)).sum())
    if bad:
        return [Finding("non-finite", name, f"{bad} of {ref.numel()} elements of {name} are NaN or infinite on ordinary inputs")]
    found = []
    if judge.passes(name, torch.zeros_like(ref)):
        found.append(
            Finding("zeros-pass", name, f"an output of zeros passes for {name}: its largest value is {float(ref.abs().max()):.3g}")
        )
    elif ref.numel() > 1 and judge.passes(name, torch.full_like(ref, float(ref.mean()))):
        found.append(Finding("constant-passes", name, f"the constant {float(ref.mean()):.3g} passes for {name}: it hardly varies"))
    for key, x in inputs.items():
        if x.shape == ref.shape and judge.passes(name, x):
            found.append(Finding("identity-passes", name, f"returning {key} unchanged passes for {name}: use inputs on which they differ"))
    return found


def _ignored_inputs(judge: _Judge, case: Case, inputs: Tensors, rng: torch.Generator, device: str) -> list[Finding]:
    found = []
    others = judge.problem.generate(judge.w, case, rng, device)
    for name, x in inputs.items():
        if not x.numel() or torch.equal(x, others[name]):
            continue  # a constant buffer cannot be told apart
        changed = judge.problem.reference(judge.w, inputs | {name: others[name]})
        if all(judge.passes(key, out) for key, out in changed.items()):
            found.append(Finding("input-ignored", name, f"other values of {name} give the same outputs: a kernel need not read it"))
    return found
