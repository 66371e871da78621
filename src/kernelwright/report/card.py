"""CARD.md of an exported Pack: what it serves, how much faster than the library by size class, where not, and where it comes from.

Ratios are the fastest rival's time over ours in the same rounds, as the Pack's evidence has them; where the Pack calls the library the
ratio is 1. A loss is an interval of the ratio under 1 and under the noise floor (`Comparison.outcome`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.problems.suites import SIZE_CLASSES, size_class
from kernelwright.records import Workload
from kernelwright.report.numbers import NONE, interval, ratio
from kernelwright.report.shapes import mean_of
from kernelwright.report.wording import workload_name
from kernelwright.runtime.pack import Entry, Pack

LISTED = 20
"""Losses that are listed, the worst first; all are counted."""


def card(pack: Pack, name: str, verification: str) -> str:
    """Markdown. `verification`: a clause on whether the Pack was proved again as it ships."""
    m = pack.manifest
    made = m.environment
    own = [e for e in pack.entries if not e.rival]
    modes = ", ".join(dict.fromkeys(e.evidence.mode for e in pack.entries))
    losses = sorted(((c.ratio, e.workload.name, c) for e in own if (c := e.strongest) and c.outcome == "loss"), key=lambda x: x[:2])
    lines = [
        f"# {name}",
        "",
        f"{len(pack.kernels())} kernels for {made.device} ({made.target}), measured on {len(pack.entries)} workloads: one of ours serves "
        f"{len(own)}, the library the other {len(pack.entries) - len(own)}, where it was faster.",
        "",
        "## Speed",
        "",
        f"Mode {modes}. Ratio: time of the fastest library call that was measured in the same rounds over the time of what the pack calls "
        "(where it calls the library: 1). Geometric mean with its 95 % interval over shapes. `ours`: of our kernels alone. `any storage`: "
        "ours against the fastest library call even where that was given operands stored otherwise.",
        "",
        "| workloads | size | shapes | ours serve | pack | ours | any storage | worst | losses |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(_kind(e.workload) for e in pack.entries):
        of_kind = [e for e in pack.entries if _kind(e.workload) == kind]
        for size in dict.fromkeys(("all", *SIZE_CLASSES)):
            if some := [e for e in of_kind if size in ("all", _size(e.workload))]:
                lines.append(_row(kind, size, some))
    sizes = ", ".join(f"{n} below 2^{int(x).bit_length() - 1}" for n, x in SIZE_CLASSES.items() if x < float("inf"))
    lines += ["", f"Sizes by floating-point operations, 2 M N K of a product: {sizes}, huge above; other problems by elements.", ""]
    lines += ["## Losses", "", f"{len(losses)} workloads are served by a kernel of ours that was slower than the fastest library call."]
    lines += [f"- {of}: {ratio(c.ratio)} ({interval(c.low, c.high)}) of {c.rival}" for _, of, c in losses[:LISTED]]
    if len(losses) > LISTED:
        lines.append(f"- and {len(losses) - LISTED} more")
    lines += ["", "## Provenance", "", f"- made {m.created} by kernelwright {m.kernelwright}; format {m.format} of the pack"]
    lines += [f"- {k}: {v}" for k, v in made.versions.items() if k != "kernelwright"]
    lines += [f"- {k}: {v}" for k, v in made.facts.items()]
    if m.rebuilt:
        lines.append(f"- {len(m.rebuilt)} builds are not those measured, but of {', '.join(sorted(set(m.rebuilt.values())))}")
    lines += [f"- verification: {verification}", f"- SHA-256 of the manifest, which has those of all {len(m.files)} files: {m.checksum}"]
    return "\n".join(lines) + "\n"


def _row(kind: str, size: str, entries: Sequence[Entry]) -> str:
    own = [e for e in entries if not e.rival]
    against = [e.strongest.ratio for e in own if e.strongest]
    any_storage = [min(c.ratio for c in of) for e in own if (of := [c for c in e.evidence.comparisons if c.mode == e.evidence.mode])]
    losses = sum(e.strongest is not None and e.strongest.outcome == "loss" for e in own)
    cells = [kind, size, str(len(entries)), str(len(own)), _mean(against + [1.0] * (len(entries) - len(own)))]
    cells += [_mean(against), _mean(any_storage), ratio(min(against, default=None)), str(losses)]
    return f"| {' | '.join(cells)} |"


def _mean(ratios: Sequence[float]) -> str:
    return f"{ratio(m.mean)} ({interval(m.low, m.high)})" if (m := mean_of(ratios)) else NONE


def _kind(w: Workload) -> str:
    return workload_name(w.replace(axes={}))


def _size(w: Workload) -> str:
    work = prod(w.axes.values()) * (2 if {"M", "N", "K"} <= set(w.axes) else 1)
    return size_class(work)
