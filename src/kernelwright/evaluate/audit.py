"""Every kernel of a Pack proved once more, from the files that ship: `kernelwright pack verify`.

    ladder        all rungs on every Workload that the kernel serves; tails once
    random        rungs exact, normal and repeat on shapes drawn from all that the kernel's plan accepts
    machine code  compiled again: no spills, no local memory, the expected matrix instructions (CUDA)
    sanitizers    memcheck and racecheck (CUDA, where compute-sanitizer is installed)

What could not be run is said and counted as not run, never as passed.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kernelwright.evaluate import sanitized
from kernelwright.evaluate.audit_batch import Audit, Auditor
from kernelwright.evaluate.drawn import drawn_shapes
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.verification import Kernel, Verification, keep, proved_before
from kernelwright.evaluate.watched import find_tool
from kernelwright.records import Workload
from kernelwright.runtime.pack import Pack
from kernelwright.targets.target import Target

BATCH = 20
"""Kernels at one time: few enough that their modules stay loaded (the CUDA target keeps 32), enough for a process under a tool, which takes
8 s to start."""


@dataclass(frozen=True)
class Extent:
    """How much is run."""

    workloads: int | None = None
    """Most Workloads of each kernel, the smallest first; None: all that it serves."""
    random: int = 100
    """Random shapes of each kernel."""
    seed: int = 0
    sanitize: bool = True


@dataclass
class Progress:
    """How far it is."""

    total: int
    """Runs of one kernel on one Workload, served or random."""
    kernels: int
    """To be proved."""
    before: int
    """Proved by a run that was interrupted."""
    done: int = 0
    cases: int = 0
    through: int = 0
    """Kernels that wait for nothing any more, tools included."""
    failing: tuple[str, ...] = ()
    """Kernels, by name and candidate."""


def verify_pack(
    pack: Pack,
    target: Target,
    evaluator: Evaluator,
    extent: Extent | None = None,
    told: Callable[[Kernel], None] = lambda kernel: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Verification:
    """Calls `told` with each kernel that is through, `progress` after every Job and about once a second while tools run. Interrupted, it
    leaves what was proved in the Pack, and the next call goes on from there. Raises PackError when the Pack is for another device,
    TargetUnavailable when this one cannot be opened."""
    extent = extent or Extent()
    environment = evaluator.environment
    pack.check(environment.target, environment.device)
    tool_path, versions = _tools(target, extent)
    found = Verification(
        manifest=pack.manifest.checksum,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment,
        random=extent.random,
        seed=extent.seed,
        limit=extent.workloads,
        tools=versions,
        rivals=sum(bool(e.rival) for e in pack.entries),
        kernels=(),
    )
    kernels = proved_before(pack, found)
    audits = [Audit(pack, entries, extent.workloads) for entries in pack.kernels().values()]
    left = [audit for audit in _drawn(audits, extent, target.facts().sms) if audit.candidate.id not in kernels]
    far = Progress(total=sum(len(a.served) + len(a.drawn) for a in left), kernels=len(left), before=len(kernels))
    stop = threading.Event()
    tool = sanitized.Sanitizer(tool_path, stop) if tool_path else None
    pool = ThreadPoolExecutor(2 * sanitized.PROCESSES)  # what waits for other processes, while the judge goes on to the next kernels
    auditor = Auditor(target, evaluator, tool, versions, pool)
    waiting: list[Audit] = []

    def step(audits: Sequence[Audit] = (), cases: int = 0) -> None:
        nonlocal waiting
        far.done += len(audits)
        far.cases += cases
        through = [audit for audit in waiting if audit.done()]
        waiting = [audit for audit in waiting if audit not in through]
        far.through += len(through)
        for audit in through:
            kernels[audit.candidate.id] = kernel = audit.result()
            told(kernel)
        failing = [a.name for a in audits if a.failures] + [a.name for a in through if kernels[a.candidate.id].failures]
        far.failing = tuple(dict.fromkeys((*far.failing, *failing)))
        if through:
            keep(pack, found.replace(kernels=tuple(kernels.values())), whole=False)
        progress(far)

    try:
        auditor.compile(left)
        for first in range(0, len(left), BATCH):
            batch = left[first : first + BATCH]
            auditor.judge(batch, step)
            auditor.start_tools(batch)
            waiting += batch
        while waiting:
            step()
            wait([future for audit in waiting for future, _ in audit.pending], timeout=1.0, return_when=FIRST_COMPLETED)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    found = found.replace(kernels=tuple(kernels[audit.candidate.id] for audit in audits))
    keep(pack, found, whole=True)
    return found


def _drawn(audits: Sequence[Audit], extent: Extent, sms: int) -> list[Audit]:
    """With their random shapes, those whose plans ask for the same side by side: they get the same shapes, so that inputs and references of
    one Job do for all of them."""
    groups: dict[object, list[Audit]] = {}
    for audit in audits:
        groups.setdefault(audit.alike, []).append(audit)
    for group in groups.values():
        served: dict[Workload, None] = {e.workload: None for audit in group for e in audit.entries}
        drawn = drawn_shapes(group[0].candidate.plan, sorted(served, key=lambda w: w.name), extent.random, extent.seed, sms)
        for audit in group:
            audit.drawn = drawn
    return [audit for group in groups.values() for audit in group]


def _tools(target: Target, extent: Extent) -> tuple[str | None, dict[str, str]]:
    """Path of the sanitizer if it is to be run, and what is said of each tool."""
    if target.kind != "cuda":
        return None, {tool: "not run: it is for CUDA kernels" for tool in sanitized.TOOLS}
    if not extent.sanitize:
        return None, {tool: "not run: it was not asked for" for tool in sanitized.TOOLS}
    if (path := find_tool("compute-sanitizer")) is None:
        why = "not run: compute-sanitizer is neither on PATH nor in the CUDA toolkit's bin folder"
        return None, {tool: why for tool in sanitized.TOOLS}
    try:
        version = f"compute-sanitizer {sanitized.sanitizer_version(path)}"
    except OSError as error:
        return None, {tool: f"not run: {error}" for tool in sanitized.TOOLS}
    return path, {tool: version for tool in sanitized.TOOLS}
