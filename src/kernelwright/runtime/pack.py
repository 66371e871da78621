"""A Pack: what ships for one device, as a folder that holds all it needs.

    manifest.json   which kernel serves which Workload, its launch plan, the evidence, a checksum of every file
    sources/        the kernels' source, to read and to build again: the files of a kernel one after the other (`pack_sources`)
    builds/         cubins or shared objects; a Pack shipped without them is built with `kernelwright pack build`
    times.json      what was measured of these kernels on all Workloads, for predictions

For each Workload the measured best of all ships: our own kernel where it was confirmed at least as fast as every rival beside it, else
the fastest rival by name. A Pack is code: the checksums find damage, not malice, so load only Packs from people you trust.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.records import Build, Candidate, Environment, Trial, Workload
from kernelwright.runtime import pack_sources, times
from kernelwright.runtime.pack_choice import choose, entry_of
from kernelwright.runtime.pack_format import FORMAT, Entry, Manifest, PackError, decode, encode
from kernelwright.settings import reason
from kernelwright.targets import nvrtc

__all__ = ["Entry", "Manifest", "Pack", "PackError", "add_times", "entry_of", "load", "save"]


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
        if entry.rival or entry.origin is None:
            raise ValueError(f"{entry.workload.name} is served by the rival {entry.rival}, not by a kernel of the pack")
        source = b"".join((self.path / name).read_bytes() for name in entry.sources).decode()
        return msgspec.convert(
            {"kind": entry.kind, "source": source, "plan": entry.plan, "flags": entry.flags, "origin": entry.origin}, Candidate
        )

    def buildable(self, entry: Entry) -> Candidate:
        """The Candidate to compile: with the header library that the Pack holds in its source, which another version's need not serve. A
        Pack of format 1 holds none, and its kernels get the installed one."""
        found = self.candidate(entry)
        names = [n for n in self.manifest.files if n.startswith(pack_sources.HEADERS)]
        headers = {f"kernelwright/{n.removeprefix(pack_sources.HEADERS)}": (self.path / n).read_bytes().decode() for n in names}
        return found.replace(source=nvrtc.inlined(found.source, headers))

    def artifact(self, entry: Entry) -> Path | None:
        """The built kernel; None where nothing is compiled."""
        return self.path / entry.artifact if entry.artifact else None

    def unbuilt(self) -> dict[str, Entry]:
        """The builds that are named but not there, each with an entry that it is for."""
        return {e.artifact: e for e in self.entries if e.artifact.startswith("builds/") and not (self.path / e.artifact).exists()}

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
            "builds not measured": len(self.manifest.rebuilt),
            "workloads": len(self.entries),
            "own kernels": len(own),
            "vendor kernels": len(self.entries) - len(own),
            "entries": self.described(),
        }

    def described(self) -> dict[str, str]:
        """By Workload, what serves it, and how fast."""
        return {e.workload.name: _wording(e) for e in self.entries}


def _wording(entry: Entry) -> str:
    name = f"rival {entry.rival}" if entry.rival else f"{entry.origin.name if entry.origin else entry.kind}/{entry.candidate[:8]}"
    ratios = [f"{c.ratio:.2f} x {c.rival}" for c in entry.evidence.comparisons if c.mode == entry.evidence.mode]
    own = "our best was " if entry.rival else ""
    return f"{name} ({own}{', '.join(ratios) or f'{entry.evidence.median:.1f} us'}, {entry.evidence.mode})"


# ------------------------------------------------------------------------------------------------------------------ save


def save(
    path: str | Path,
    trials: Sequence[Trial],
    screens: Iterable[Trial] = (),
    tolerance: float = 0.0,
    builds: Mapping[str, Build] | None = None,
) -> Pack:
    """Writes a Pack with the best of the confirmed Trials for each Workload; Workloads without one are left out. With a `tolerance` (0.01:
    1 %) by which a Workload's kernel may be slower than its best, few kernels ship. `screens` add what they showed elsewhere. `builds`,
    by Candidate id, ship in place of those that were measured. An older Pack at `path` is replaced when the new one is complete.
    Raises PackError."""
    path = Path(os.path.abspath(path))
    chosen = choose(trials, tolerance)
    if not chosen:
        raise PackError("there is no confirmed right candidate to put into a pack; run `kernelwright optimize` or `tune` first")
    places = {(t.environment.target, t.environment.device) for t, _ in chosen.values()}
    if len(places) > 1:
        names = ", ".join(f"{device} ({target})" for target, device in sorted(places))
        raise PackError(f"a pack is for one device, these trials are of several: {names}; save them one by one")
    free(path)
    with whole(path) as folder:
        for name in ("sources", "builds"):
            (folder / name).mkdir()
        manifest = _write(folder, chosen, screens, builds or {})
    return Pack(path, manifest)


def _write(folder: Path, chosen: dict[str, tuple[Trial, list[Trial]]], screens: Iterable[Trial], builds: Mapping[str, Build]) -> Manifest:
    sources: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    entries = []
    shipped: dict[str, str] = {}
    rebuilt: dict[str, str] = {}
    for best, group in chosen.values():
        if (made := builds.get(best.candidate.id)) and best.build:
            if made.key != best.build.key:
                rebuilt[f"builds/{made.key}{Path(made.artifact).suffix}"] = made.compiler
            best = best.replace(build=made)
        entry = entry_of(best, group)
        # one that was built twice (with another version, say) ships as it was built first
        entry = entry.replace(artifact=shipped.setdefault(entry.candidate, entry.artifact)) if entry.candidate else entry
        entries.append(entry)
        for name in entry.sources:
            sources[name] = best.candidate.source.encode()
        if entry.artifact and entry.artifact not in files and best.build:
            files[entry.artifact] = _built(Path(best.build.artifact), best)
    parts, texts = pack_sources.split(sources)
    texts |= pack_sources.headers(sources.values())
    entries = [e if e.rival else e.replace(sources=parts[e.sources[0]]) for e in entries]
    environment = next(iter(chosen.values()))[0].environment
    confirmed = [t for _, group in chosen.values() for t in group]
    comparable = (t for t in screens if t.environment.comparable(environment))
    kernels = dict.fromkeys(e.candidate for e in entries if not e.rival)
    seen = times.gather([e.workload for e in entries], kernels, entries[0].evidence.mode, confirmed, comparable)
    return write(folder, environment, entries, texts | files | {times.FILE: seen.to_json().encode()}, rebuilt=rebuilt)


def write(folder: Path, environment: Environment, entries: Sequence[Entry], files: Mapping[str, bytes], **fields: Any) -> Manifest:
    """The files of a new Pack and its manifest, of which `fields` are further ones."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment,
        entries=tuple(entries),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        **fields,
    )
    return seal(folder, manifest)


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Writes the manifest with its checksum, and returns it as it will be read."""
    text = encode(manifest)
    written = folder / f".manifest.{os.getpid()}.json"
    written.write_bytes(text)
    written.replace(folder / "manifest.json")
    return decode(text, folder)


def add_times(path: str | Path, trials: Sequence[Trial]) -> Pack:
    """Adds what an archive knows of the times of a Pack's kernels, and of the rivals beside them, and leaves the rest as it is: a
    verification of the Pack still counts. Raises PackError."""
    loaded = load(path, built=False)
    comparable = [t for t in trials if t.environment.comparable(loaded.manifest.environment)]
    confirmed, screens = ([t for t in comparable if t.stage == stage] for stage in ("confirm", "screen"))
    workloads, mode = [e.workload for e in loaded.entries], loaded.times().mode
    content = loaded.times().added(times.gather(workloads, loaded.kernels(), mode, confirmed, screens)).to_json().encode()
    files = loaded.manifest.files | {times.FILE: hashlib.sha256(content).hexdigest()}
    earlier = (*loaded.manifest.earlier, loaded.manifest.checksum) if loaded.manifest.format == FORMAT else ()
    try:
        (loaded.path / times.FILE).write_bytes(content)
        return Pack(loaded.path, seal(loaded.path, loaded.manifest.replace(files=files, earlier=earlier)))
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


def free(path: Path) -> None:
    """Raises PackError for a place where something other than a Pack is."""
    if path.exists() and not (path / "manifest.json").is_file() and (not path.is_dir() or any(path.iterdir())):
        raise PackError(f"{path} exists and is not a pack; choose another place")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A new folder to fill, which is at `path` when all is in it, or not at all. Raises PackError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        _swap(partial, path)
    except OSError as error:
        raise PackError(f"{path} was not written: {reason(error, path)}; choose another place or make room") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def load(path: str | Path, *, built: bool = True) -> Pack:
    """Opens a Pack and verifies every file in it. Raises PackError for what is no Pack, is newer, or is damaged, and with `built` for what
    lacks builds."""
    path = Path(os.path.abspath(path))
    manifest = decode(_read(path, "manifest.json", f"{path} is not a pack (it has no manifest.json)"), path)
    pack = Pack(path, manifest)
    unbuilt, used = pack.unbuilt(), {e.artifact for e in manifest.entries}
    if unbuilt and built:
        raise PackError(f"the pack {path} lacks {len(unbuilt)} of its builds; compile them with `kernelwright pack build {path}`")
    for name, expected in manifest.files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise PackError(f"the pack {path} names a file outside of itself ({name}); do not use it")
        if name in unbuilt or (name.startswith("builds/") and name not in used and not (path / name).exists()):
            continue  # to be built, or of no use
        if hashlib.sha256(_read(path, name, f"the pack {path} lacks {name}; make it again")).hexdigest() != expected:
            fix = "delete the file and run `kernelwright pack build`" if name.startswith("builds/") else "make the pack again"
            raise PackError(f"{name} of the pack {path} is damaged; {fix}")
    for entry in manifest.entries:
        if not {*entry.sources, entry.artifact} - {""} <= set(manifest.files):
            raise PackError(f"the pack {path} has no checksum for the files of {entry.workload.name}; make the pack again")
    for entries in pack.kernels().values():
        if len({(e.sources, e.artifact, e.plan, e.flags) for e in entries}) > 1 or pack.candidate(entries[0]).id != entries[0].candidate:
            raise PackError(f"the kernel of {entries[0].workload.name} in the pack {path} is not the one measured; make the pack again")
    return pack


def _read(path: Path, name: str, missing: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise PackError(missing) from None
        raise PackError(f"{path / name} cannot be read: {error.strerror}") from None
