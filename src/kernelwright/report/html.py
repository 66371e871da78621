"""The HTML report: one file that needs nothing else, from the Trials of a run.

`write` is the only entry. Views are plain dicts and tuples of text; `report.html.j2` lays them out and escapes every one of them
(autoescape), so what a candidate wrote cannot become markup. The page holds no script at all.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernelwright.plan import PlanError, evaluate
from kernelwright.records import (
    Candidate,
    Comparison,
    Environment,
    Launch,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    Trial,
    WorkspaceArg,
)
from kernelwright.report import numbers, wording
from kernelwright.report.charts import LABELLED_ROWS, ratio_strip, speedup_bars
from kernelwright.report.curves import roofline_all, roofline_one, search_curve
from kernelwright.report.roofline import Ceilings, Rate, Work, rate, works
from kernelwright.report.source import gutter, highlight
from kernelwright.report.summary import STRONGEST, Aggregate, RunSummary, WorkloadSummary, rank, summarise
from kernelwright.report.svg import shorten, visible

LIMIT = 300_000
"""Bytes. A report must pass through mail and chat, and open at once."""

FIRST_TRIALS = 30
"""Verified Trials shown before the rest is folded away."""


@dataclass(frozen=True)
class Detail:
    """How much of the run the page holds; `write` takes the richest level that fits LIMIT, and the page says what it left out."""

    trials: int
    evidence: int
    """Characters of one failure's evidence."""
    source: int
    """Characters of one source; a longer one is cut at a line and says so."""
    workloads: int
    """Rows of the table of Workloads; those that lost or failed come first."""
    sections: int
    """Workloads of a many-Workload run that get a section of their own."""


LEVELS = (
    Detail(trials=500, evidence=600, source=60_000, workloads=1500, sections=100),
    Detail(trials=500, evidence=400, source=30_000, workloads=1000, sections=60),
    Detail(trials=400, evidence=300, source=20_000, workloads=700, sections=50),
    Detail(trials=300, evidence=200, source=10_000, workloads=500, sections=40),
    Detail(trials=200, evidence=160, source=6_000, workloads=400, sections=40),
    Detail(trials=100, evidence=120, source=3_000, workloads=300, sections=25),
    Detail(trials=30, evidence=100, source=1_500, workloads=150, sections=10),
    Detail(trials=10, evidence=80, source=0, workloads=60, sections=0),
)


def write(
    path: str | Path,
    trials: Sequence[Trial],
    *,
    title: str,
    command: str,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> Path:
    """Writes the report and returns its path. The file appears whole or not at all (temporary file in the same folder, then rename).

    trials: all Trials of one `optimize` run (one Workload), or of a run over many. Rivals are Trials whose Candidate is a `rival`.
    command: what the user typed to make the run.
    target_peaks: the fields of `targets.target.Peaks` (FLOP/s, bytes/s); None leaves out the roofline and percentages of peak.
    costs: `Problem.cost` by `Workload.name`, for rates and the roofline; our own Problems are asked for those not given. A Workload that
        carries its Problem as code is not: a report must not run what it reads from an archive.
    mode: the timing mode of the headlines; by default the one that most Trials were timed in.
    Raises ValueError for target_peaks of another form, OSError when the folder cannot be written.
    """
    return save(path, render(trials, title=title, command=command, target_peaks=target_peaks, costs=costs, mode=mode))


def save(path: str | Path, page: str) -> Path:
    """Writes a page whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        # mkstemp makes files that only their owner can read; a report is for others
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def render(
    trials: Sequence[Trial],
    *,
    title: str,
    command: str,
    target_peaks: Mapping[str, Any] | None = None,
    costs: Mapping[str, Work] | None = None,
    mode: str | None = None,
) -> str:
    """The page as text, under LIMIT bytes in UTF-8. Arguments as for `write`."""
    run, ceilings = summarise(trials, mode), Ceilings.from_dict(target_peaks)
    given = costs or {}
    costs = {**works(s.workload for s in run.workloads if s.workload.name not in given), **given}
    pages, page = _Page(run, ceilings, costs), ""
    for level in LEVELS:
        page = pages.render(level, title, command)
        if len(page.encode()) <= LIMIT:
            break
    return page


@cache
def template(name: str = "report.html.j2"):
    """A page's template with what all of them share: how numbers and names look, marks beside colours."""
    jinja = Jinja(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["visible"] = lambda text: visible(str(text))
    jinja.globals.update(sig3=numbers.sig3, ratio=numbers.ratio, interval=numbers.interval, us=numbers.microseconds, count=numbers.count)
    jinja.globals.update(rival_name=wording.rival_name, outcome_name=wording.outcome_name, workload_name=wording.workload_name)
    jinja.globals.update(marks=wording.STANDING_MARKS, standings=wording.STANDING_NAMES, modes=wording.MODE_NAMES, shorten=shorten)
    jinja.globals["css"] = Markup((Path(__file__).parent / "style.css").read_text(encoding="utf-8"))
    jinja.globals["chain_note"] = wording.CHAIN_NOTE
    return jinja.get_template(name)


class _Page:
    """The views of the page, which keeps its charts from one level of detail to the next."""

    def __init__(self, run: RunSummary, ceilings: Ceilings | None, costs: Mapping[str, Work]):
        self.run, self.ceilings, self.costs, self.level = run, ceilings, costs, LEVELS[0]

    def render(self, level: Detail, title: str, command: str) -> str:
        self.level, run = level, self.run
        many = len(run.workloads) > 1
        seconds = sum(t.seconds for t in run.trials)
        dates = sorted(t.created for t in run.trials if t.created)
        sections = self._sections() if many else tuple(self.section(s, f"w{i}", many=False) for i, s in enumerate(run.workloads))
        return template().render(
            title=shorten(title, 200),
            command=shorten(command, 2000),
            run=run,
            many=many,
            peaks=self.ceilings is not None,
            lead=self._lead(),
            date=dates[-1][:16].replace("T", " ") + " UTC" if dates else "",
            sessions=sorted({t.session for t in run.trials if t.session})[:4],
            spent=numbers.seconds(seconds) if seconds else "",
            overview=self._overview() if many else None,
            sections=sections,
            environments=tuple(environment_view(e) for e in run.environments[:4]),
            left_out=len(run.workloads) - len(sections) if many else 0,
        )

    def _lead(self) -> str:
        run = self.run
        if not run.workloads:
            return "This run holds no trials: nothing was measured."
        if len(run.workloads) == 1:
            return wording.headline(run.workloads[0], run.environments[0])
        return wording.run_headline(run)

    # ------------------------------------------------------------------------------------------------- many Workloads

    def _by_interest(self) -> list[WorkloadSummary]:
        """Failures, then losses, then the rest, the lowest ratio first: what a reader must not miss cannot be cut away."""
        order = {"failed": 0, "loss": 1, "tie": 2, "win": 2, "alone": 3}
        return sorted(self.run.workloads, key=lambda s: (order[s.standing], s.strongest.ratio if s.strongest else 0.0))

    def _overview(self) -> dict[str, Any]:
        run = self.run
        shown = self._by_interest()[: self.level.workloads]
        return {
            **self._overview_charts,
            "classes": self._classes(),
            "chained": run.mode != "device-chain" and any(s.chained for s in run.workloads),
            "labelled": len(run.workloads) <= LABELLED_ROWS,
            "rows": tuple((s, self._rate(s), self._ratios(s)) for s in shown),
            "left_out": len(run.workloads) - len(shown),
        }

    @cached_property
    def _overview_charts(self) -> dict[str, Markup | str]:
        roofs = roofline_all(self.run, self.costs, self.ceilings, "roofs") if self.ceilings else ""
        return {"strip": ratio_strip(self.run, "strip"), "roofline": roofs}

    @cached_property
    def _charts(self) -> dict[str, Any]:
        """Of the only Workload."""
        s = self.run.workloads[0]
        work = self.costs.get(s.workload.name)
        return {
            "bars": tuple((mode, speedup_bars(s, mode, f"bars-{mode}")) for mode in s.modes if s.comparisons(mode)),
            "search": search_curve(s, "search-curve") if s.own else "",
            "roofline": roofline_one(s, work, self.ceilings, "roof") if work and self.ceilings else "",
        }

    def _classes(self) -> tuple[tuple[str, Aggregate], ...]:
        """Aggregates by kind of Problem, dtype and size; none where all Workloads are of one class."""
        groups: dict[str, dict[str, Comparison]] = {}
        for s in self.run.workloads:
            work = self.costs.get(s.workload.name)
            size = ("small" if work.flops < 1e8 else "medium" if work.flops < 1e10 else "large") if work else ""
            if s.strongest:
                name = " ".join(p for p in (s.workload.problem.partition(":")[0], s.workload.dtype, size) if p)
                groups.setdefault(name, {})[s.workload.name] = s.strongest
        if len(groups) < 2:
            return ()
        return tuple((name, Aggregate(rival=STRONGEST, compared=groups[name], missing=0)) for name in sorted(groups))

    def _ratios(self, s: WorkloadSummary) -> tuple[Comparison | None, ...]:
        found = {c.rival: c for c in s.comparisons()}
        return tuple(found.get(rival) for rival in self.run.rivals)

    def _sections(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.section(s, f"w{i}", many=True) for i, s in enumerate(self._by_interest()[: self.level.sections]))

    # ---------------------------------------------------------------------------------------------------- one Workload

    def _rate(self, s: WorkloadSummary) -> Rate | None:
        work, timing = self.costs.get(s.workload.name), s.winner.timing(s.mode) if s.winner else None
        return rate(work, timing.median, s.mode, self.ceilings) if work and timing else None

    def section(self, s: WorkloadSummary, key: str, *, many: bool) -> dict[str, Any]:
        """All that the page says of one Workload; charts only where it is the only one."""
        best = s.winner
        candidate = best.candidate if best else None
        view: dict[str, Any] = {
            "s": s,
            "key": key,
            "headline": wording.headline(s, self.run.environments[0]),
            "caveats": [shorten(c, self.level.evidence) for c in wording.caveats(s)],
            "rate": self._rate(s),
            "matrix": _matrix(s),
            "timings": best.timings if best else (),
            "checks": s.checks[:60],
            "checks_left_out": max(0, len(s.checks) - 60),
            "failures": _failures(s.own, self.level.evidence),
            "resources": dict(list(best.build.resources.items())[:20]) if best and best.build else {},
            "compiler": shorten(f"{best.build.compiler}, {best.build.arch}", 200) if best and best.build else "",
            "plan": _plan(best) if best else None,
            "sensors": list(best.sensors.items())[:20] if best else [],
            "source": _source(candidate, self.level.source) if candidate else None,
            "config": shorten(_config(candidate), 400) if candidate else "",
            "charts": None,
        }
        if not many:
            view["charts"] = self._charts
            verified = sorted((t for t in s.own if t.verdict.ok), key=lambda t: rank(t, s.mode))
            order = {id(t): i + 1 for i, t in enumerate(s.own)}
            shown = verified[: self.level.trials]
            view["verified"] = tuple(self._trial(t, order[id(t)], s) for t in shown)
            view["verified_left_out"] = len(verified) - len(shown)
        return view

    def _trial(self, trial: Trial, number: int, s: WorkloadSummary) -> dict[str, Any]:
        timing, work = trial.timing(s.mode), self.costs.get(s.workload.name)
        against = dict.fromkeys(c.rival for c in (s.reference, s.strongest) if c)
        return {
            "number": number,
            "id": trial.id,
            "label": shorten(trial.candidate.label, 60),
            "config": shorten(_config(trial.candidate), 120),
            "stage": trial.stage,
            "timing": timing,
            "rate": rate(work, timing.median, s.mode, self.ceilings) if work and timing else None,
            "ratios": tuple(trial.comparison(rival, s.mode) for rival in against),
            "winner": trial is s.winner,
        }


def _config(candidate: Candidate) -> str:
    origin = candidate.origin
    parts = [f"{k}={v}" for k, v in origin.config.items()]
    return " ".join(parts) or " ".join(p for p in (origin.kind, origin.proposer and f"by {origin.proposer}") if p)


def _matrix(s: WorkloadSummary) -> tuple[tuple[str, tuple[Comparison | None, ...]], ...]:
    """Rival by mode, the strongest in the main mode first."""
    if s.winner is None:
        return ()
    rivals = dict.fromkeys(c.rival for m in (s.mode, *s.modes) for c in s.comparisons(m))
    return tuple((rival, tuple(s.winner.comparison(rival, mode) for mode in s.modes)) for rival in rivals)


def _failures(trials: Sequence[Trial], evidence: int) -> tuple[dict[str, Any], ...]:
    """By outcome, the most frequent first; the same evidence is told once with the candidates that share it."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if not trial.verdict.ok:
            groups.setdefault(trial.verdict.outcome.value, []).append(trial)
    views = []
    for outcome, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        told = Counter(shorten(t.verdict.evidence or "no evidence was recorded", evidence) for t in group)
        first = {shorten(t.verdict.evidence or "no evidence was recorded", evidence): t for t in reversed(group)}
        rows = tuple(
            {
                "evidence": text,
                "count": n,
                "label": shorten(first[text].candidate.label, 60),
                "id": first[text].id,
                "check": _failed_check(first[text]),
            }
            for text, n in told.most_common(25)
        )
        views.append({"outcome": outcome, "count": len(group), "rows": rows, "left_out": len(told) - len(rows)})
    return tuple(views)


def _failed_check(trial: Trial) -> str:
    check = next((c for c in trial.verdict.checks if not c.passed), None)
    if check is None:
        return ""
    return f"{check.rung} / {check.case}: error {numbers.sig3(check.error)}, bound {numbers.sig3(check.bound)}"


def _plan(trial: Trial) -> dict[str, Any] | None:
    plan = trial.candidate.plan
    if plan is None:
        return None
    axes = trial.workload.axes

    def shown(expr: int | str) -> str:
        """An expression with its value, where the axes alone decide it (leading dimensions and addresses are known only when it runs)."""
        if isinstance(expr, int):
            return f"{expr:,}"
        try:
            return f"{expr} = {evaluate(expr, axes):,}"
        except PlanError:
            return expr

    def dims(values: Sequence[int | str]) -> str:
        return " × ".join(shown(v) for v in values)

    def launch(one: Launch) -> dict[str, str]:
        return {
            "kernel": one.kernel,
            "grid": dims(one.grid),
            "block": dims(one.block),
            "cluster": dims(one.cluster),
            "smem": shown(one.smem),
            "pdl": "yes" if one.pdl else "",
            "args": shorten(", ".join(_argument(a) for a in one.args), 600),
        }

    return {
        "launches": tuple(launch(one) for one in plan.launches[:20]),
        "left_out": max(0, len(plan.launches) - 20),
        "gpu": trial.candidate.kind == "cuda",
        "workspace": shown(plan.workspace) + (" (zeroed)" if plan.workspace_zeroed else ""),
        "requires": plan.requires[:20],
        "flags": " ".join(trial.candidate.flags),
    }


def _argument(arg: TensorArg | ScalarArg | WorkspaceArg | TensorMapArg) -> str:
    match arg:
        case TensorArg(name=name):
            return name
        case ScalarArg(ctype=ctype, value=value):
            return f"{ctype} {value}"
        case WorkspaceArg(offset=offset):
            return f"workspace + {offset}"
        case TensorMapArg(name=name, box=box, swizzle=swizzle):
            return f"tensor map of {name} (box {'x'.join(str(b) for b in box)}, swizzle {swizzle})"


def _source(candidate: Candidate, limit: int) -> dict[str, Any]:
    text = candidate.source.replace("\r\n", "\n").rstrip("\n")
    cut = text if len(text) <= limit else text[:limit].rpartition("\n")[0]
    return {
        "code": highlight(cut, candidate.kind),
        "gutter": gutter(cut),
        "lines": text.count("\n") + 1,
        "cut": text.count("\n") - cut.count("\n") if len(cut) < len(text) else 0,
        "empty": not cut,
    }


def environment_view(e: Environment) -> dict[str, Any]:
    facts = [(k, shorten(str(v), 300)) for k, v in list(e.facts.items())[:60]]
    versions = [(k, shorten(v, 200)) for k, v in list(e.versions.items())[:40]]
    return {
        "target": e.target,
        "device": shorten(e.device, 200),
        "host": shorten(e.host, 100),
        "facts": facts,
        "versions": versions,
    }
