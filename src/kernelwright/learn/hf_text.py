"""What a language model is trained on: the prompts of `--proposer llm` in their brief form, and answers written from what was measured.

An answer has the three sections that `propose.llm_answer` reads. Its analysis says what the exemplars' measurements say, its design which
choices the kernel makes; its code is a kernel of ours in compact form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernelwright.families.family import DeviceFacts
from kernelwright.problems import problem_of
from kernelwright.propose import llm_prompt
from kernelwright.propose.exemplars import score
from kernelwright.propose.llm_answer import languages
from kernelwright.records import Trial, Workload
from kernelwright.targets.target import Peaks

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Device:
    """What prompts say of the device."""

    facts: DeviceFacts
    peaks: Peaks | None
    """None where they were never measured."""


def prompt(w: Workload, device: Device, shown: Sequence[Trial]) -> Messages:
    """The rules and the task, with the measured kernels `shown`. What `KERNELWRIGHT_LLM_PROMPT=brief` asks is the same."""
    rules = llm_prompt.system(w, device.facts, languages(w, device.facts), brief=True)
    task = llm_prompt.task(w, device.facts, device.peaks, shown, (), (), brief=True)
    return [{"role": "system", "content": rules}, {"role": "user", "content": task}]


def answer(trial: Trial, device: Device, shown: Sequence[Trial]) -> str:
    """The answer that `trial`'s kernel is to a prompt with the kernels `shown`."""
    (language, *_) = languages(trial.workload, device.facts)
    sections = {
        "Performance analysis": " ".join(_analysis(trial.workload, device, shown)),
        "Design": _design(trial, shown),
        "Code": llm_prompt.fenced(llm_prompt.as_file(trial.candidate, trial.workload, brief=True), language.tags[0], limit=10**9),
    }
    return "\n\n".join(f"## {name}\n{text}" for name, text in sections.items())


def _analysis(w: Workload, device: Device, shown: Sequence[Trial]) -> list[str]:
    if not shown:
        return ["No kernel has been measured yet."]
    said = []
    for i, t in enumerate(shown, 1):
        us = t.timings[0].median
        share = ""
        if device.peaks is not None:
            floor, limit = device.peaks.floor(problem_of(w).cost(w), t.timings[0].mode)
            share = f", {100 * floor / us:.0f} % of what the {limit} allows"
        said.append(f"Kernel {i} takes {us:.2f} µs{share}.")
    for i, (slow, fast) in enumerate(pairwise(shown), 1):
        times = slow.timings[0].median / fast.timings[0].median
        said.append(f"Kernel {i + 1} is {times:.2f} times as fast as kernel {i}{_difference(slow, fast)}.")
    return said


def _difference(slow: Trial, fast: Trial) -> str:
    """What two configs of one Family do otherwise."""
    before, after = slow.candidate.origin.config, fast.candidate.origin.config
    if slow.candidate.origin.kind != "family" or fast.candidate.origin.kind != "family":
        return ""
    if slow.candidate.origin.name != fast.candidate.origin.name:
        return f": {_family(fast)} instead of {_family(slow)}"
    changed = [f"{name} {after[name]} instead of {before[name]}" for name in after if name in before and after[name] != before[name]]
    return f": {', '.join(changed)}" if changed else ""


def _family(trial: Trial) -> str:
    return trial.candidate.origin.name.replace("_", " ")


def _design(trial: Trial, shown: Sequence[Trial]) -> str:
    """The choices of a Family's config; what other kernels chose stands in their code alone."""
    origin = trial.candidate.origin
    if origin.kind != "family":
        return "The kernel below."
    choices = ", ".join(f"{name} {value}" for name, value in origin.config.items() if name not in ("step", "island"))
    best = f"{_difference(shown[-1], trial)}" if shown else ""
    return f"{_family(trial).capitalize()}: {choices}." + (f" Against kernel {len(shown)}{best}." if best else "")


def better_than(trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """Those that are slower than `trial`: what an answer may be shown beside, so that it is an improvement."""
    own = score(trial) or 0.0
    return [t for t in trials if (s := score(t)) is not None and s < own and t.candidate.id != trial.candidate.id]
