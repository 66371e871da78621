"""A KernelBench file with inputs that its faults do not survive: lines added at its end, which the user can read and keep.

Each change is tried on the file and kept if the faults that it is for are gone. What no inputs can repair (a formula whose result is
constant) is left, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.problems.lint import Finding, lint
from kernelwright.records import Workload

_NO_DROPOUT = """

# {mark}: {what}
_init_as_written = Model.__init__


def _init_without_dropout(self, *args, **kwargs):
    _init_as_written(self, *args, **kwargs)
    for module in self.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0


Model.__init__ = _init_without_dropout
"""

_PARAMETERS = """

# {mark}: {what}
_init_before_draws = Model.__init__


def _init_with_draws(self, *args, **kwargs):
    _init_before_draws(self, *args, **kwargs)
    for parameter in self.parameters():
        if parameter.numel() > 1 and bool((parameter.data == parameter.data.flatten()[0]).all()):
            parameter.data += torch.rand_like(parameter.data) - 0.5


Model.__init__ = _init_with_draws
"""

_INPUTS = """

# {mark}: {what}
_get_inputs_before_{turn} = get_inputs


def get_inputs():
    inputs = list(_get_inputs_before_{turn}())
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            inputs[i] = {expression}
    return inputs
"""

_OUTPUT_RULES = ("zeros-pass", "constant-passes", "identity-passes", "saturated", "low-variance", "replay-passes", "non-finite")
_INPUT_RULES = ("fixed-input", "constant-input", "low-rank", "repeated-slices", "periodic-input")
_TRANSFORMS = (
    ("inputs shifted to have both signs", "2 * x - 1"),
    ("normal inputs of standard deviation 4", "4 * torch.randn_like(x)"),
    ("inputs with heavy tails, so that a few values decide", "torch.randn_like(x) * torch.exp(2 * torch.randn_like(x))"),
    ("inputs with very heavy tails, so that a few values decide", "torch.randn_like(x) * torch.exp(3 * torch.randn_like(x))"),
)
_DRAWN = ("inputs drawn at random under the seed", "torch.randn_like(x)")
MARK = "Repaired by kernelwright lint"


@dataclass(frozen=True)
class Repair:
    """What was done and what it did not help with."""

    w: Workload
    changes: tuple[str, ...]
    remaining: tuple[Finding, ...]


def without_dropout(w: Workload) -> Workload:
    return _extended(w, _NO_DROPOUT.format(mark=MARK, what="dropout switched off, which made the output random"))


def repair(w: Workload, findings: Sequence[Finding] | None = None, device: str = "cpu", seed: int = 0) -> Repair:
    """Of a KernelBench Workload. Raises ValueError for another, whose inputs are kernelwright's own."""
    if not w.source:
        raise ValueError(f"{w.name} is a problem of kernelwright's own: there is no file to repair")
    left = _grave(lint(w, device, seed) if findings is None else findings)
    changes: list[str] = []
    for turn, (rules, what, template, expression) in enumerate(_steps()):
        aimed_at = [f for f in left if f.rule in rules]
        if not aimed_at:
            continue
        trial = _extended(w, template.format(mark=MARK, what=what, turn=turn, expression=expression))
        after = _grave(lint(trial, device, seed))
        if any(f.rule in ("unusable", "non-finite") for f in after) or len(after) >= len(left):
            continue
        w, left = trial, after
        changes.append(what)
    return Repair(w, tuple(changes), tuple(left))


def _steps() -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    yield ("random-output",), "dropout switched off", _NO_DROPOUT, ""
    yield ("degenerate-parameter",), "parameters of one value drawn at random", _PARAMETERS, ""
    yield _INPUT_RULES, _DRAWN[0], _INPUTS, _DRAWN[1]
    for what, expression in _TRANSFORMS:
        yield _OUTPUT_RULES, what, _INPUTS, expression


def _grave(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity != "note" and f.rule != "memory"]


def _extended(w: Workload, block: str) -> Workload:
    return w.replace(source=w.source.rstrip("\n") + "\n" + block)
