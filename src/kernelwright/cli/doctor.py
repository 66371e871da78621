"""`kernelwright doctor`: what this machine can do, and why not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Annotated

import typer

from kernelwright.cli.common import NO_KERNEL, Json, console, emit

_EXTRAS = {
    "cuda": ("cuda.bindings", "pynvml", "nvMatmulHeuristics"),
    "search": ("optuna",),
    "sparse": ("safetensors", "transformers"),
    "train": ("accelerate", "datasets", "gguf", "peft", "tensorboard", "transformers", "trl"),
}


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright doctor --json")
    def doctor(
        json_output: Json = False,
        deep: Annotated[bool, typer.Option("--deep", help="Also open each usable device and compile and run a kernel on it.")] = False,
    ) -> None:
        """Say which targets work here, which compilers and extras were found, and what to install for the rest."""
        checks = examine(deep)
        if json_output:
            emit({"checks": checks})
        else:
            screen = console(False)
            for c in checks:
                mark = "ok " if c["ok"] else "-- "
                screen.print(f"{mark} {c['what']:<18} {c['found']}", markup=False)
        if not any(c["ok"] for c in checks if c["what"].startswith("target ")):
            raise typer.Exit(NO_KERNEL)


def examine(deep: bool) -> list[dict]:
    import platform

    import kernelwright
    from kernelwright.settings import SettingsError, settings, writable
    from kernelwright.targets import target as target_of

    def check(what: str, ok: bool, found: str) -> dict:
        return {"what": what, "ok": ok, "found": found}

    versions = f"kernelwright {kernelwright.__version__}, Python {platform.python_version()}, torch {importlib.metadata.version('torch')}"
    checks = [check("versions", True, versions)]
    for name in ("cpu", "cuda"):
        one = target_of(name)
        reason = one.unavailable()
        if reason is None:
            facts = one.facts()
            reason_or_name = (
                f"{facts.name}, {facts.threads} thread(s)" if name == "cpu" else f"{facts.name}, {facts.sms} SMs, {facts.target}"
            )
            if deep:
                reason_or_name += f"; {opened(one)}"
            checks.append(check(f"target {name}", True, reason_or_name))
        else:
            checks.append(check(f"target {name}", False, reason))
    from kernelwright.targets import sandbox

    checks.append(check("isolation", *isolation(sandbox)))
    from kernelwright.targets.cpu import compiler, compiler_version

    checks.append(check("C++ compiler", compiler() is not None, compiler_version() or "none: install g++ or clang++"))
    from kernelwright.targets import nvrtc
    from kernelwright.targets.target import TargetUnavailable

    try:
        found = "NVRTC {}.{}: CUDA kernels compile here, with or without a GPU".format(*nvrtc.version())
        checks.append(check("CUDA compiler", True, found))
    except TargetUnavailable as error:
        checks.append(check("CUDA compiler", False, str(error)))
    for extra, modules in _EXTRAS.items():
        absent = [m for m in modules if not importable(m)]
        checks.append(
            check(
                f"extra {extra}",
                not absent,
                f'lacks {", ".join(absent)}: pip install "kernelwright[{extra}]"' if absent else "installed",
            )
        )
    now = settings()
    models = f"{now.llm.url}: {', '.join(now.llm.models) or 'models of the transcript'}"  # nothing is asked of it: that could cost money
    checks.append(
        check("models", bool(now.llm.url), models if now.llm.url else "none: set KERNELWRIGHT_LLM_URL and KERNELWRIGHT_LLM_MODELS")
    )
    for what, path in (("home", now.home), ("archive folder", now.archive.parent)):
        try:
            checks.append(check(what, True, str(writable(path))))
        except SettingsError as error:
            checks.append(check(what, False, str(error)))
    return checks


def isolation(sandbox) -> tuple[bool, str]:
    """Whether all layers that confine C++ and Python candidates are there, and which are."""
    try:
        layers = sandbox.probe()
    except sandbox.SandboxError as error:
        return False, str(error)
    lacks = []
    if not sandbox.landlock_abi():
        lacks.append("landlock (Linux 5.13 or newer, with landlock among its security modules): candidates can read your files")
    elif sandbox.landlock_abi() < 3:
        lacks.append("landlock 3 (Linux 6.2 or newer): the filter denies truncating instead")
    if not sandbox.seccomp_available():
        lacks.append("seccomp: candidates can start processes and use the network; run them in a container")
    return not lacks, "; lacks ".join([sandbox.isolation(layers), *lacks])


def importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def opened(target) -> str:
    """Opens the device and evaluates one small kernel."""
    from kernelwright.evaluate.evaluator import Evaluator
    from kernelwright.evaluate.jobs import Job
    from kernelwright.families import families_for
    from kernelwright.problems import resolve

    w, facts = resolve("chain:new-gelu:64x64"), target.facts()
    family = families_for(w, facts)[0][0]
    candidate = family.render(family.seeds(w, facts)[0], w, facts)
    with Evaluator(target) as evaluator:
        (trial,) = evaluator.evaluate([candidate], Job(workload=w), stage="verify", session="doctor")
    return f"a test kernel: {trial.verdict.outcome}"
