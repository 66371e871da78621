"""The leaderboard: entrants side by side, as plain data (`--json`), as tables in a terminal, and as a page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.bench.answers import Entrant
from kernelwright.bench.claims import ClaimSummary, Difference, differences, summaries
from kernelwright.bench.opinion import Opinion
from kernelwright.bench.opinion import load as load_opinions
from kernelwright.bench.results import Facts, Result, Store, Task
from kernelwright.bench.scores import (
    CHALLENGE,
    EXPERT,
    PYTORCH,
    STRONGEST,
    Row,
    Score,
    best_of,
    by,
    mean_pass_at_k,
    own_work,
    row_of,
    score,
)
from kernelwright.report.html import environment_view, save, template
from kernelwright.report.numbers import count, percent

PASS_AT = (1, 5, 10)
_GROUPINGS = (("level", lambda r: r.level), ("class", lambda r: r.group), ("domain", lambda r: r.domain))


@dataclass(frozen=True)
class Standing:
    """One entrant."""

    entrant: str
    form: str
    results: Mapping[str, Result]
    """Its first sample on each task."""
    rows: Sequence[Row]
    """A row for every task, sound ones and degenerate ones."""
    samples: Mapping[str, Sequence[Result]]
    notes: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def sound(self) -> list[Row]:
        return [r for r in self.rows if not r.degenerate and not r.challenge]

    @cached_property
    def challenges(self) -> list[Row]:
        """Rows of the open challenges."""
        return [r for r in self.rows if r.challenge]

    @cached_property
    def degenerate(self) -> list[Row]:
        return [r for r in self.rows if r.degenerate]

    @cached_property
    def score(self) -> Score:
        return score(self.sound)

    @cached_property
    def own(self) -> Score:
        """With answers that only set flags counted as none."""
        return score(own_work(self.sound))

    @cached_property
    def rivals(self) -> list[str]:
        return list(dict.fromkeys(name for r in self.rows for name in r.ratios))

    def against(self, rival: str) -> Score:
        return score(self.sound, rival)

    def pass_at(self) -> dict[int, tuple[float, int]]:
        """By k, over sound tasks with at least k samples; (mean, tasks)."""
        sound = {r.task for r in self.sound}
        rights = {t: [x.status == "correct" for x in found] for t, found in self.samples.items() if t in sound}
        found = {k: mean_pass_at_k(rights, k) for k in PASS_AT}
        return {k: v for k, v in found.items() if v[1]}


class Board:
    """All that was judged of these tasks and entrants."""

    def __init__(
        self, suite: str, tasks: Sequence[Task], entrants: Sequence[Entrant], store: Store, asked: str, opinions: Path | None = None
    ):
        self.suite, self.tasks, self.entrants = suite, list(tasks), list(entrants)
        self.facts: dict[str, Facts] = {}
        for task in tasks:
            found = store.facts.get(task.workload.id if task.workload else task.key)
            if found is not None:
                self.facts[task.key] = found
        keys = {t.key for t in tasks}
        wanted = {(e.name, a.task, a.sample, a.id) for e in entrants for answers in e.answers.values() for a in answers}
        self.results = [
            r for r in store.results.values() if r.task in keys and r.asked == asked and (r.entrant, r.task, r.sample, r.answer) in wanted
        ]
        self.environments = list({r.environment.id: r.environment for r in self.results if r.environment}.values())
        self.standings = [self._standing(e) for e in entrants]
        by_workload = {f.workload: f for f in self.facts.values()}
        self.differences: list[Difference] = differences(self.results, by_workload)
        self.claims: list[ClaimSummary] = summaries(self.differences, entrants)
        judged = {(r.answer, r.entrant, r.sample) for r in self.results}
        self.opinions: list[Opinion] = [o for o in load_opinions(opinions) if (o.answer, o.entrant, o.sample) in judged] if opinions else []

    def _standing(self, e: Entrant) -> Standing:
        samples: dict[str, list[Result]] = {}
        for r in sorted((r for r in self.results if r.entrant == e.name), key=lambda r: r.sample):
            samples.setdefault(r.task, []).append(r)
        rows = []
        for task in self.tasks:
            facts = self.facts.get(task.key, Facts(task=task, workload=""))
            if task.key in samples:
                rows.append(row_of(samples[task.key][0], facts))
            elif task.key in e.answers:
                rows.append(_missing(task, facts, "skipped", "not yet run"))
            elif facts.task.skipped:
                rows.append(_missing(task, facts, "skipped", facts.task.skipped))
            else:
                rows.append(_missing(task, facts, "no answer", ""))
        return Standing(e.name, e.form, {t: found[0] for t, found in samples.items()}, rows, samples, e.notes, e.costs)

    def best(self, s: Standing) -> Score:
        """Of the best of its samples on each task."""
        chosen = {r.task: r for r in best_of(r for found in s.samples.values() for r in found)}
        rows = [row_of(chosen[row.task], self.facts.get(row.task)) if row.task in chosen else row for row in s.sound]
        return score(rows)

    @property
    def rivals(self) -> list[str]:
        names = list(dict.fromkeys(name for s in self.standings for name in s.rivals))
        return [*names, EXPERT] if any(name not in PYTORCH for name in names) else names

    @property
    def degenerate(self) -> list[Facts]:
        return [f for f in self.facts.values() if f.degenerate]

    @property
    def skipped(self) -> list[tuple[str, str, str]]:
        """(task, reason, sentence) of tasks that nobody could run; the same sentence for many tasks once."""
        groups: dict[tuple[str, str], list[str]] = {}
        for f in self.facts.values():
            if f.task.skipped:
                groups.setdefault((f.task.skipped, f.task.why), []).append(f.task.key)
        return [(", ".join(keys), kind, why) for (kind, why), keys in groups.items()]

    @property
    def challenges(self) -> list[tuple[str, str, list[tuple[str, str, float]]]]:
        """(task, quantity, [(entrant, status, value)]) of the open challenges; NaN where nothing was scored. The best first."""
        return challenges_of(self.standings)

    # ---------------------------------------------------------------------------------------------------------- as data

    def data(self) -> dict[str, Any]:
        """Everything, as plain data without NaN."""
        return _plain(
            {
                "suite": self.suite,
                "tasks": len(self.tasks),
                "degenerate": {f.task.key: [fault_data(x) for x in f.faults] for f in self.degenerate},
                "skipped": [{"tasks": keys, "reason": kind, "why": why} for keys, kind, why in self.skipped],
                "device": self.environments[0].device if self.environments else "",
                "environment": msgspec.to_builtins(self.environments[0]) if self.environments else {},
                "entrants": [self._entrant_data(s) for s in self.standings],
                "claims": [dataclasses.asdict(c) for c in self.claims],
                "differences": [
                    {
                        "task": d.task,
                        "entrant": d.entrant,
                        "rival": d.rival,
                        "claimed": d.claimed,
                        "measured": d.measured.ratio if d.measured else None,
                        "interval": [d.measured.low, d.measured.high] if d.measured else None,
                        "verdict": d.verdict,
                        "reasons": d.reasons,
                    }
                    for d in self.differences
                ],
                "opinions": [
                    {"task": o.task, "entrant": o.entrant, "sample": o.sample, "model": o.model, "opinion": o.opinion, "reasons": o.reasons}
                    | {"quotes": o.quotes, "verdict": o.verdict}
                    for o in self.opinions
                ],
                "problems": [self._task_data(t) for t in self.tasks],
            }
        )

    def _entrant_data(self, s: Standing) -> dict[str, Any]:
        return {
            "entrant": s.entrant,
            "form": s.form,
            "score": score_data(s.score),
            "own_work": score_data(s.own),
            "degenerate": score_data(score(s.degenerate)),
            "challenges": {r.task: {"status": r.status, "scores": dict(r.scores)} for r in s.challenges},
            "against": {rival: score_data(s.against(rival)) for rival in s.rivals},
            "expert": score_data(s.against(EXPERT)),
            **{f"by_{name}": {k: score_data(score(rows)) for k, rows in by(s.sound, key).items() if k} for name, key in _GROUPINGS},
            "pass_at": {str(k): {"mean": mean, "tasks": n} for k, (mean, n) in s.pass_at().items()},
            "best_of_samples": score_data(self.best(s)),
            "costs": dict(s.costs),
            "notes": s.notes,
        }

    def _task_data(self, task: Task) -> dict[str, Any]:
        facts = self.facts.get(task.key)
        answers = []
        for s in self.standings:
            for r in s.samples.get(task.key, ()):
                answers.append(
                    {
                        "entrant": r.entrant,
                        "sample": r.sample,
                        "status": r.status,
                        "outcome": r.outcome,
                        "evidence": r.evidence,
                        "mode": r.mode,
                        "us": r.us,
                        "scores": r.scores,
                        "ratios": {
                            c.rival: {"ratio": c.ratio, "low": c.low, "high": c.high, "outcome": c.outcome}
                            for c in r.comparisons
                            if c.mode == r.mode
                        },
                        "rivals_left_out": r.rivals,
                        "work": r.work,
                        "work_why": r.work_why,
                        "trial": r.trial,
                        "sampled": r.sampled,
                    }
                )
        return {
            "task": task.key,
            "name": task.name,
            "level": task.level,
            "class": task.group,
            "domain": facts.task.domain if facts else "",
            "degenerate": facts.degenerate if facts else False,
            "lint": [fault_data(f) for f in facts.faults] if facts else [],
            "operators": list(facts.operators) if facts else [],
            "answers": answers,
        }

    # -------------------------------------------------------------------------------------------------------- as a page

    def lead(self) -> str:
        """The result in a sentence."""
        ranked = self.ranked()
        where = self.environments[0].device if self.environments else "this machine"
        sound = sum(not f.degenerate and not f.task.skipped and f.task.group != CHALLENGE for f in self.facts.values())
        parts = [f"{self.suite} on {where}: {count(sound, 'sound problem')}"]
        if self.challenges:
            parts.append(f"{count(len(self.challenges), 'open challenge')} apart")
        if self.degenerate:
            parts.append(f"{count(len(self.degenerate), 'degenerate one')} apart")
        if not ranked or not ranked[0].score.compared:
            return ", ".join(parts) + ". No answer was both right and timed beside a rival."
        s = ranked[0]
        return (
            f"{', '.join(parts)}. {s.entrant} leads: {s.score.correct} of {s.score.tasks} right, {s.score.wins} faster than every rival "
            f"beyond the noise, {s.score.geomean:.2f}x the strongest rival as geometric mean; {s.score.ties} ties, {s.score.losses} slower."
        )

    def ranked(self) -> list[Standing]:
        """By the share of problems on which it is faster than every rival beyond the noise, then by correctness, then by the mean."""

        def key(s: Standing) -> tuple[float, ...]:
            wins = s.score.wins / s.score.tasks if s.score.tasks else math.nan
            return tuple(0.0 if math.isnan(x) else -x for x in (wins, s.score.correct_rate, s.score.geomean))

        return sorted(self.standings, key=key)

    def write(self, path: Path, command: str) -> Path:
        """The page, whole or not at all."""
        return save(path, self.page(command))

    def page(self, command: str) -> str:
        ranked = self.ranked()
        return template("leaderboard.html.j2").render(
            title=f"Leaderboard: {self.suite}",
            command=command,
            lead=self.lead(),
            board=self,
            ranked=ranked,
            rivals=self.rivals,
            groupings=[
                (name, [(k, [(s, score(by(s.sound, key).get(k, []))) for s in ranked]) for k in self._groups(key)])
                for name, key in _GROUPINGS
            ],
            problems=[(t, self.facts.get(t.key)) for t in self.tasks],
            refused=[r for r in self.results if r.status in ("wrong", "not compiled")],
            degenerate_scores=[(s, score(s.degenerate)) for s in ranked],
            apart=[d for d in self.differences if d.verdict != "reproduced"],
            environments=tuple(environment_view(e) for e in self.environments[:4]),
            share=percent,
            score=score,
            versus=_versus,
            STRONGEST=STRONGEST,
            nan=math.isnan,
        )

    def _groups(self, key: Any) -> list[str]:
        return sorted({name for s in self.standings for r in s.sound if (name := key(r))})


def challenges_of(standings: Sequence[Standing]) -> list[tuple[str, str, list[tuple[str, str, float]]]]:
    found: dict[str, list[tuple[str, Row]]] = {}
    for s in standings:
        for row in s.challenges:
            found.setdefault(row.task, []).append((s.entrant, row))
    table = []
    for task, rows in found.items():
        quantity = next((name for _, row in rows for name in row.scores), "")
        values = [(entrant, str(row.status), row.scores.get(quantity, math.nan)) for entrant, row in rows]
        table.append((task, quantity, sorted(values, key=lambda v: math.inf if math.isnan(v[2]) else -v[2])))
    return table


def _versus(s: Standing, task: str) -> Any:
    """(row, Comparison with the strongest) of an entrant on a task."""
    row = next((r for r in s.rows if r.task == task), None)
    return row, row.versus(STRONGEST) if row else None


def _missing(task: Task, facts: Facts, status: Any, skipped: str) -> Row:
    return Row(
        task=task.key,
        status=status,
        level=task.level,
        group=task.group,
        domain=facts.task.domain,
        degenerate=facts.degenerate,
        skipped=skipped,
    )


def score_data(s: Score) -> dict[str, Any]:
    found = dataclasses.asdict(s)
    found["fast"] = {f"{p:g}": v for p, v in s.fast.items()}
    return found | {"compile_rate": s.compile_rate, "correct_rate": s.correct_rate}


def fault_data(fault: Any) -> dict[str, str]:
    return {"rule": fault.rule, "severity": fault.severity, "tensor": fault.tensor, "text": fault.text}


def _plain(value: Any) -> Any:
    """JSON has no NaN: a figure that there is not is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
