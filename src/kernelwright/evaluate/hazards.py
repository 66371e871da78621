"""Which of racecheck's reports are about no hazard.

An mbarrier that one thread initialises under a uniform predicate (`@!UP0 SYNCS.EXCH.64`, which ptxas makes of a short
`if (threadIdx.x == 0)`) is taken by the tool for a write of all 32 lanes, and the same thread's next arrival at it for a race with 31 of
them. Of 51 cubins of one source (whole_k.cuh with split_k, compute-sanitizer 2025.3.1 on an H200) the 38 that ptxas had compiled to that
form were reported, and none of the 13 with a branch (`BRA`, then `SYNCS.EXCH.64`). So a report is left out of account if the tool itself
calls it a warning (both sides in one warp), one side is such an initialisation and all the others are instructions on mbarriers, which are
atomic.
"""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.targets.sass import instructions

Warned = tuple[tuple[str, int], ...]
"""A warning of racecheck: the places that it names, each a kernel and an offset in its machine code, the first side first."""

_REPORT = re.compile(r"^=+ (\w+): Race reported between \w+ access at (.+\n(?:^=+ +and \w+ access at .+\n?)+)", re.MULTILINE)
_PLACE = re.compile(r"(\w+)(?:\(.*\))?\+0x([0-9a-f]+)")
_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_ONE_THREAD = re.compile(r"@!?UP\d+ SYNCS\.EXCH")


def warnings(output: str) -> frozenset[Warned]:
    """Those of a run of racecheck that reported nothing else, `output` being what it printed; none if there is anything in it that is no
    warning, or is not understood."""
    reports = _REPORT.findall(output)
    summary = _SUMMARY.search(output)
    if summary is None or tuple(map(int, summary.groups())) != (len(reports), 0, len(reports)):
        return frozenset()
    found = {tuple((kernel, int(offset, 16)) for kernel, offset in _PLACE.findall(places)) for _, places in reports}
    understood = all(
        severity == "Warning" and len(_PLACE.findall(places)) == places.count(" access at ") + 1 for severity, places in reports
    )
    return frozenset(found) if understood else frozenset()


def no_hazard(warned: frozenset[Warned], cubin: str | Path) -> bool:
    """Whether all are the mistake above. Raises TargetUnavailable without a disassembler, ValueError when the file is no cubin."""
    code = instructions(cubin)
    met = [[code.get(kernel, {}).get(offset, "") for kernel, offset in places] for places in warned]
    return all(any(map(_ONE_THREAD.match, sides)) and all("SYNCS." in side for side in sides) for sides in met)
