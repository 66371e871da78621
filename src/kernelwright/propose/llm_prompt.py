"""Prompts: what the templates in prompts/ are filled with. Evidence (sources, compiler output, documents) is clipped and fenced there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwright import plan
from kernelwright.candidate_file import default_plan
from kernelwright.families.family import DeviceFacts
from kernelwright.learn.compact import compact
from kernelwright.learn.retrieval import Passage
from kernelwright.problems import KERNELBENCH, problem_of
from kernelwright.propose import exemplars_report
from kernelwright.propose.exemplars import score
from kernelwright.propose.llm_answer import CPP, Language
from kernelwright.records import DTYPES, Candidate, Launch, LaunchPlan, Record, ScalarArg, TensorArg, Trial, Workload
from kernelwright.targets.target import Peaks

_CTYPES = {
    "fp32": "float",
    "fp16": "_Float16",
    "bf16": "__bf16",
    "fp8": "unsigned char",
    "int64": "long long",
    "int32": "int",
    "int8": "signed char",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control and invisible characters: nothing in evidence that a reader of the prompt would not see."""


def fenced(text: str, tag: str = "", limit: int = 20_000) -> str:
    """A block that its content cannot end: the fence is longer than any run of backticks inside. Longer texts lose their middle."""
    text = _CONTROL.sub("\ufffd", str(text)).strip("\n")
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{tag}\n{text}\n{fence}"


def line(text: str, limit: int = 160) -> str:
    """A name on one line, without marks that could open a block or a heading."""
    return re.sub(r"[`#\s]+", " ", _CONTROL.sub("\ufffd", str(text))).strip()[:limit]


@lru_cache(maxsize=1)
def _templates() -> Environment:
    # texts for a model, not HTML; a name that is missing in a template is our fault and must not pass silently
    found = Environment(loader=FileSystemLoader(Path(__file__).parent / "prompts"), undefined=StrictUndefined, keep_trailing_newline=False)
    found.filters |= {"fenced": fenced, "line": line}
    return found


def render(template: str, **values: Any) -> str:
    """One of the other templates in prompts/, for conversations that are led elsewhere."""
    return _templates().get_template(template).render(**values)


def system(w: Workload, device: DeviceFacts, choices: Sequence[Language], brief: bool = False) -> str:
    """The rules, by the languages that a candidate may be written in; `brief` for a model that has learnt them."""
    from kernelwright.targets.cpu import FLAGS

    return (
        _templates()
        .get_template("system_brief.j2" if brief else "system.j2")
        .render(
            languages=choices,
            device=device,
            arch=f"sm_{device.sm}" + ("a" if device.sm >= 90 else ""),
            cpu_flags=" ".join(FLAGS),
            signature=signature(w) if CPP in choices else "",
            plan_needed=any(choice.suffix in (".cpp", ".cu") for choice in choices),
            plan_example=_plan_example(w, device),
            plan_names=(plan.__doc__ or "").split("\n\n", 1)[1],
        )
    )


def task(
    w: Workload,
    device: DeviceFacts,
    peaks: Peaks | None,
    exemplars: Sequence[Trial],
    failures: Sequence[Trial],
    passages: Sequence[Passage],
    brief: bool = False,
) -> str:
    """The problem, the device, measured kernels, failures and passages; `brief`: compact sources, and no reference of the headers."""
    problem = problem_of(w)
    cost = problem.cost(w)
    tags = {"cpu": "cpp", "cuda": "cuda", "python": "python"}
    return (
        _templates()
        .get_template("task.j2")
        .render(
            w=w,
            formula=formula(w),
            reference=reference(w),
            validates=problem.validates,
            score=problem.score,
            tensors=problem.tensors(w),
            device=device,
            device_lines=device_lines(device, peaks),
            cost=cost,
            roofline=peaks and peaks.floor(cost, "device-warm" if device.target == "cpu" else "device-cold"),
            exemplars=[
                {
                    "score": score(t),
                    "lines": exemplars_report.report(t, device, peaks, brief),
                    "source": as_file(t.candidate, t.workload, brief),
                    "tag": tags.get(t.candidate.kind, ""),
                }
                for t in exemplars
            ],
            failures=failures,
            headers=_headers() if device.sm and not brief else "",
            passages=passages,
        )
    )


def repair(trial: Trial | None, device: DeviceFacts, passages: Sequence[Passage], problem: str = "") -> str:
    """What went wrong with the last answer: a failed Trial, or the sentence `problem` on an answer that could not be read."""
    if trial is None:
        return _templates().get_template("repair.j2").render(outcome="", evidence=problem, checks=[], lines=[], passages=[])
    failed = [
        f"{c.rung}/{c.case}: error {c.error:.3g}, allowed {c.bound:.3g} {c.note}".strip() for c in trial.verdict.checks if not c.passed
    ]
    return (
        _templates()
        .get_template("repair.j2")
        .render(
            outcome=str(trial.verdict.outcome),
            evidence=trial.verdict.evidence or "(none)",
            checks=failed,
            lines=exemplars_report.resources(trial.candidate, trial.build, trial.workload, device),
            passages=passages,
        )
    )


def formula(w: Workload) -> str:
    """One line on what is computed; empty where only the reference says it."""
    if w.problem == "gemm":
        return "C = A B: c (M x N) from a (M x K) and b (K x N)."
    if w.problem == "linear":
        return f"C = A B with the epilogue {w.epilogue}, applied from left to right to the fp32 sums, rounded once."
    from kernelwright.problems.experts import Expert

    problem = problem_of(w)
    described = problem if isinstance(problem, Expert) else getattr(problem, "chain", None)
    return described.formula if described else ""


def reference(w: Workload) -> str:
    """The PyTorch text: a KernelBench file, or the function with the numbers that it names. Of a problem with a check of its own: the
    check."""
    if w.problem.startswith(KERNELBENCH):
        return w.source
    from kernelwright.problems.applications import Application
    from kernelwright.problems.experts import Expert

    problem = problem_of(w)
    if isinstance(problem, Application):
        return problem.rules()
    if isinstance(problem, Expert):
        return inspect.getsource(type(problem).define)
    chain = getattr(problem, "chain", None)
    if chain is None:
        return "" if w.problem == "gemm" else inspect.getsource(type(problem).eager)
    texts = []
    for function in dict.fromkeys(f for f in (chain.function, chain.definition) if f):
        used = {n: function.__globals__.get(n) for n in function.__code__.co_names}
        texts += [f"{name} = {value!r}" for name, value in used.items() if isinstance(value, int | float)]
        texts.append(inspect.getsource(function))
    return "\n".join(dict.fromkeys(texts))


def signature(w: Workload) -> str:
    """The C++ function that a file without a plan defines."""
    specs = {s.name: s for s in problem_of(w).tensors(w)}
    parameters = []
    for arg in default_plan(w).launches[0].args:
        if isinstance(arg, TensorArg):
            spec = specs[arg.name]
            parameters.append(f"{'const ' if spec.role == 'in' else ''}{_CTYPES[spec.dtype]}* {spec.name}")
        elif isinstance(arg, ScalarArg):
            parameters.append(f"long {arg.value}")
    return f'extern "C" void kernel({", ".join(parameters)});'


def _plan_example(w: Workload, device: DeviceFacts) -> str:
    first = default_plan(w).launches[0]
    sizes: dict[str, Any] = {"grid": ("sms", 1, 1), "block": (256, 1, 1), "smem": 0} if device.sm else {}
    example = LaunchPlan(launches=(Launch(kernel="kernel", args=first.args, **sizes),))
    text = msgspec.json.encode(msgspec.to_builtins(example) | {"requires": []}).decode()
    return f"/* kernelwright-plan\n{text}\n*/"


def as_file(c: Candidate, w: Workload, brief: bool = False) -> str:
    """The source as a candidate file, so that an answer may begin with a copy of it; `brief`: in its compact form."""
    source = compact(c.source) if brief and c.kind != "python" else c.source
    if c.plan is None or "kernelwright-plan" in source or (c.kind == "cpu" and c.plan == default_plan(w)):
        return source
    return f"/* kernelwright-plan\n{msgspec.json.encode(_told(c.plan)).decode()}\n*/\n{source}"


def _told(value: Any) -> Any:
    """Plain data of a plan, without the fields that have their default."""
    if isinstance(value, Record):
        tag = value.__struct_config__.tag
        found: dict[str, Any] = {"type": tag} if isinstance(tag, str) else {}
        for f in msgspec.structs.fields(value):
            if (inner := getattr(value, f.name)) != f.default:
                found[f.name] = _told(inner)
        return found
    return [_told(inner) for inner in value] if isinstance(value, tuple) else value


def device_lines(device: DeviceFacts, peaks: Peaks | None) -> list[str]:
    """What is known of it."""
    lines = []
    if device.sm:
        lines.append(f"{device.sms} multiprocessors, at most {device.smem_per_block} bytes of dynamic shared memory a block")
    else:
        known = ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve")
        lines.append(f"{device.threads} thread(s); instruction sets: {', '.join(i for i in known if i in device.isa) or 'baseline'}")
    if device.l2_bytes:
        lines.append(f"L2 cache {device.l2_bytes / 2**20:.1f} MiB")
    if peaks is not None:
        lines.append("peak arithmetic: " + ", ".join(f"{unit} {value / 1e9:.0f} GFLOP/s" for unit, value in sorted(peaks.flops.items())))
        lines.append(f"bandwidth of memory: {peaks.bandwidth_cold / 1e9:.0f} GB/s")
        lines.append(f"bandwidth of data that is in cache: {peaks.bandwidth_warm / 1e9:.0f} GB/s")
    return lines


@lru_cache(maxsize=1)
def _headers() -> str:
    return (Path(plan.__file__).parent / "device" / "README.md").read_text()


def query(w: Workload, device: DeviceFacts, evidence: str = "") -> str:
    """What to look up: the problem and the device, or what went wrong."""
    if evidence:
        return evidence[:1000]
    words = [w.problem.replace(":", " "), w.dtype, formula(w), w.epilogue, reference(w)[:2000]]
    # Hopper's and Ampere's ways of moving and multiplying, as our headers call them
    words.append("tma wgmma mbarrier cluster swizzle" if device.sm >= 90 else "cp_async mma ldmatrix swizzle" if device.sm else "vector")
    return " ".join(words)


assert set(_CTYPES) == set(DTYPES)
