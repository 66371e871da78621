"""What `kernelwright pack verify` found out about a Pack: `verification.json`, in the Pack's folder."""

from __future__ import annotations

import msgspec

from kernelwright import __version__
from kernelwright.records import Environment, Record
from kernelwright.runtime.pack import Pack

FILE = "verification.json"
PARTLY = "verification.json.new"
"""The kernels proved so far, until all are. Left behind by an interrupt, for the next run to go on from."""


class Failure(Record, frozen=True, kw_only=True):
    where: str
    """A Workload, or the tool that found it."""
    outcome: str
    evidence: str


class Tool(Record, frozen=True, kw_only=True):
    """One kernel under one tool."""

    name: str
    outcome: str = ""
    """Of its Verdict; empty if it was not run."""
    evidence: str = ""
    """Also why it was not run."""


class Kernel(Record, frozen=True, kw_only=True):
    """All that one kernel went through."""

    candidate: str
    name: str
    config: dict[str, int | str | bool | float] = {}
    serves: int
    """Workloads of the Pack."""
    workloads: int
    """Those among them on which it was sent up the whole ladder."""
    cases: int
    """Checks made, on served and random shapes."""
    tails: int
    """Shapes of the `shapes` rung that ran."""
    refused: int
    """Those that its plan excludes."""
    random: int
    """Random shapes that ran; fewer than asked for where the plan accepts no more, or the kernel failed too often."""
    tools: tuple[Tool, ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    """In the judge, its share where kernels were run together: the tools' processes run beside it."""


class Verification(Record, frozen=True, kw_only=True):
    """`verification.json`."""

    manifest: str
    """Checksum of the manifest: a Pack that was made anew is not this one."""
    kernelwright: str = __version__
    created: str
    """UTC, ISO 8601."""
    environment: Environment
    random: int
    seed: int
    limit: int | None
    tools: dict[str, str]
    """Version of each tool, or why it was not run."""
    rivals: int
    """Workloads that a rival serves: there is no kernel of ours to verify."""
    kernels: tuple[Kernel, ...]

    @property
    def failed(self) -> tuple[Kernel, ...]:
        return tuple(k for k in self.kernels if k.failures)

    @property
    def not_run(self) -> int:
        """Runs of a tool that did not take place."""
        return sum(not tool.outcome for k in self.kernels for tool in k.tools)


def verification(pack: Pack) -> Verification | None:
    """What was found; None where there is nothing, or it is of another manifest than this or one with fewer times."""
    found = _read(pack, FILE)
    return found if found and found.manifest in (pack.manifest.checksum, *pack.manifest.earlier) else None


def proved_before(pack: Pack, now: Verification) -> dict[str, Kernel]:
    """The kernels, by candidate, that an interrupted verification has proved right; none if it was of another Pack, version or machine, or
    was asked for something else than `now`."""
    found = _read(pack, PARTLY)
    if found is None or found.replace(created=now.created, kernels=()) != now.replace(kernels=()):
        return {}
    return {k.candidate: k for k in found.kernels if not k.failures}


def keep(pack: Pack, found: Verification, *, whole: bool) -> None:
    """Leaves it in the Pack. Neither file is ever there by half."""
    fresh = pack.path / f"{PARTLY}~"
    fresh.write_bytes(msgspec.json.format(found.to_json().encode(), indent=1) + b"\n")
    fresh.rename(pack.path / (FILE if whole else PARTLY))
    if whole:
        (pack.path / PARTLY).unlink(missing_ok=True)


def _read(pack: Pack, name: str) -> Verification | None:
    try:
        return Verification.from_json((pack.path / name).read_bytes())
    except (OSError, ValueError):
        return None
