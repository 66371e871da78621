"""How well a pack dispatches products that it was not tuned for: tuned on a part of a suite, asked about the rest, offline.

    python benchmarks/dispatch.py nn.db nt.db --out results/h200/dispatch

For each layout in the archives and each split: a pack's kernels are chosen from the training shapes as `tune` does it, each variant decides
about the held-out shapes with that pack's evidence alone, and the archive says what its choice takes there. Choices of kernels that were
never measured on a shape are counted, and left out of the figures; a second set of figures (`measured`) lets all variants choose only
among kernels that were. Splits: random halves; all shapes with one value of an axis, inside the grid or at its edge.

Variants: `library` calls it always; `nearest` does what serves the nearest shape; `tree` is a classification tree on the sizes; `models`
corrects the families' models family by family; `served` predicts from where kernels serve; `predictor` is what ships; `best` knows the
times of the pack's kernels on the held-out shapes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from published import command_line, write_summary
from tree import grow

from kernelwright.archive import Archive
from kernelwright.plan import unmet
from kernelwright.problems.suites import size_class
from kernelwright.records import Environment, Outcome, Trial, Verdict, Workload
from kernelwright.runtime import pack, predictor, times
from kernelwright.runtime.dispatch import contiguous
from kernelwright.runtime.kernel_set import assign, cover
from kernelwright.runtime.pack import Entry
from kernelwright.runtime.predictor import Prediction, Predictor, device_of

MODE = "device-cold"
VENDOR = "cublaslt-auto"
TORCH = "eager"
LOSS = 1.02
TOLERANCE = 0.01
SEEDS = 3
FEATURES = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1], [1, -1, 0]])
"""Of log2 M, N, K: the sizes, the operands' sizes, the work, the aspect."""

Only = Container[str] | None
Decide = Callable[[Workload, Only], str]
"""To a kernel's Candidate id, or nothing for the library; of the second argument's kernels only."""


class Suite:
    """What an archive knows of the products of one layout."""

    def __init__(self, trials: Sequence[Trial]):
        self.environment = trials[-1].environment
        self.device = device_of(self.environment.target, self.environment.device, self.environment.facts)
        able = [t for t in trials if t.verdict.ok and t.environment.comparable(self.environment)]
        self.confirms = [t for t in able if t.stage == "confirm"]
        self.rivals: dict[Workload, dict[str, float]] = {}
        for t in self.confirms:
            for c in t.comparisons:
                if c.mode == MODE:
                    self.rivals.setdefault(t.workload, {})[c.rival] = c.rival_us
        self.workloads = sorted(
            (w for w, seen in self.rivals.items() if {VENDOR, TORCH} <= set(seen)), key=lambda w: tuple(w.axes.values())
        )
        own = [t for t in able if t.candidate.kind != "rival"]
        kernels = dict.fromkeys(t.candidate.id for t in own)
        screens = [t for t in own if t.stage == "screen"]
        seen = times.gather(self.workloads, kernels, MODE, [t for t in own if t.stage == "confirm"], screens).kernels
        self.us: dict[Workload, dict[str, float]] = {w: {} for w in self.workloads}
        for k, measured in seen.items():
            for at, us in measured:
                self.us[self.workloads[at]][k] = us

    def best(self, w: Workload) -> float:
        return min(*self.us[w].values(), self.rivals[w][VENDOR])


class Trained:
    """The pack of a part of the suite."""

    def __init__(self, suite: Suite, workloads: Sequence[Workload]):
        self.suite, members = suite, set(workloads)
        confirmed: dict[Workload, dict[str, float]] = {w: {} for w in workloads}
        trials: dict[Workload, list[Trial]] = {w: [] for w in workloads}
        for t in suite.confirms:
            if t.workload in members:
                trials[t.workload].append(t)
                if t.candidate.kind != "rival":
                    confirmed[t.workload][t.candidate.id] = t.median(MODE)
        serving = assign(confirmed, cover(confirmed, TOLERANCE))
        self.entries: list[Entry] = []
        for w, group in trials.items():
            chosen = [t for t in group if t.candidate.id == serving[w]]
            self.entries.append(pack.entry_of(min(chosen, key=lambda t: t.median(MODE)), chosen))
        self.kernels = {e.candidate: e for e in reversed(self.entries) if not e.rival}
        self.predictions: dict[Workload, Prediction] = {}
        """The last ones."""
        self.times = [(i, k, suite.us[w][k]) for i, w in enumerate(workloads) for k in suite.us[w] if k in self.kernels]

    def able(self, kernel: str, w: Workload, only: Only) -> bool:
        plan = self.kernels[kernel].plan
        asked = contiguous(w, self.suite.device.sms)
        return (only is None or kernel in only) and plan is not None and unmet(plan, asked) is None

    def off(self, w: Workload) -> float:
        """By how many standard deviations the last prediction of our time over the vendor's was off; NaN if the kernel was not measured."""
        p = self.predictions[w]
        us = self.suite.us[w].get(p.entry.candidate) if p.entry else None
        return math.log(self.suite.rivals[w][VENDOR] / us / p.gain) / p.spread if us else math.nan

    # ------------------------------------------------------------------------------------------------------ variants

    def variants(self) -> Iterator[tuple[str, Decide]]:
        yield "library", lambda w, only: ""
        yield "nearest", self.nearest()
        yield "tree", self.tree()
        with patch.multiple(predictor, FAMILY_WEIGHT=1e9, SPREAD=0.035):  # 5 % between two of them
            yield "models", self.predicted(self.times)
        served = [(i, e.candidate, e.evidence.median) for i, e in enumerate(self.entries) if not e.rival]
        yield "served", self.predicted(served)
        yield "predictor", self.predicted(self.times)
        yield "best", self.known()

    def predicted(self, evidence: Sequence[tuple[int, str, float]]) -> Decide:
        made = Predictor(self.entries, evidence, self.suite.device)

        def decide(w: Workload, only: Only) -> str:
            p = self.predictions[w] = made.predict(w, contiguous(w, self.suite.device.sms), only=only)
            return p.entry.candidate if p.entry and p.worthwhile else ""

        return decide

    def nearest(self) -> Decide:
        places = np.array([_place(e.workload) for e in self.entries])

        def decide(w: Workload, only: Only) -> str:
            order = np.argsort(((places - _place(w)) ** 2).sum(axis=1), kind="stable")
            found = (self.entries[i].candidate for i in order)
            return next((k for k in found if not k or self.able(k, w, only)), "")

        return decide

    def tree(self) -> Decide:
        features = np.array([FEATURES @ _place(e.workload) for e in self.entries])
        names = sorted({e.candidate for e in self.entries})
        root = grow(features, np.array([names.index(e.candidate) for e in self.entries]))

        def decide(w: Workload, only: Only) -> str:
            x, node = FEATURES @ _place(w), root
            while not isinstance(node, list):
                feature, limit, low, high = node
                node = low if x[feature] <= limit else high
            found = (names[i] for i in node)
            return next((k for k in found if not k or self.able(k, w, only)), "")

        return decide

    def known(self) -> Decide:
        def decide(w: Workload, only: Only) -> str:
            us = {k: us for k, us in self.suite.us[w].items() if k in self.kernels}
            k = min(us, key=us.__getitem__, default="")
            return k if k and us[k] < self.suite.rivals[w][VENDOR] else ""

        return decide


def _place(w: Workload) -> np.ndarray:
    return np.log2([w.axes[a] for a in "MNK"])


# ------------------------------------------------------------------------------------------------------------------ figures


def splits(workloads: Sequence[Workload]) -> Iterator[tuple[str, str, list[Workload]]]:
    """(group, split, training shapes)"""
    for seed in range(SEEDS):
        kept = np.random.default_rng(seed).permutation(len(workloads))[: len(workloads) // 2]
        yield "random half", f"seed {seed}", [workloads[i] for i in sorted(kept)]
    for axis in "MNK":
        sizes = sorted({w.axes[axis] for w in workloads})
        for size in sizes:
            group = "edge of the grid" if size in (sizes[0], sizes[-1]) else "inside the grid"
            yield group, f"{axis} = {size}", [w for w in workloads if w.axes[axis] != size]


def decisions(suite: Suite, layout: str) -> Iterator[dict]:
    for group, split, training in splits(suite.workloads):
        trained, kept = Trained(suite, training), set(training)
        held_out = [w for w in suite.workloads if w not in kept]
        for name, decide in trained.variants():
            for measured in (False,) if name in ("library", "best") else (False, True):
                for w in held_out:
                    kernel = decide(w, suite.us[w] if measured else None)
                    yield {
                        "group": group, "split": split, "variant": name, "measured": measured, "layout": layout, "workload": w,
                        "class": size_class(2 * math.prod(w.axes.values())),
                        "kernel": kernel, "vendor": suite.rivals[w][VENDOR], "torch": suite.rivals[w][TORCH],
                        "us": suite.us[w].get(kernel, math.nan) if kernel else suite.rivals[w][VENDOR], "best": suite.best(w),
                        "off": trained.off(w) if name == "predictor" else math.nan,
                    }  # fmt: skip
        print(f"{layout} {group} {split}: {len(trained.kernels)} kernels, {len(held_out)} shapes", flush=True)


def figures(rows: Sequence[dict]) -> dict[str, float]:
    us, vendor, torch, best, off = (np.array([r[key] for r in rows]) for key in ("us", "vendor", "torch", "best", "off"))
    own, off = np.array([bool(r["kernel"]) for r in rows]), np.abs(off[np.isfinite(off)])
    known = np.isfinite(us)
    us, vendor, torch, best = (x[known] for x in (us, vendor, torch, best))
    with_torch = np.where(own[known], us, torch)
    return {
        "decisions": len(rows),
        "own": float(own.mean()),
        "unmeasured": float(1 - known.mean()),
        "regret": geomean(us / best) - 1,
        "dispatched_over_vendor": geomean(us / vendor),
        "best_over_vendor": geomean(best / vendor),
        "dispatched_over_torch": geomean(with_torch / torch),
        "losses": float((us > LOSS * vendor).mean()),
        "worst": float((us / vendor).max()),
    } | ({"within_1_spread": float((off < 1).mean()), "within_2_spreads": float((off < 2).mean())} if len(off) else {})


def geomean(ratios: np.ndarray) -> float:
    return float(np.exp(np.log(ratios).mean()))


def table(found: Sequence[dict]) -> dict[str, dict]:
    cells = defaultdict(list)
    for r in found:
        who = f"{r['variant']}, measured" if r["measured"] else r["variant"]
        cells[r["group"], who, "all"].append(r)
        cells[r["group"], who, r["class"]].append(r)
    shown: dict[str, dict] = {}
    for (group, who, size), rows in cells.items():
        shown.setdefault(group, {}).setdefault(who, {})[size] = figures(rows)
    return shown


def losses(found: Sequence[dict]) -> list[dict]:
    """Of the predictor, the worst first."""
    mine = [r for r in found if r["variant"] == "predictor" and not r["measured"] and r["us"] > LOSS * r["vendor"]]
    mine.sort(key=lambda r: -r["us"] / r["vendor"])
    keys = ("group", "split", "class", "kernel")
    return [{"shape": r["workload"].name, **{k: r[k] for k in keys}, "ratio": r["us"] / r["vendor"]} for r in mine]


def suites(paths: Sequence[Path]) -> dict[str, Suite]:
    """By layout."""
    trials: dict[str, list[Trial]] = defaultdict(list)
    candidates = {}
    for path in paths:
        if not path.is_file():
            sys.exit(f"there is no archive {path}; name the file that `kernelwright doctor` shows")
        with Archive(path) as archive:
            for t in archive.trials(outcome=Outcome.OK):
                if t.stage in ("screen", "confirm") and t.workload.problem == "gemm" and t.timing(MODE):
                    # only what is needed: tens of thousands of Trials share some hundreds of sources
                    candidate = candidates.setdefault(t.candidate.id, t.candidate)
                    trials[t.workload.layout].append(t.replace(candidate=candidate, rivals={}, verdict=Verdict(outcome=Outcome.OK)))
    return {layout: Suite(found) for layout, found in sorted(trials.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found: list[dict] = []
    environment = Environment(target="", device="")
    for layout, suite in suites(args.archives).items():
        environment = suite.environment
        found += decisions(suite, layout)
    if not found:
        sys.exit("the archives hold no products that were measured beside the vendor; make some with: kernelwright tune hgemm-1000")
    shown = table(found)
    write_summary(args.out, command_line("dispatch.py"), environment, shown, losses=losses(found))
    for group, variants in shown.items():
        print(f"\n{group:30}     own unmeas.  regret /vendor  losses   worst")
        for who, sizes in variants.items():
            shown_of = ("own", "unmeasured", "regret", "dispatched_over_vendor", "losses", "worst")
            print(f"{who:30}" + "".join(f"{sizes['all'][name]:8.4f}" for name in shown_of))


if __name__ == "__main__":
    main()
