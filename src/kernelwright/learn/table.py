"""Tables of measured configs: what each config of a Family did on a Workload. Policies learn from them, and searches are replayed on them.

A file of measurements is JSON lines, compressed if its name ends in `.xz` or `.gz`: a header with the device, then one line a config. Lines
are only appended while measuring, so an interrupted file is a valid shorter one.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.archive import Archive, compressing, reading
from kernelwright.families import family as family_of
from kernelwright.families.family import Config, DeviceFacts, Family, Space
from kernelwright.learn.reward import reference, reward
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Outcome, Record, Trial, Workload

FORMAT = 1
TIED = ("stages", "store_buffers")
"""Choices that a table may fix by a rule."""


class TableError(ValueError):
    """A file that holds no measurements; the message names it."""


class Row(Record, frozen=True, kw_only=True):
    """How one config fared on one Workload."""

    workload: str
    """Its name; `problems.resolve` gives the Workload."""
    family: str
    config: dict[str, int | str | bool]
    outcome: Outcome = Outcome.OK
    ratio: float = 0.0
    """t_ref / t beside the first rival, in the screening mode; 0 for a config that failed."""
    microseconds: float = 0.0
    reward: float = 0.0
    """`learn.reward` of the Trial, as the rule was when it was measured."""


def row_of(trial: Trial) -> Row | None:
    """Of a Trial of a Family's config; None if it has none, or says nothing (too noisy)."""
    origin, worth = trial.candidate.origin, reward(trial)
    if origin.kind != "family" or worth is None:
        return None
    compared = reference(trial) if trial.verdict.ok else None
    config: Any = dict(origin.config)
    return Row(
        workload=trial.workload.name,
        family=origin.name,
        config=config,
        outcome=trial.verdict.outcome,
        ratio=compared.ratio if compared else 0.0,
        microseconds=trial.timings[0].median if compared else 0.0,
        reward=worth,
    )


@dataclass(frozen=True)
class Table:
    """All rows of one Workload on one device, each config once (its newest row)."""

    workload: Workload
    device: DeviceFacts
    rows: tuple[Row, ...]

    @cached_property
    def best(self) -> float:
        """Highest ratio; 0 where nothing was right."""
        return max((r.ratio for r in self.rows), default=0.0)

    @cached_property
    def by_key(self) -> dict[tuple[str, tuple], Row]:
        return {key_of(r.family, r.config): r for r in self.rows}

    def share(self, row: Row) -> float:
        """Of the best speed measured, 0 to 1."""
        return row.ratio / self.best if self.best else 0.0

    def families(self) -> list[Listed]:
        """The Families of the rows, whose whole space is what was measured."""
        return [
            Listed(name, self.workload, [r.config for r in self.rows if r.family == name]) for name in sorted({r.family for r in self.rows})
        ]


def key_of(family: str, config: Config | dict) -> tuple[str, tuple]:
    return family, tuple(config.items())


class Listed(Family):
    """A Family whose legal configs are a list of measured ones. Its Candidates hold the config and no kernel: they are looked up, not run.

    Where the list has as many stages as fit, say, they are no choice of the Space: what TIED choices are follows from the others. A step
    from one tile to its neighbour would otherwise leave the list, and searches that take steps would be worse than they are."""

    name = ""  # the Family's, set on the instance

    def __init__(self, name: str, workload: Workload, configs: Sequence[Config]):
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.whole, self._workload = family_of(name), workload
        free = list(configs[0])
        for tied in TIED:
            others = [key for key in free if key != tied]
            if len({tuple(c[key] for key in others) for c in configs}) == len(configs):
                free = others
        self.free = tuple(free)
        """The choices of its Space."""
        self._found: dict[Any, Any] = {}
        self._configs = {self._key(c): c for c in configs}

    def _key(self, config: Config) -> tuple:
        return tuple(config.get(key) for key in self.free)

    def completed(self, config: Config) -> Config:
        """With its tied choices. Raises KeyError for one that is not of the list."""
        return self._configs[self._key(config)]

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        return None if w == self._workload else f"what was measured is {self._workload.name}"

    def listed(self, w: Workload, device: DeviceFacts) -> list[Config]:
        return [{key: c[key] for key in self.free} for c in self._configs.values()]

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        seen = {key: {c[key] for c in self._configs.values()} for key in self.free}
        return {key: tuple(v for v in values if v in seen[key]) for key, values in self.whole.space(w, device).items() if key in seen}

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        return None if self._key(config) in self._configs else "it was not measured"

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        return self._remembered("seeds", lambda: self._only(self.whole.seeds(w, device)))

    def from_tile(self, bm: int, bn: int, bk: int, stages: int, split_k: int, w: Workload, device: DeviceFacts) -> Config | None:
        if (suggest := getattr(self.whole, "from_tile", None)) is None:
            return None
        found = self._remembered((bm, bn, bk, stages, split_k), partial(suggest, bm, bn, bk, stages, split_k, w, device))
        return next(iter(self._only([found] if found else [])), None)

    def _remembered(self, what: Any, find: Callable[[], Any]) -> Any:
        """A table is searched hundreds of times; its Family's models take 20 ms each time."""
        if what not in self._found:
            self._found[what] = find()
        return self._found[what]

    def _only(self, suggested: Iterable[Config]) -> tuple[Config, ...]:
        """Those of the list that a suggestion is, its tied choices aside."""
        return tuple({key: c[key] for key in self.free} for c in suggested if self._key(c) in self._configs)

    def estimate(self, config: Config, w: Workload, device: DeviceFacts) -> float | None:
        if self._key(config) in self._configs:
            return self.whole.estimate(self.completed(config), w, device)
        whole = set(self.whole.space(w, device)) == set(config)  # of a neighbour's config that this list lacks
        return self.whole.estimate(config, w, device) if whole else None

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        return Candidate(kind="fake", source=json.dumps([self.name, self.completed(config)]), origin=self.origin(config))


# ----------------------------------------------------------------------------------------------------------------- files


def tables_of(rows: Iterable[Row], device: DeviceFacts) -> list[Table]:
    """Rows by Workload, in the order of their names."""
    by_workload: dict[str, dict[tuple, Row]] = {}
    for r in rows:
        by_workload.setdefault(r.workload, {})[key_of(r.family, r.config)] = r
    return [Table(resolve(name), device, tuple(found.values())) for name, found in sorted(by_workload.items())]


def from_archive(archive: Archive, device: DeviceFacts) -> Iterator[Row]:
    """Screens made on devices of that name and target."""
    for trial in archive.trials(stage="screen"):
        e = trial.environment
        if (e.target, e.device) == (device.target, device.name) and (row := row_of(trial)) is not None:
            yield row


_SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
"""Most shared memory of a block by compute capability (CUDA programming guide); an Environment does not keep it."""


def device_in(archive: Archive) -> DeviceFacts:
    """Of the device with the newest screen. Raises TableError for an archive without one."""
    newest = next(iter(archive.trials(stage="screen", limit=1)), None)
    if newest is None:
        raise TableError(f"{archive.path} holds no screens; tune a suite first (kernelwright tune hgemm-1000)")
    e = newest.environment
    facts = DeviceFacts(target=e.target, name=e.device, sms=int(e.facts.get("SMs", 1)), l2_bytes=int(e.facts.get("L2 bytes", 0)))
    return replace(facts, smem_per_block=_SHARED.get(facts.sm, 0))


def read(path: str | Path) -> tuple[DeviceFacts, list[Row]]:
    """Header and rows; a last line that was cut off while it was written is left out. Raises TableError."""
    path = Path(path)
    try:
        with reading(path) as lines:
            head = json.loads(next(iter(lines), b""))
            if head.get("format") != FORMAT:
                raise TableError(f"{path} holds no measurements of configs in format {FORMAT}; make one with benchmarks/learning_table.py")
            facts = DeviceFacts(**head["device"] | {"isa": frozenset(head["device"]["isa"])})
            rows = []
            for line in lines:
                try:
                    rows.append(Row.from_json(line))
                except msgspec.DecodeError:
                    break
            return facts, rows
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, lzma.LZMAError):
        raise TableError(f"{path} is damaged or was cut off; copy it again, or measure it anew") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{path} holds no measurements of configs; make one with benchmarks/learning_table.py") from None


def header(device: DeviceFacts) -> bytes:
    facts = asdict(device) | {"isa": sorted(device.isa)}
    return json.dumps({"format": FORMAT, "device": facts}).encode() + b"\n"


def write(path: str | Path, device: DeviceFacts, rows: Iterable[Row]) -> None:
    """Replaces the file by a complete one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as raw, compressing(raw, path.suffix) as file:
            file.write(header(device))
            file.writelines(row.to_json().encode() + b"\n" for row in rows)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
