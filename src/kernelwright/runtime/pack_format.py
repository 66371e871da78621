"""The manifest of a Pack, in memory and as manifest.json.

Format 2 says each thing once, one kernel, entry or file a line: what a kernel is in `kernels`, what the ratios of an entry share (mode,
noise floor, rounds) before them. Nothing is rounded. Format 1 said all of it again for every entry, five times as long; it is still read.
"""

from __future__ import annotations

import hashlib
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from kernelwright import __version__
from kernelwright.records import Comparison, Environment, LaunchPlan, Origin, Outcome, Record, Workload, cannot_serve

FORMAT = 2


class PackError(RuntimeError):
    """The Pack cannot be written or used; the message is one sentence with the fix."""


class Evidence(Record, frozen=True, kw_only=True):
    """Why this kernel was chosen."""

    trials: tuple[str, ...]
    """Ids of the confirming Trials of the Workload, the chosen one first."""
    mode: str
    median: float
    """Microseconds in that mode, of what the first Trial measured: our kernel, or a rival that was faster than all of ours."""
    outcome: Outcome
    comparisons: tuple[Comparison, ...] = ()


class Entry(Record, frozen=True, kw_only=True):
    """What serves one Workload."""

    workload: Workload
    rival: str = ""
    """Name of the rival to call instead of a kernel of ours; then the fields of the kernel are empty."""
    candidate: str = ""
    """Id."""
    kind: str = ""
    sources: tuple[str, ...] = ()
    """Files in the Pack; the source is their texts one after the other. Kernels share the files that are the same for all of a scheme."""
    artifact: str = ""
    """File in the Pack; empty where nothing is compiled."""
    plan: LaunchPlan | None = None
    flags: tuple[str, ...] = ()
    origin: Origin | None = None
    evidence: Evidence

    @property
    def strongest(self) -> Comparison | None:
        """With the fastest rival, in the evidence's mode, that could serve the Workload; None where none was measured beside the kernel."""
        able = (c for c in self.evidence.comparisons if c.mode == self.evidence.mode and not cannot_serve(c.rival))
        return min(able, key=lambda c: c.ratio, default=None)

    @property
    def vendor_us(self) -> float | None:
        """Microseconds of the fastest rival that could serve the Workload; None where none was measured beside the kernel."""
        mode, own = self.evidence.mode, self.evidence.median
        able = (c.rival_us for c in self.evidence.comparisons if c.mode == mode and not cannot_serve(c.rival))
        return min(able, default=own if self.rival else None)  # the evidence of a rival that won is its own


class Manifest(Record, frozen=True, kw_only=True):
    format: int = FORMAT
    """Of the file it was read from."""
    kernelwright: str = __version__
    created: str
    """UTC, ISO 8601."""
    environment: Environment
    """Device, driver, compiler and library versions of the measurements."""
    entries: tuple[Entry, ...]
    files: dict[str, str]
    """SHA-256 of each file by its path in the Pack."""
    rebuilt: dict[str, str] = {}
    """Compiler of each build that is not the one measured: `pack build` made it from the source, and it came out otherwise."""
    earlier: tuple[str, ...] = ()
    """Checksums that it had before times were added: all else is as it was, and so a verification still counts."""
    checksum: str = ""
    """SHA-256 of the file with this field empty."""


# ------------------------------------------------------------------------------------------------------------- format 2


class _Kernel(Record, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    sources: tuple[str, ...] = ()
    artifact: str = ""
    plan: LaunchPlan | None = None
    flags: tuple[str, ...] = ()
    origin: Origin | None = None


class _Ratio(msgspec.Struct, frozen=True, array_like=True):
    rival: str
    ratio: float
    low: float
    high: float
    rival_us: float


class _Beside(msgspec.Struct, frozen=True, array_like=True):
    """The rivals measured in the same rounds."""

    mode: str
    noise_low: float
    noise_high: float
    rounds: int
    ratios: tuple[_Ratio, ...]


class _Entry(Record, frozen=True, kw_only=True, omit_defaults=True):
    workload: Workload
    kernel: str = ""
    rival: str = ""
    mode: str
    median: float
    outcome: Outcome
    trials: tuple[str, ...]
    beside: tuple[_Beside, ...] = ()


class _Stored(Record, frozen=True, kw_only=True):
    format: int
    checksum: str
    kernelwright: str
    created: str
    environment: Environment
    rebuilt: dict[str, str]
    kernels: dict[str, _Kernel]
    entries: tuple[_Entry, ...]
    files: dict[str, str]
    earlier: tuple[str, ...] = ()

    def text(self) -> bytes:
        fields = [f for f in self.__struct_fields__ if f != "earlier" or self.earlier]  # manifests were written without it
        return b"{\n" + b",\n".join(b'"%s":%s' % (f.encode(), _lines(getattr(self, f))) for f in fields) + b"\n}\n"

    def digest(self) -> str:
        return hashlib.sha256(self.replace(checksum="").text()).hexdigest()


def _lines(value: Any) -> bytes:
    """JSON with an element a line."""
    encode = msgspec.json.encode
    if isinstance(value, dict) and value:
        return b"{\n" + b",\n".join(encode(k) + b":" + encode(v) for k, v in value.items()) + b"\n}"
    if isinstance(value, tuple) and value:
        return b"[\n" + b",\n".join(map(encode, value)) + b"\n]"
    return encode(value)


def _kernel(e: Entry) -> _Kernel:
    return _Kernel(kind=e.kind, sources=e.sources, artifact=e.artifact, plan=e.plan, flags=e.flags, origin=e.origin)


def _beside(comparisons: tuple[Comparison, ...]) -> tuple[_Beside, ...]:
    groups = groupby(comparisons, key=lambda c: (c.mode, c.noise_low, c.noise_high, c.rounds))
    return tuple(_Beside(*shared, tuple(_Ratio(c.rival, c.ratio, c.low, c.high, c.rival_us) for c in same)) for shared, same in groups)


def _comparisons(beside: tuple[_Beside, ...]) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            rival=r.rival,
            mode=b.mode,
            ratio=r.ratio,
            low=r.low,
            high=r.high,
            rival_us=r.rival_us,
            noise_low=b.noise_low,
            noise_high=b.noise_high,
            rounds=b.rounds,
        )
        for b in beside
        for r in b.ratios
    )


def encode(manifest: Manifest) -> bytes:
    """manifest.json, with its checksum. Of a kernel that has several origins the first entry's is kept."""
    kernels: dict[str, _Kernel] = {}
    for e in manifest.entries:
        if not e.rival:
            kernels.setdefault(e.candidate, _kernel(e))
    entries = tuple(
        _Entry(
            workload=e.workload,
            kernel=e.candidate,
            rival=e.rival,
            mode=e.evidence.mode,
            median=e.evidence.median,
            outcome=e.evidence.outcome,
            trials=e.evidence.trials,
            beside=_beside(e.evidence.comparisons),
        )
        for e in manifest.entries
    )
    stored = _Stored(
        format=FORMAT,
        checksum="",
        kernelwright=manifest.kernelwright,
        created=manifest.created,
        environment=manifest.environment,
        rebuilt=manifest.rebuilt,
        kernels=kernels,
        entries=entries,
        files=manifest.files,
        earlier=manifest.earlier,
    )
    return stored.replace(checksum=stored.digest()).text()


def _decode2(text: bytes) -> tuple[Manifest, str]:
    stored = _Stored.from_json(text)

    def entry(e: _Entry) -> Entry:
        evidence = Evidence(trials=e.trials, mode=e.mode, median=e.median, outcome=e.outcome, comparisons=_comparisons(e.beside))
        if e.rival:
            return Entry(workload=e.workload, rival=e.rival, evidence=evidence)
        if (k := stored.kernels.get(e.kernel)) is None:
            raise ValueError(f"it lacks the kernel {e.kernel!r} of {e.workload.name}")
        of_kernel = {f: getattr(k, f) for f in _Kernel.__struct_fields__}
        return Entry(workload=e.workload, candidate=e.kernel, evidence=evidence, **of_kernel)

    manifest = Manifest(
        format=stored.format,
        kernelwright=stored.kernelwright,
        created=stored.created,
        environment=stored.environment,
        entries=tuple(map(entry, stored.entries)),
        files=stored.files,
        rebuilt=stored.rebuilt,
        earlier=stored.earlier,
        checksum=stored.checksum,
    )
    return manifest, stored.digest()


# ----------------------------------------------------------------------------------------------------- format 1, decode


class _Entry1(Record, frozen=True, kw_only=True):
    workload: Workload
    rival: str = ""
    candidate: str = ""
    kind: str = ""
    source: str = ""
    artifact: str = ""
    plan: LaunchPlan | None = None
    flags: tuple[str, ...] = ()
    origin: Origin | None = None
    evidence: Evidence


class _Manifest1(Record, frozen=True, kw_only=True):
    format: int
    kernelwright: str
    created: str
    environment: Environment
    entries: tuple[_Entry1, ...]
    files: dict[str, str]
    checksum: str = ""


def _decode1(text: bytes) -> tuple[Manifest, str]:
    old = _Manifest1.from_json(text)
    fields = {f: getattr(old, f) for f in _Manifest1.__struct_fields__}
    entries = []
    for e in old.entries:
        of_entry = {f: getattr(e, f) for f in _Entry1.__struct_fields__ if f != "source"}
        entries.append(Entry(**of_entry, sources=(e.source,) if e.source else ()))
    digest = hashlib.sha256(old.replace(checksum="").to_json().encode()).hexdigest()
    return Manifest(**{**fields, "entries": tuple(entries)}), digest


class _Header(msgspec.Struct):
    """The field that every format has."""

    format: int


def decode(text: bytes, path: Path) -> Manifest:
    """Raises PackError for a newer format and for damage; `path` is the Pack's, for the sentence."""
    try:
        found = msgspec.json.decode(text, type=_Header).format
        if found > FORMAT:
            raise PackError(f"the pack {path} has format {found}, this kernelwright knows {FORMAT}; upgrade kernelwright or make it again")
        manifest, digest = (_decode1 if found == 1 else _decode2)(text)
    except (msgspec.DecodeError, ValueError) as error:
        raise PackError(f"the manifest of the pack {path} is damaged ({error}); make the pack again") from None
    if digest != manifest.checksum:
        raise PackError(f"the manifest of the pack {path} was changed or damaged; make the pack again")
    return manifest
