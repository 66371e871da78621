"""Stage `evaluate`: every search replayed on the measured tables of held-out shapes, the kernel model before and after reinforcement
learning among them; and the file of weights with what is known of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kernelwright.learn import replay
from kernelwright.learn.policy_model import load, save
from kernelwright.learn.policy_run import trained
from kernelwright.learn.replay import Run
from kernelwright.learn.table import Table, TableError, read, tables_of
from kernelwright.propose.neighbours import Neighbours
from kernelwright.propose.policy import CONFIDENCE
from kernelwright.report.lines import Line, chart

SEEDS, BUDGET = 20, 256
SMALLEST = 8
"""Tables with fewer configs say nothing of a search."""
DENSE = 150
"""Tables with so many configs count as dense: one turn of measuring, some too noisy to time. Surrogates are replayed on them alone: they
take 0.1 s a candidate, and among 40 there is nothing to model."""
BEFORE, AFTER = "policy before RL", "policy after RL"
ALONE = ", alone"
"""End of the name of a policy whose proposals are not ordered by the Families' estimates as well."""

_worker: dict[str, Any] = {}


def searches() -> tuple[str, ...]:
    """Those that can run here: surrogates need Optuna."""
    return tuple(name for name in replay.SEARCHES if "tpe" not in name or find_spec("optuna") is not None)


def evaluate(
    held_out: Path,
    policies: Mapping[str, tuple[Path, str]],
    *,
    training: Path | None = None,
    searches: Sequence[str] = tuple(replay.SEARCHES),
    seeds: int = SEEDS,
    budget: int = BUDGET,
    jobs: int | None = None,
    only: Sequence[str] = (),
    kept: Path | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[Run]]:
    """Runs by search. `policies`: name to file of weights and kind of contrast; `training`: measured training shapes, for `neighbours`;
    `only`: names of Workloads; `kept`: a file that takes every finished table's runs, and whose runs are not made again. `told` may raise
    to end it there. Raises TableError where no held-out shape was measured."""
    tables = _tables(held_out, only)
    if not tables:
        raise TableError(f"{held_out} holds no held-out shape with {SMALLEST} configs; measure some with benchmarks/learning_table.py")
    names = [*searches, *(["neighbours"] if training else []), *policies]
    found = _kept(kept, seeds, budget)
    wanted = [(name, i) for i, t in enumerate(tables) for name in names if "tpe" not in name or len(t.rows) >= DENSE]
    at = {task: (task[0], tables[task[1]].workload.name) for task in wanted}
    # surrogates first: one of theirs takes two minutes, and the end would wait for it
    tasks = sorted((task for task in wanted if at[task] not in found), key=lambda task: "tpe" not in task[0])
    given = (held_out, dict(policies), training, tuple(only), seeds, budget)
    for task, runs in _replayed(tasks, jobs or len(os.sched_getaffinity(0)), given):
        found[at[task]] = runs
        if kept is not None:
            line = json.dumps({"search": at[task], "seeds": seeds, "budget": budget, "shares": [r.shares for r in runs]})
            with kept.open("a") as file:
                file.write(f"\n{line}")  # the line before may have been cut off
        told(sum(at[t] in found for t in wanted), len(wanted))
    return {name: [r for other, i in wanted if other == name for r in found[at[other, i]]] for name in names}


def _replayed(tasks: Sequence[tuple[str, int]], jobs: int, given: tuple) -> Iterator[tuple[tuple[str, int], list[Run]]]:
    """As they are finished. Where the caller takes no more, what has not begun is not begun."""
    if jobs == 1:
        _begin(*given)
        for task in tasks:
            yield task, _search(*task)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, given) as pool:
        try:
            futures = {pool.submit(_search, *task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _kept(path: Path | None, seeds: int, budget: int) -> dict[tuple[str, str], list[Run]]:
    """By search and Workload; without lines that were cut off."""
    found = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        with suppress(ValueError):
            known = json.loads(line)
            if (known["seeds"], known["budget"]) == (seeds, budget):
                name, workload = known["search"]
                found[name, workload] = [Run(name, workload, seed, tuple(shares)) for seed, shares in enumerate(known["shares"])]
    return found


def _tables(path: Path, only: Sequence[str]) -> list[Table]:
    device, rows = read(path)
    return [t for t in tables_of(rows, device) if len(t.rows) >= SMALLEST and t.best and (not only or t.workload.name in only)]


def _begin(
    held_out: Path, policies: Mapping[str, tuple[Path, str]], training: Path | None, only: Sequence[str], seeds: int, budget: int
) -> None:
    torch.set_num_threads(1)
    kinds: dict[str, Any] = dict(replay.SEARCHES)
    for name, (path, contrast) in policies.items():
        confidence = 0.0 if name.endswith(ALONE) else CONFIDENCE
        kinds[name] = replay.policy_search(name.replace(" ", "_"), load(path)[0], contrast, confidence)
    if training:
        device, rows = read(training)
        _worker["training"] = tables_of(rows, device)
        kinds["neighbours"] = Neighbours
    _worker.update(tables=_tables(held_out, only), kinds=kinds, seeds=seeds, budget=budget)


def _search(name: str, table: int) -> list[Run]:
    kind, where = _worker["kinds"][name], _worker["tables"][table]
    knowledge = replay.knowledge_of(_worker["training"], replay.families_of(where)) if kind is Neighbours else None
    return [replay.replay(where, kind, name, seed, _worker["budget"], knowledge) for seed in range(_worker["seeds"])]


def summary(runs: Mapping[str, Sequence[Run]], budget: int = BUDGET) -> dict[str, Any]:
    """Figures by search, of those that ran on all shapes, and those that a reader asks for first."""
    shapes = max(len({r.workload for r in found}) for found in runs.values())
    runs = {name: found for name, found in runs.items() if len({r.workload for r in found}) == shapes}
    by_search = {name: replay.figures(found) for name, found in runs.items()}
    figures: dict[str, Any] = {"searches": by_search}
    best = AFTER if AFTER in runs else BEFORE if BEFORE in runs else None
    if best:
        mine = by_search[best]
        figures |= {
            "policy_candidates_to_97pct": mine["candidates_to_97pct"],
            "policy_first_within_10pct": mine["first_within_10pct"],
            "policy_over": {
                name: mine["candidates_to_97pct"] / other["candidates_to_97pct"]
                for name, other in by_search.items()
                if not name.startswith("policy")
            },
        }
    if BEFORE in runs and AFTER in runs:
        length = min(16, max(len(r.shares) for r in runs[BEFORE]))
        figures["rl_gain"] = replay.gain(runs[BEFORE], runs[AFTER], length) | {"candidates": length}
    return figures


def picture(runs: Mapping[str, Sequence[Run]], length: int, title: str) -> str:
    """Best-so-far curves with their intervals."""
    lines = {}
    for name, found in ((name, found) for name, found in runs.items() if found):
        y, low, high = replay.curve(found, length)
        lines[name] = Line(range(1, length + 1), y, low, high)
    return chart(title, "candidates measured", lines, "best-so-far", floor=0.6)


def write_weights(folder: Path, stage: str, about: Mapping[str, Any], to: Path) -> Path:
    """The model as a stage left it, for `KERNELWRIGHT_POLICY` or to be shipped."""
    policy = trained(folder, stage)
    save(to, policy, {"stage": stage, "parameters": policy.parameters_in_all, "date": time.strftime("%Y-%m-%d", time.gmtime()), **about})
    return to
