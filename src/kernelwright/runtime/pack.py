"""A Pack: what ships for one device, as a folder that holds all it needs.

    manifest.json   which kernel serves which Workload, its launch plan, the evidence, a checksum of every file
    sources/        the kernels' source, to read and to build again
    builds/         cubins or shared objects
    times.json      what was measured of these kernels on all Workloads, for predictions

For each Workload the measured best of all ships: our own kernel where it was confirmed at least as fast as every rival beside it, else
the fastest rival by name. A Pack is code: the checksums find damage, not malice, so load only Packs from people you trust.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kernelwright import __version__
from kernelwright.records import Candidate, Comparison, Environment, LaunchPlan, Origin, Outcome, Record, Trial, Workload, stored_otherwise
from kernelwright.runtime import times
from kernelwright.settings import reason

FORMAT = 1

_SUFFIX = {"cuda": ".cu", "cpu": ".cpp", "python": ".py"}


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
    source: str = ""
    """File in the Pack."""
    artifact: str = ""
    """File in the Pack; empty where nothing is compiled."""
    plan: LaunchPlan | None = None
    flags: tuple[str, ...] = ()
    origin: Origin | None = None
    evidence: Evidence

    @property
    def vendor_us(self) -> float | None:
        """Microseconds of the fastest rival that could serve the Workload; None where none was measured beside the kernel."""
        mode, own = self.evidence.mode, self.evidence.median
        able = (c.rival_us for c in self.evidence.comparisons if c.mode == mode and not stored_otherwise(c.rival))
        return min(able, default=own if self.rival else None)  # the evidence of a rival that won is its own


class Manifest(Record, frozen=True, kw_only=True):
    format: int = FORMAT
    kernelwright: str = __version__
    created: str
    """UTC, ISO 8601."""
    environment: Environment
    """Device, driver, compiler and library versions of the measurements."""
    entries: tuple[Entry, ...]
    files: dict[str, str]
    """SHA-256 of each file by its path in the Pack."""
    checksum: str = ""
    """SHA-256 of this manifest with this field empty."""

    def digest(self) -> str:
        return hashlib.sha256(self.replace(checksum="").to_json().encode()).hexdigest()


@dataclass(frozen=True)
class Pack:
    """A Pack on disk whose files were verified."""

    path: Path
    manifest: Manifest

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.manifest.entries

    def entry(self, w: Workload) -> Entry | None:
        """What serves a Workload; None if the Pack has nothing for it."""
        return next((e for e in self.entries if e.workload == w), None)

    def kernels(self) -> dict[str, list[Entry]]:
        """The entries of each kernel of ours, by Candidate id: one kernel may serve many Workloads."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if not entry.rival:
                found.setdefault(entry.candidate, []).append(entry)
        return found

    def candidate(self, entry: Entry) -> Candidate:
        """The Candidate of an entry, identical to the one that was measured. Raises ValueError for a rival's entry."""
        return _candidate(entry, (self.path / entry.source).read_text(encoding="utf-8") if entry.source else "")

    def artifact(self, entry: Entry) -> Path | None:
        """The built kernel; None where nothing is compiled."""
        return self.path / entry.artifact if entry.artifact else None

    def times(self) -> times.Times:
        """What was measured of the kernels; of a Pack without the file, what its entries say: each kernel where it serves."""
        if times.FILE in self.manifest.files:
            return times.Times.from_json(_read(self.path, times.FILE, f"the pack {self.path} lacks {times.FILE}; make it again"))
        found: dict[str, list[tuple[int, float]]] = {}
        for i, e in enumerate(self.entries):
            if not e.rival:
                found.setdefault(e.candidate, []).append((i, e.evidence.median))
        mode = self.entries[0].evidence.mode if self.entries else ""
        return times.Times(mode=mode, kernels={k: tuple(seen) for k, seen in found.items()})

    def check(self, target: str, device: str) -> None:
        """Raises PackError unless the Pack was made for this target (`cuda:sm_90`) and device (`NVIDIA H200`): kernels chosen on one
        GPU may not run on another, or be slow there."""
        made = self.manifest.environment
        if (made.target, made.device) != (target, device):
            raise PackError(
                f"the pack {self.path} was made for {made.target} ({made.device}), this device is {target} ({device}); "
                "make one here with `kernelwright tune`"
            )

    def info(self) -> dict[str, object]:
        """What `pack info` prints."""
        own = [e for e in self.entries if not e.rival]
        return {
            "path": str(self.path),
            "format": self.manifest.format,
            "target": self.manifest.environment.target,
            "device": self.manifest.environment.device,
            "created": self.manifest.created,
            "kernelwright": self.manifest.kernelwright,
            "versions": dict(self.manifest.environment.versions),
            "workloads": len(self.entries),
            "own kernels": len(own),
            "vendor kernels": len(self.entries) - len(own),
            "entries": {e.workload.name: _wording(e) for e in self.entries},
        }


def _wording(entry: Entry) -> str:
    name = f"rival {entry.rival}" if entry.rival else f"{entry.origin.name if entry.origin else entry.kind}/{entry.candidate[:8]}"
    ratios = [f"{c.ratio:.2f} x {c.rival}" for c in entry.evidence.comparisons if c.mode == entry.evidence.mode]
    own = "our best was " if entry.rival else ""
    return f"{name} ({own}{', '.join(ratios) or f'{entry.evidence.median:.1f} us'}, {entry.evidence.mode})"


def _candidate(entry: Entry, source: str) -> Candidate:
    if entry.rival or entry.origin is None:
        raise ValueError(f"{entry.workload.name} is served by the rival {entry.rival}, not by a kernel of the pack")
    return msgspec.convert(
        {"kind": entry.kind, "source": source, "plan": entry.plan, "flags": entry.flags, "origin": entry.origin}, Candidate
    )


# ------------------------------------------------------------------------------------------------------------------ save


def save(path: str | Path, trials: Sequence[Trial], screens: Iterable[Trial] = ()) -> Pack:
    """Writes a Pack with the best of the confirmed Trials for each Workload; Workloads without one are left out. `screens` add what its
    kernels showed elsewhere. An older Pack at `path` is replaced when the new one is complete. Raises PackError."""
    path = Path(os.path.abspath(path))
    chosen = _choose(trials)
    if not chosen:
        raise PackError("there is no confirmed right candidate to put into a pack; run `kernelwright optimize` or `tune` first")
    places = {(t.environment.target, t.environment.device) for t, _ in chosen.values()}
    if len(places) > 1:
        names = ", ".join(f"{device} ({target})" for target, device in sorted(places))
        raise PackError(f"a pack is for one device, these trials are of several: {names}; save them one by one")
    if path.exists() and not (path / "manifest.json").is_file() and (not path.is_dir() or any(path.iterdir())):
        raise PackError(f"{path} exists and is not a pack; choose another place")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in ("sources", "builds"):
            (partial / folder).mkdir(parents=True)
        manifest = _write(partial, chosen, screens)
        _swap(partial, path)
    except OSError as error:
        raise PackError(f"the pack {path} was not written: {reason(error, path)}; choose another place or make room") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Pack(path, manifest)


def _choose(trials: Sequence[Trial]) -> dict[str, tuple[Trial, list[Trial]]]:
    """By Workload id: the fastest confirmed right Trial in the mode of its first timing, and all confirming Trials of the Workload.

    A Candidate that failed in any of the Trials otherwise than by noise is out."""
    failed = {(t.workload.id, t.candidate.id) for t in trials if t.verdict.outcome not in (Outcome.OK, Outcome.NOISY)}
    groups: dict[str, list[Trial]] = {}
    for t in trials:
        served = t.candidate.kind != "rival" or not stored_otherwise(t.candidate.source)
        if served and t.stage in ("confirm", "replay") and t.verdict.ok and (t.workload.id, t.candidate.id) not in failed:
            groups.setdefault(t.workload.id, []).append(t)
    chosen = {}
    for key, group in groups.items():
        mode = group[0].timings[0].mode
        ranked = sorted((t for t in group if t.timing(mode)), key=lambda t: t.median(mode))
        chosen[key] = (ranked[0], ranked)
    return chosen


def entry_of(best: Trial, group: Sequence[Trial]) -> Entry:
    """What serves the Workload of these confirming Trials, of which `best` is the fastest: its kernel, or a rival that was faster."""
    mode, c = best.timings[0].mode, best.candidate
    evidence = Evidence(
        trials=tuple(dict.fromkeys((best.id, *(t.id for t in group)))),
        mode=mode,
        median=best.median(mode),
        outcome=best.verdict.outcome,
        comparisons=best.comparisons,
    )
    able = (c for c in best.comparisons if c.mode == mode and not stored_otherwise(c.rival))
    strongest = min(able, key=lambda c: c.ratio, default=None)
    if c.kind == "rival" or (strongest and strongest.ratio < 1):
        rival = c.source if c.kind == "rival" or strongest is None else strongest.rival
        return Entry(workload=best.workload, rival=rival, evidence=evidence)
    built = Path(best.build.artifact) if best.build and best.build.artifact else None
    return Entry(
        workload=best.workload,
        candidate=c.id,
        kind=c.kind,
        source=f"sources/{c.id}{_SUFFIX.get(c.kind, '.txt')}",
        artifact=f"builds/{best.build.key}{built.suffix}" if best.build and built else "",
        plan=c.plan,
        flags=c.flags,
        origin=c.origin,
        evidence=evidence,
    )


def _write(folder: Path, chosen: dict[str, tuple[Trial, list[Trial]]], screens: Iterable[Trial]) -> Manifest:
    files: dict[str, bytes] = {}
    entries = []
    for best, group in chosen.values():
        entries.append(entry := entry_of(best, group))
        if entry.source:
            files[entry.source] = best.candidate.source.encode()
        if entry.artifact and best.build:
            files[entry.artifact] = _built(Path(best.build.artifact), best)
    environment = next(iter(chosen.values()))[0].environment
    confirmed = [t for _, group in chosen.values() for t in group]
    comparable = (t for t in screens if t.environment.comparable(environment))
    kernels = dict.fromkeys(e.candidate for e in entries if not e.rival)
    seen = times.gather([e.workload for e in entries], kernels, entries[0].evidence.mode, confirmed, comparable)
    files[times.FILE] = seen.to_json().encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment,
        entries=tuple(entries),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )
    return _sealed(folder, manifest)


def _sealed(folder: Path, manifest: Manifest) -> Manifest:
    manifest = manifest.replace(checksum=manifest.digest())
    written = folder / f".manifest.{os.getpid()}.json"
    written.write_bytes(msgspec.json.format(manifest.to_json().encode(), indent=1))
    written.replace(folder / "manifest.json")
    return manifest


def add_times(path: str | Path, trials: Sequence[Trial]) -> Pack:
    """Takes down anew what was measured of a Pack's kernels, from an archive that has grown since, and leaves the rest as it is; a
    verification of the Pack no longer counts, since the manifest is another. Raises PackError."""
    loaded = load(path)
    comparable = [t for t in trials if t.environment.comparable(loaded.manifest.environment)]
    confirmed, screens = ([t for t in comparable if t.stage == stage] for stage in ("confirm", "screen"))
    workloads, mode = [e.workload for e in loaded.entries], loaded.times().mode
    content = times.gather(workloads, loaded.kernels(), mode, confirmed, screens).to_json().encode()
    files = loaded.manifest.files | {times.FILE: hashlib.sha256(content).hexdigest()}
    try:
        (loaded.path / times.FILE).write_bytes(content)
        return Pack(loaded.path, _sealed(loaded.path, loaded.manifest.replace(files=files, checksum="")))
    except OSError as error:
        raise PackError(f"the pack {loaded.path} was not changed: {reason(error, loaded.path)}; make room or copy it") from None


def _built(path: Path, trial: Trial) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PackError(
            f"the build of {trial.candidate.label} for {trial.workload.name} is no longer in the cache ({path}); "
            f"build it again with `kernelwright replay {trial.id}`"
        ) from None


def _swap(new: Path, path: Path) -> None:
    """Puts a complete folder in its place. An older one moves aside first: a rename cannot replace a folder that is not empty."""
    if not path.exists() or not any(path.iterdir()):
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old)


# ------------------------------------------------------------------------------------------------------------------ load


class _Header(msgspec.Struct):
    """The field that every format has."""

    format: int


def load(path: str | Path) -> Pack:
    """Opens a Pack and verifies every file in it. Raises PackError for what is not a Pack, is newer, or is damaged."""
    path = Path(os.path.abspath(path))
    text = _read(path, "manifest.json", f"{path} is not a pack (it has no manifest.json)")
    try:
        header = msgspec.json.decode(text, type=_Header)
        if header.format > FORMAT:
            raise PackError(
                f"the pack {path} has format {header.format}, this kernelwright knows {FORMAT}; upgrade kernelwright or make it again"
            )
        manifest = Manifest.from_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PackError(f"the manifest of the pack {path} is damaged ({error}); make the pack again") from None
    if manifest.digest() != manifest.checksum:
        raise PackError(f"the manifest of the pack {path} was changed or damaged; make the pack again")
    for name, expected in manifest.files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise PackError(f"the pack {path} names a file outside of itself ({name}); do not use it")
        if hashlib.sha256(_read(path, name, f"the pack {path} lacks {name}; make it again")).hexdigest() != expected:
            raise PackError(f"{name} of the pack {path} is damaged; make the pack again")
    pack = Pack(path, manifest)
    for entry in manifest.entries:
        if not {entry.source, entry.artifact} - {""} <= set(manifest.files):
            raise PackError(f"the pack {path} has no checksum for the files of {entry.workload.name}; make the pack again")
        if not entry.rival and pack.candidate(entry).id != entry.candidate:
            raise PackError(f"the kernel of {entry.workload.name} in the pack {path} is not the one measured; make the pack again")
    return pack


def _read(path: Path, name: str, missing: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise PackError(missing) from None
        raise PackError(f"{path / name} cannot be read: {error.strerror}") from None
