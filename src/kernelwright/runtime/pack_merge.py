"""Packs of one kind of device into one: the layouts of a suite, say, each tuned on a GPU of its own.

Where several have an entry for a Workload, the one that was shown to be further ahead of the library ships: the one with the greater lower
end of the 95 % interval of its ratio to the fastest rival that could serve. The two were measured on different GPUs, whose times need not
compare; ratios within the same rounds do. A rival's entry counts as 1, one without rivals beside it as 0; of equals the first Pack's ships.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernelwright.records import Workload
from kernelwright.runtime import pack_sources, times
from kernelwright.runtime.pack import Entry, Pack, PackError, free, load, whole, write
from kernelwright.runtime.pack_choice import file_of


def merge(paths: Sequence[str | Path], out: str | Path) -> Pack:
    """Writes the Pack `out`. Raises PackError for Packs of different devices, versions or timing modes, and for damage."""
    packs = [load(p) for p in paths]
    for other in packs[1:]:
        _agree(packs[0], other)
    entries, texts = _entries(packs)
    files = texts | _headers(packs) | _builds(packs, entries)
    files[times.FILE] = _times(packs, entries).to_json().encode()
    rebuilt = {name: compiler for p in packs for name, compiler in p.manifest.rebuilt.items() if name in files}
    out = Path(os.path.abspath(out))
    free(out)
    with whole(out) as folder:
        manifest = write(folder, packs[0].manifest.environment, list(entries.values()), files, rebuilt=rebuilt)
    return Pack(out, manifest)


def _agree(one: Pack, other: Pack) -> None:
    a, b = one.manifest.environment, other.manifest.environment
    both = f"{one.path} and {other.path}"
    if (a.target, a.device) != (b.target, b.device):
        raise PackError(f"{both} are for different devices, {a.device} ({a.target}) and {b.device} ({b.target}); a pack is for one")
    if a.versions != b.versions:
        differ = sorted(k for k in {*a.versions, *b.versions} if a.versions.get(k) != b.versions.get(k))
        said = ", ".join(f"{k} {a.versions.get(k, 'none')} and {b.versions.get(k, 'none')}" for k in differ)
        raise PackError(f"{both} were measured with different versions ({said}), whose evidence does not compare; tune one of them again")
    if (x := one.times().mode) != (y := other.times().mode):
        raise PackError(f"{both} were measured in different modes, {x} and {y}; tune one of them again with --mode")


def ahead(entry: Entry) -> float:
    """How far an entry was shown to be ahead of the library: see above."""
    if entry.rival:
        return 1.0
    return entry.strongest.low if entry.strongest else 0.0


def _entries(packs: Sequence[Pack]) -> tuple[dict[Workload, Entry], dict[str, bytes]]:
    """And the files of their sources. The first Pack's kernel of a Candidate serves the entries of all."""
    kernels: dict[str, Entry] = {}
    sources: dict[str, bytes] = {}
    found: dict[Workload, Entry] = {}
    for pack in packs:
        for e in pack.entries:
            if not e.rival:
                if (first := kernels.setdefault(e.candidate, e)) is e:
                    sources[file_of(e.candidate, e.kind)] = pack.candidate(e).source.encode()
                e = e.replace(artifact=first.artifact, origin=first.origin)
            if e.workload not in found or ahead(e) > ahead(found[e.workload]):
                found[e.workload] = e
    named = {file_of(e.candidate, e.kind) for e in found.values() if not e.rival}
    parts, texts = pack_sources.split({n: text for n, text in sources.items() if n in named})
    return {w: e if e.rival else e.replace(sources=parts[file_of(e.candidate, e.kind)]) for w, e in found.items()}, texts


def _headers(packs: Sequence[Pack]) -> dict[str, bytes]:
    """The header library, where all have it: the kernels of one that lacks it may need another. Raises PackError where they differ."""
    found = [{n: (p.path / n).read_bytes() for n in p.manifest.files if n.startswith(pack_sources.HEADERS)} for p in packs]
    having = [i for i, headers in enumerate(found) if headers]
    for i in having[1:]:
        if found[i] != found[having[0]]:
            both = f"{packs[having[0]].path} and {packs[i].path}"
            raise PackError(f"{both} hold kernels written for different header libraries (sources/kernelwright); tune one of them again")
    return found[0] if len(having) == len(packs) else {}


def _builds(packs: Sequence[Pack], entries: dict[Workload, Entry]) -> dict[str, bytes]:
    """Those that the entries name, each from the first Pack that has it. Raises PackError where two Packs have different ones."""
    named = dict.fromkeys(e.artifact for e in entries.values() if e.artifact)
    files: dict[str, bytes] = {}
    for name in named:
        having = [p for p in packs if name in p.manifest.files]
        if len({p.manifest.files[name] for p in having}) > 1:
            where = " and ".join(str(p.path) for p in having)
            raise PackError(f"{name} is another file in {where}; delete it in all but the first and run `kernelwright pack build` there")
        files[name] = (having[0].path / name).read_bytes()
    return files


def _times(packs: Sequence[Pack], entries: dict[Workload, Entry]) -> times.Times:
    """Of all kernels that ship. Where several Packs have a Workload, the times of the others count in units of the library's time beside
    the entry that ships, as screens do (`times.gather`); a time of the Pack whose entry ships goes before."""
    place = {w: i for i, w in enumerate(entries)}
    kept = dict.fromkeys(e.candidate for e in entries.values() if not e.rival)
    found: dict[str, dict[int, float]] = {k: {} for k in kept}
    rivals: dict[str, dict[int, float]] = {}
    own: set[tuple[str, int]] = set()
    for pack in packs:
        for name, seen in pack.times().rivals.items():
            for at, us in seen:
                if pack.entries[at].evidence == entries[w := pack.entries[at].workload].evidence:
                    rivals.setdefault(name, {})[place[w]] = us
        for kernel, seen in pack.times().kernels.items():
            for at, us in seen if kernel in kept else ():
                theirs = pack.entries[at]
                ships, i = entries[theirs.workload], place[theirs.workload]
                is_own = theirs.evidence == ships.evidence
                scale = 1.0 if is_own or not ships.vendor_us or not theirs.vendor_us else ships.vendor_us / theirs.vendor_us
                if is_own or (kernel, i) not in own:
                    best = us * scale if is_own else min(us * scale, found[kernel].get(i, us * scale))
                    found[kernel][i] = round(best, 4)
                if is_own:
                    own.add((kernel, i))
    kernels, beside = ({k: tuple(sorted(seen.items())) for k, seen in of.items()} for of in (found, rivals))
    return times.Times(mode=packs[0].times().mode, kernels=kernels, rivals=beside)
