"""Compiles what a Pack lacks, of an older one or as it is made, ahead of time: no GPU is needed, and serving compiles nothing.

A compiler of the version that was measured with makes the same cubin again, byte for byte: then the Pack is as it was, its checksum and its
verification too. Otherwise the manifest names the compiler of each build that came out otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from kernelwright.evaluate.build import Builder
from kernelwright.records import Build, Candidate, Record, Trial
from kernelwright.runtime.pack import Pack, PackError, load, save, seal
from kernelwright.runtime.pack_choice import choose
from kernelwright.settings import reason
from kernelwright.targets import target as target_of


class Built(Record, frozen=True, kw_only=True):
    """What `build_pack` did."""

    same: int = 0
    """Builds with the checksum of those that were measured."""
    other: tuple[str, ...] = ()
    """Files that came out otherwise."""
    compilers: tuple[str, ...] = ()
    measured: str = ""
    """The compiler of the measurements."""

    @property
    def sentence(self) -> str:
        if not self.same and not self.other:
            return "nothing to build: every kernel has its build"
        compilers = ", ".join(self.compilers)
        said = f"{self.same + len(self.other)} kernels built with {compilers}"
        if not self.other:
            return f"{said}, each the same file as was measured"
        why = (
            "the headers, the header library or the machine differ from those measured with"
            if compilers == self.measured
            else f"they were measured as {self.measured or 'an unknown compiler'} built them"
        )
        return f"{said}, {len(self.other)} of them not the file that was measured: {why}; prove them with `kernelwright pack verify`"


def build_pack(path: str | Path, told: Callable[[int, int], None] = lambda done, total: None) -> Built:
    """Makes the Pack whole. `told`: builds done, of all that are to be made. Raises PackError for a kernel that does not compile,
    TargetUnavailable where there is no compiler."""
    pack = load(path, built=False)
    unbuilt = pack.unbuilt()
    measured = pack.manifest.environment.versions.get("compiler", "")
    if not unbuilt:
        return Built(measured=measured)
    candidates = {name: pack.buildable(e) for name, e in unbuilt.items()}

    def sentence(name: str, why: str) -> str:
        lacks = '#include "kernelwright/' in candidates[name].source  # else the pack's own was written into it
        older = " (an earlier version made it, which shipped no header library)" if lacks else ""
        return f"the build {name} of the pack {pack.path} cannot be made here{older}: {why}"

    made = _compiled(pack.manifest.environment.target, candidates, told, sentence)
    files = {name: Path(built.artifact).read_bytes() for name, built in made.items()}
    other = {name: found for name, content in files.items() if (found := sha256(content).hexdigest()) != pack.manifest.files[name]}
    _put(pack, files, other, {name: made[name].compiler for name in other})
    compilers = tuple(dict.fromkeys(built.compiler for built in made.values()))
    return Built(same=len(made) - len(other), other=tuple(other), compilers=compilers, measured=measured)


def save_pack(
    path: str | Path,
    trials: Sequence[Trial],
    screens: Iterable[Trial] = (),
    tolerance: float = 0.0,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Pack:
    """`pack.save`; builds that are no longer in the cache are made again (trials of another machine have none here). Raises PackError, and
    TargetUnavailable where there is no compiler."""
    lacking = {
        best.candidate.id: best
        for best, _ in choose(trials, tolerance).values()
        if best.build and best.build.artifact and not Path(best.build.artifact).is_file()
    }

    def sentence(candidate: str, why: str) -> str:
        name = f"{lacking[candidate].candidate.label} for {lacking[candidate].workload.name}"
        return f"{name} is no longer in the cache, and does not compile with this version: {why}; tune it again"

    builds: dict[str, Build] = {}
    if lacking:
        target = next(iter(lacking.values())).environment.target
        builds = _compiled(target, {key: best.candidate for key, best in lacking.items()}, told, sentence)
    return save(path, trials, screens, tolerance, builds)


def _compiled(
    target: str, candidates: Mapping[str, Candidate], told: Callable[[int, int], None], sentence: Callable[[str, str], str]
) -> dict[str, Build]:
    """By the same names. `sentence` makes the PackError's of a name and what is wrong with it."""
    made: dict[str, Build] = {}
    told(0, len(candidates))
    with Builder(target_of(target)) as builder:
        for name, (_, built) in zip(candidates, builder.builds(candidates.values()), strict=True):
            if not isinstance(built, Build):
                raise PackError(sentence(name, " ".join(built.evidence.split())[:300] if built else "its target compiles nothing"))
            made[name] = built
            told(len(made), len(candidates))
    return made


def _put(pack: Pack, files: Mapping[str, bytes], other: dict[str, str], compilers: dict[str, str]) -> None:
    """`other`, `compilers`: checksums of the files that came out otherwise, and what made them."""
    try:
        for name, content in files.items():
            place = pack.path / name
            place.parent.mkdir(exist_ok=True)
            partly = place.with_name(f".{place.name}.{os.getpid()}")
            partly.write_bytes(content)
            partly.replace(place)
        m = pack.manifest
        rebuilt = {n: c for n, c in m.rebuilt.items() if n not in files} | compilers
        if other:
            seal(pack.path, m.replace(files=m.files | other, rebuilt=rebuilt))
    except OSError as error:
        raise PackError(f"the builds of {pack.path} were not written: {reason(error, pack.path)}; make room or copy the pack") from None
