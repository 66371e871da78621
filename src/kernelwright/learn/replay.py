"""Replays searches on tables of measured configs: the proposers themselves, on Families whose space is what was measured, with each
candidate's measured ratio for an answer. Nothing is run, so hundreds of seeds are cheap."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kernelwright.families.family import Config
from kernelwright.learn.policy_vocabulary import Prompt
from kernelwright.learn.table import Listed, Row, Table
from kernelwright.propose.configs import ConfigProposer
from kernelwright.propose.evolve import Evolve
from kernelwright.propose.neighbours import Knowledge, Neighbours
from kernelwright.propose.policy import CONFIDENCE, DRAWS, PolicyProposer
from kernelwright.propose.proposer import Proposer
from kernelwright.propose.tpe import Tpe
from kernelwright.propose.uniform import Random
from kernelwright.records import Candidate, Comparison, Environment, Origin, Timing, Trial, Verdict, Workload

CLOSE = 0.97
"""Share of the best known speed that counts as found: a screen cannot tell more."""
BATCH = 4
"""Candidates that are proposed before the first of them is measured. The loop asks for 8, which few candidates would make too coarse."""
SHOWN = 32
"""Candidates that curves show."""
RESAMPLES = 2000


class Unseeded:
    """A search without the Families' seeds: what the algorithm alone is worth."""

    def _seed_points(self) -> list:
        return []


class UnseededRandom(Unseeded, Random):
    name = "random"


class UnseededEvolve(Unseeded, Evolve):
    name = "evolve"


class UnseededTpe(Unseeded, Tpe):
    name = "tpe"


SEARCHES: Mapping[str, type[ConfigProposer]] = {
    "random": UnseededRandom,
    "evolve": UnseededEvolve,
    "tpe": UnseededTpe,
    "heuristics": Random,
    "heuristics+evolve": Evolve,
    "heuristics+tpe": Tpe,
}
"""`heuristics`: the tiles that nvMatmulHeuristics and our models suggest, by our models' times, then uniform; as the product's searches
begin. The others without them, and with them."""


@dataclass(frozen=True)
class Run:
    """One search of one table."""

    search: str
    workload: str
    seed: int
    shares: tuple[float, ...]
    """Of each candidate in order: its speed over the best known."""

    def candidates_to(self, share: float = CLOSE) -> float:
        """Infinity if it never came there."""
        return next((i for i, s in enumerate(self.shares, 1) if s >= share), math.inf)

    def best_so_far(self, length: int) -> np.ndarray:
        """A search that ended early keeps what it had."""
        found = np.maximum.accumulate(np.array(self.shares or (0.0,)))
        return np.concatenate((found, np.full(max(0, length - len(found)), found[-1])))[:length]


def policy_search(name: str, model: object, contrast: str = "buckets", confidence: float = CONFIDENCE) -> type[PolicyProposer]:
    """A proposer with that kernel model."""
    settings = {"contrast": contrast, "confidence": confidence, "model": classmethod(lambda cls: model), "first": {}}
    return type(f"Replayed_{name}", (_Remembering,), settings)


class _Remembering(PolicyProposer):
    """Before anything was measured a short table is ranked the same for every seed."""

    first: ClassVar[dict[Workload, dict[tuple[int, ...], float]]]

    def _likely(self, prompt: Prompt, temperature: float) -> dict[tuple[int, ...], float]:
        if self._ratios or self.visited or sum(map(len, self.space.listed.values())) > DRAWS:
            return super()._likely(prompt, temperature)
        if self.workload not in self.first:
            self.first[self.workload] = super()._likely(prompt, temperature)
        return self.first[self.workload]


def knowledge_of(tables: Sequence[Table], families: Sequence[Listed]) -> Knowledge:
    """What a tuned suite would know: for `neighbours`, of training shapes only, in the choices of the Families that are searched."""
    known, free = Knowledge(), {f.name: f.free for f in families}
    for table in tables:
        best: dict[tuple, Row] = {}
        for row in table.rows:
            if row.family in free:
                key = (row.family, *(row.config[choice] for choice in free[row.family]))
                best[key] = max(best.get(key, row), row, key=lambda r: r.ratio)
        for row in best.values():
            config = {choice: row.config[choice] for choice in free[row.family]}
            known.learn(table.workload, _candidate(row, config), row.ratio or -math.inf, row.microseconds)
    return known


def replay(
    table: Table, search: type[Proposer], name: str, seed: int, budget: int, knowledge: Knowledge | None = None, stop: float = CLOSE
) -> Run:
    """Ends at `budget` candidates, with the table, once the best was found, and from SHOWN candidates on at a share of `stop`."""
    families = families_of(table)
    given = (table.workload, families, table.device)
    proposer = search(*given, knowledge, seed) if issubclass(search, Neighbours) else search(*given, seed)  # pyright: ignore
    shares: list[float] = []
    try:
        while len(shares) < budget and max(shares, default=0.0) < (stop if len(shares) >= SHOWN else max(stop, 1.0)):
            batch = proposer.propose(min(BATCH, budget - len(shares)))
            if not batch:
                break
            for candidate in batch:
                row = _row_of(table, families, candidate)
                shares.append(table.share(row))
                proposer.learn(judged(table, candidate, row))
    finally:
        proposer.close()
    return Run(name, table.workload.name, seed, tuple(shares))


_known_families: dict[int, tuple[Table, list[Listed]]] = {}


def families_of(table: Table) -> list[Listed]:
    """The same objects for all searches of a table: they remember what their models say."""
    if id(table) not in _known_families:
        _known_families[id(table)] = (table, table.families())
    return _known_families[id(table)][1]


def _row_of(table: Table, families: Sequence, candidate: Candidate) -> Row:
    family = next(f for f in families if f.name == candidate.origin.name)
    whole = family.completed(dict(candidate.origin.config))
    return table.by_key[family.name, tuple(whole.items())]


def _candidate(row: Row, config: Config) -> Candidate:
    return Candidate(kind="fake", source=row.to_json(), origin=Origin(kind="family", name=row.family, config=dict(config)))


def judged(table: Table, candidate: Candidate, row: Row) -> Trial:
    """The Trial that measuring it would have given."""
    if not row.ratio:
        return Trial(workload=table.workload, candidate=candidate, verdict=Verdict(outcome=row.outcome), environment=_environment(table))
    mode, us = "device-cold", row.microseconds
    timing = Timing(mode=mode, samples=(us,), median=us, low=us, high=us)
    r = row.ratio
    compared = Comparison(rival="eager", mode=mode, ratio=r, low=r, high=r, rival_us=us * r, noise_low=1, noise_high=1, rounds=1)
    return Trial(
        workload=table.workload,
        candidate=candidate,
        verdict=Verdict(outcome=row.outcome),
        environment=_environment(table),
        timings=(timing,),
        comparisons=(compared,),
    )


def _environment(table: Table) -> Environment:
    return Environment(target=table.device.target, device=table.device.name)


# --------------------------------------------------------------------------------------------------------------- figures


def figures(runs: Sequence[Run], resamples: int = RESAMPLES) -> dict[str, float]:
    """Of one search: over the shapes, with 95 % bootstrap intervals that draw shapes, then seeds of each: seeds of a shape are no
    independent evidence. A shape's candidates to CLOSE are the median of its seeds."""
    by_shape = _by_shape(runs)
    to_close = [np.array([r.candidates_to() for r in group]) for group in by_shape]
    first = [np.array([r.shares[0] if r.shares else 0.0 for r in group]) for group in by_shape]
    low, high = _interval(to_close, lambda drawn: float(np.median([np.median(x) for x in drawn])), resamples)
    return {
        "candidates_to_97pct": float(np.median([np.median(x) for x in to_close])),
        "candidates_to_97pct_low": low,
        "candidates_to_97pct_high": high,
        "candidates_to_97pct_mean": _mean([float(np.mean(np.minimum(x, max(len(r.shares) for r in runs)))) for x in to_close]),
        "reached_97pct": _mean([float(np.mean(np.isfinite(x))) for x in to_close]),
        "first_share": _mean([float(np.mean(x)) for x in first]),
        "first_within_10pct": _mean([float(np.mean(x >= 0.9)) for x in first]),
        "shapes": len(by_shape),
        "seeds": len({r.seed for r in runs}),
    }


def gain(before: Sequence[Run], after: Sequence[Run], length: int, resamples: int = RESAMPLES) -> dict[str, float]:
    """How much higher the mean of best-so-far over the first `length` candidates is after than before, in shares of the best known, shape
    by shape, with its 95 % interval."""
    differences = []
    known = {(r.workload, r.seed): r for r in before}
    for group in _by_shape(after):
        pairs = [(r, known[r.workload, r.seed]) for r in group if (r.workload, r.seed) in known]
        differences.append(np.array([float((a.best_so_far(length) - b.best_so_far(length)).mean()) for a, b in pairs]))
    low, high = _interval(differences, lambda drawn: float(np.mean([np.mean(x) for x in drawn])), resamples)
    return {"gain": _mean([float(np.mean(x)) for x in differences]), "low": low, "high": high}


def curve(runs: Sequence[Run], length: int, resamples: int = 400) -> tuple[list[float], list[float], list[float]]:
    """Mean best-so-far share after each number of candidates, and its 95 % interval."""
    groups = [np.stack([r.best_so_far(length) for r in group]).mean(0) for group in _by_shape(runs)]
    matrix = np.stack(groups)
    rng = np.random.default_rng(0)
    drawn = matrix[rng.integers(0, len(matrix), (resamples, len(matrix)))].mean(1)
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return matrix.mean(0).tolist(), low.tolist(), high.tolist()


def _by_shape(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for r in runs:
        found.setdefault(r.workload, []).append(r)
    return list(found.values())


def _interval(groups: Sequence[np.ndarray], statistic, resamples: int) -> tuple[float, float]:
    rng = random.Random(0)
    numbers = np.random.default_rng(0)
    drawn = []
    for _ in range(resamples):
        chosen = rng.choices(groups, k=len(groups))
        drawn.append(statistic([x[numbers.integers(0, len(x), len(x))] for x in chosen]))
    ordered = sorted(drawn)
    return ordered[int(0.025 * resamples)], ordered[min(resamples - 1, int(0.975 * resamples))]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
