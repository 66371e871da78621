"""A suite of products as one result: shape by shape against a rival, whatever the layouts, and the geometric means over shapes.

A shape is M, N, K; it may have been tuned in several layouts (a Workload each), and a rival may have been measured in several
(`cublaslt-auto` in the Workload's own, `cublaslt-auto-nt` with B stored N x K). Who may choose how operands are stored takes the fastest of
either, so the headline is our best layout against the rival's best layout; figures for each layout stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import geometric_mean

import numpy as np

from kernelwright.problems.suites import SIZE_CLASSES, size_class
from kernelwright.records import Comparison, Trial, Workload, stored_otherwise
from kernelwright.report.summary import winner

RESAMPLES = 2000


@dataclass(frozen=True)
class Versus:
    """One of our Trials against one rival, in the rival's fastest layout."""

    trial: Trial
    c: Comparison
    same_rounds: bool = True
    """False where the rival's fastest layout was measured beside our kernel in another layout, in other rounds."""
    serves: str = ""
    """The rival that a dispatcher calls here in place of our kernel."""


@dataclass(frozen=True)
class Outside:
    """CUDA-L2's kernel for one shape, measured elsewhere beside auto-tuned cuBLASLt. Taken over that rival, which both measured, the
    protocols' differences fall out."""

    over_tuned: float
    """Its time over that of the rival."""
    accumulates: str = "fp32"
    """In which its kernel adds up."""


@dataclass(frozen=True, eq=False)
class Shape:
    sizes: tuple[int, int, int]
    """M, N, K."""
    trials: Mapping[str, Sequence[Trial]]
    """Confirmed, by layout."""
    cached: dict[tuple[str, str, str], Trial | None] = field(default_factory=dict, repr=False)

    @property
    def flops(self) -> float:
        m, n, k = self.sizes
        return 2.0 * m * n * k

    @property
    def size_class(self) -> str:
        return size_class(self.flops)

    @property
    def name(self) -> str:
        return "x".join(map(str, self.sizes))

    def winner(self, layout: str, mode: str, rival: str = "") -> Trial | None:
        """Our fastest confirmed kernel in one layout; with `rival`, of those that were measured beside it."""
        key = layout, mode, rival
        if key not in self.cached:
            found = self.trials.get(layout, ())
            self.cached[key] = winner([t for t in found if not (rival and t.verdict.ok) or _met(t, rival, mode)], mode)
        return self.cached[key]

    def own(self, mode: str, rival: str = "") -> Trial | None:
        """Our fastest in any layout."""
        found = [t for layout in self.trials if (t := self.winner(layout, mode, rival))]
        return min(found, key=self._clock(mode, rival), default=None)

    def _clock(self, mode: str, rival: str) -> Callable[[Trial], float]:
        """The time of a Trial, to choose between layouts. They are measured in different rounds, maybe on different GPUs of a kind, so the
        unit is the mean time of the contenders that all of them met (cuBLASLt in both layouts, say); microseconds where there is none."""
        winners = [t for layout in self.trials if (t := self.winner(layout, mode, rival))]
        common = set.intersection(*(set(_ratios(t, mode)) for t in winners)) if len(winners) > 1 else set()
        if not common:
            return lambda t: t.median(mode)
        return lambda t: 1 / geometric_mean([ratio for name, ratio in _ratios(t, mode).items() if name in common])

    def versus(self, trial: Trial, rival: str, mode: str) -> Versus | None:
        """A Trial of ours against the rival in the layout that is its fastest; None where it was not measured."""
        found = {_layout(c.rival, trial): Versus(trial, c) for c in trial.comparisons if c.mode == mode and _vendor(c.rival) == rival}
        for layout in self.trials:
            other = self.winner(layout, mode, rival)
            c = other.comparison(rival, mode) if other and layout not in found else None
            if c is not None:
                moved = _scaled(c, c.rival_us / trial.median(mode) / c.ratio).replace(rival=f"{rival}-{layout}")
                found[layout] = Versus(trial, moved, same_rounds=False)
        return min(found.values(), key=lambda v: v.c.ratio, default=None)

    def headline(self, rival: str, mode: str) -> Versus | None:
        own = self.own(mode, rival)
        return self.versus(own, rival, mode) if own else None

    def within(self, layout: str, rival: str, mode: str) -> Versus | None:
        """Ours against the rival, both in one layout."""
        own = self.winner(layout, mode, rival)
        c = own.comparison(rival, mode) if own else None
        return Versus(own, c) if own and c else None

    def dispatched(self, rival: str, mode: str, served: Mapping[Workload, str] | None = None) -> Versus | None:
        """What a dispatcher that knows these measurements calls, against the rival.

        In each layout that was tuned it takes the fastest of our kernel and the rivals that can serve it, as a Pack does, and the caller
        takes the fastest layout. `served` (Workload to a Candidate's id or a rival's name) is a Pack's choice instead. A rival with
        operands stored otherwise than any tuned Workload has them can be compared with, but not called: there a dispatcher can lose."""
        options: list[tuple[float, Trial, str]] = []  # time in the clock's unit, our Trial beside which it was measured, the rival called
        clock = self._clock(mode, rival)
        for layout, trials in self.trials.items():
            own = self.winner(layout, mode, rival)
            if own is None:
                continue
            # stored otherwise, it is a rival that the other layout's dispatcher calls; a Pack says what that one has chosen
            tuned = self.trials if served is None else (layout,)
            able = {c.rival: c.ratio for c in own.comparisons if c.mode == mode and _layout(c.rival, own) in tuned}
            choice = served.get(own.workload) if served is not None else min(able, key=able.__getitem__, default=None)
            if choice in able and (served is not None or able[choice] < 1):
                options.append((clock(own) * able[choice], own, choice))
            elif served is None:
                options.append((clock(own), own, ""))
            else:
                alike = [t for t in trials if t.verdict.ok and set(_ratios(own, mode)) <= set(_ratios(t, mode))]  # that met the same
                options += [(clock(t), t, "") for t in [t for t in alike if t.candidate.id == choice][-1:]]
        if not options:
            return None
        time, trial, serves = min(options, key=lambda o: o[0])
        against = self.versus(trial, rival, mode)
        if against is None:
            return None
        return Versus(trial, _scaled(against.c, clock(trial) / time), against.same_rounds, serves)


def _met(trial: Trial, rival: str, mode: str) -> bool:
    return any(c.mode == mode and _vendor(c.rival) == rival for c in trial.comparisons)


def _ratios(trial: Trial, mode: str) -> dict[tuple[str, str], float]:
    """By rival and the layout it ran in."""
    return {(_vendor(c.rival), _layout(c.rival, trial)): c.ratio for c in trial.comparisons if c.mode == mode}


def _vendor(rival: str) -> str:
    return rival[:-3] if stored_otherwise(rival) else rival


def _layout(rival: str, trial: Trial) -> str:
    return rival[-2:] if stored_otherwise(rival) else trial.workload.layout


def _scaled(c: Comparison, factor: float) -> Comparison:
    """The same rounds seen from a contender that takes 1 / factor of the time; a tie with itself where that is the rival."""
    if abs(c.ratio * factor - 1) < 1e-12:
        return c.replace(ratio=1.0, low=1.0, high=1.0)
    return c.replace(ratio=c.ratio * factor, low=c.low * factor, high=c.high * factor)


def shapes_of(trials: Iterable[Trial]) -> list[Shape]:
    """Confirmed Trials of products, grouped; the smallest first. Those of other problems are left out."""
    groups: dict[tuple[int, int, int], dict[str, list[Trial]]] = {}
    for t in trials:
        if t.workload.problem == "gemm" and t.stage in ("confirm", "replay"):
            m, n, k = t.workload.axes.values()
            groups.setdefault((m, n, k), {}).setdefault(t.workload.layout, []).append(t)
    return sorted((Shape(sizes, layouts) for sizes, layouts in groups.items()), key=lambda s: (s.flops, s.sizes))


# ------------------------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Mean:
    """Geometric mean over shapes with its 95 % percentile-bootstrap interval over shapes: how much it would move with other shapes of the
    same kind. The noise of a single shape is in its own interval."""

    mean: float
    low: float
    high: float
    shapes: int


@cache
def _resampled(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, size=(RESAMPLES, count))


def mean_of(ratios: Sequence[float]) -> Mean | None:
    """None where there is no ratio."""
    if not ratios:
        return None
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    low, high = np.percentile(logs[_resampled(len(logs))].mean(axis=1), (2.5, 97.5))
    return Mean(*(float(np.exp(x)) for x in (logs.mean(), low, high)), shapes=len(logs))


@dataclass(frozen=True)
class Result:
    """A suite against its rivals. `tuned`, `exhaustive`, `torch`: the rivals behind these names."""

    shapes: Sequence[Shape]
    mode: str
    tuned: str = "cublaslt-auto"
    exhaustive: str = "cublaslt-all"
    torch: str = "eager"
    served: Mapping[Workload, str] | None = None
    """A Pack's choice: Workload to a Candidate's id or a rival's name."""
    outside: Mapping[tuple[int, int, int], Outside] = field(default_factory=dict)
    chain_mode: str = "device-chain"
    """Back-to-back launches, in which programmatic dependent launch overlaps one kernel's start with its predecessor's end."""

    @cached_property
    def layouts(self) -> tuple[str, ...]:
        return tuple(sorted({layout for s in self.shapes for layout in s.trials}))

    @cached_property
    def headline(self) -> dict[Shape, Versus]:
        return self._over(lambda s: s.headline(self.tuned, self.mode))

    @cached_property
    def dispatched(self) -> dict[Shape, Versus]:
        return self._over(lambda s: s.dispatched(self.tuned, self.mode, self.served))

    @cached_property
    def chained(self) -> dict[Shape, Versus]:
        return self._over(lambda s: s.headline(self.tuned, self.chain_mode))

    @cached_property
    def searched(self) -> dict[Shape, Versus]:
        return self._over(lambda s: s.headline(self.exhaustive, self.mode))

    def over_cuda_l2(self, accumulates: str = "") -> list[float]:
        """CUDA-L2's time over ours by shape, of its kernels that accumulate so; or of all."""
        theirs = [(v, self.outside[s.sizes]) for s, v in self.headline.items() if s.sizes in self.outside]
        return [v.c.ratio * of.over_tuned for v, of in theirs if accumulates in ("", of.accumulates)]

    def _over(self, versus) -> dict[Shape, Versus]:
        return {s: found for s in self.shapes if (found := versus(s))}

    @cached_property
    def means(self) -> dict[str, Mean]:
        """By the name of the figure; those of nothing measured are left out."""
        found: dict[str, Mean | None] = {}

        def add(name: str, versus: Mapping[Shape, Versus], classes: bool = False) -> None:
            found[name] = mean_of([v.c.ratio for v in versus.values()])
            for of in SIZE_CLASSES if classes else ():
                found[f"{name}_{of}"] = mean_of([v.c.ratio for s, v in versus.items() if s.size_class == of])

        add("own_over_tuned", self.headline, classes=True)
        add("dispatched_over_tuned", self.dispatched, classes=True)
        for layout in self.layouts:
            add(f"own_over_tuned_{layout}", self._over(lambda s, of=layout: s.within(of, self.tuned, self.mode)), classes=True)
        add("own_over_exhaustive", self.searched, classes=True)
        add("dispatched_over_exhaustive", self._over(lambda s: s.dispatched(self.exhaustive, self.mode, self.served)))
        add("own_over_torch", self._over(lambda s: s.headline(self.torch, self.mode)))
        found["own_over_cuda_l2"] = mean_of(self.over_cuda_l2("fp32"))  # as we do: half of the precision is no rival
        found["own_over_cuda_l2_all"] = mean_of(self.over_cuda_l2())
        add("chain_own_over_tuned", self.chained, classes=True)
        add("chain_dispatched_over_tuned", self._over(lambda s: s.dispatched(self.tuned, self.chain_mode, self.served)))
        return {name: mean for name, mean in found.items() if mean}

    def losses(self, of: Mapping[Shape, Versus]) -> list[tuple[Shape, Versus]]:
        """Slower than the rival beyond the noise floor, the slowest first."""
        return sorted(((s, v) for s, v in of.items() if v.c.outcome == "loss"), key=lambda pair: pair[1].c.ratio)

    @cached_property
    def largest_error(self) -> float | None:
        """Over all winners: relative error over the vendor's own on the same inputs."""
        winners = (s.winner(layout, self.mode) for s in self.shapes for layout in s.trials)
        return max((c.vendor_ratio for t in winners if t for c in t.verdict.checks if c.vendor_ratio is not None), default=None)

    def figures(self) -> dict[str, object]:
        """For `summary.json`: each mean by its name, its interval and number of shapes under `intervals`, then the counts."""
        outcomes = [v.c.outcome for v in self.headline.values()]
        return {
            **{name: mean.mean for name, mean in self.means.items()},
            "shapes": len(self.headline),
            "shapes_without_a_verified_kernel": sum(s.own(self.mode) is None for s in self.shapes),
            "own_wins": outcomes.count("win"),
            "own_ties": outcomes.count("tie"),
            "own_losses": outcomes.count("loss"),
            "dispatched_losses": len(self.losses(self.dispatched)),
            "dispatched_to_a_rival": sum(bool(v.serves) for v in self.dispatched.values()),
            **({"cuda_l2_slower": sum(r > 1 for r in self.over_cuda_l2("fp32"))} if self.outside else {}),
            "largest_error_over_vendor": self.largest_error,
            "compared_across_rounds": sum(not v.same_rounds for v in self.headline.values()),
            "mode": self.mode,
            "tuned": self.tuned,
            "layouts": list(self.layouts),
            "intervals": {n: {"low": m.low, "high": m.high, "shapes": m.shapes} for n, m in self.means.items()},
            "interval_method": f"95 % percentile bootstrap of the geometric mean over shapes, {RESAMPLES} resamples",
        }


def cause(trial: Trial) -> str:
    """Family and choices of a kernel in one line: what there is to improve."""
    origin = trial.candidate.origin
    return " ".join([origin.name or origin.kind, *(f"{k}={v}" for k, v in origin.config.items())])
