"""Which of a Pack's kernels is fastest on a product that nobody measured, and whether it is faster than the vendor's library.

A time is a physical estimate, corrected by how far off it was nearby. Of a kernel the estimate is its Family's model; of the vendor, whose
kernels we do not know, a launch and then memory or arithmetic. The correction is the mean of log(measured / estimate) over the measured
Workloads, weighted by a Gaussian of their distance in doublings of M, N, K (kernel regression: E. A. Nadaraya, G. S. Watson, 1964), drawn
to the mean of the kernel's Family where the kernel itself was not measured near by. What is left unknown falls with the weight of the
evidence, and a kernel of ours is chosen only if it stays ahead of the vendor by that.

Nothing is fitted ahead of time: the Pack ships what was measured (`times.json`, the entries' rivals), from which this takes 60 ms to make;
a Pack with fitted corrections would be wrong as soon as a model changes. The constants below were tuned on held-out halves of two suites of
1,000 products on an H200. There, on other halves, its choices take 1.9 % more than the best of everything measured (the nearest Workload's
kernel: 5.3 %), and 0.2 % of them are slower than auto-tuned cuBLASLt by more than 2 % (18.7 %); docs/dispatch.md. A decision takes 0.8 ms.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from kernelwright.families import NAMES, Config, DeviceFacts, family
from kernelwright.plan import PlanError, evaluate
from kernelwright.records import DTYPES, LaunchPlan, Workload
from kernelwright.runtime.pack import Entry

REACH = 0.6
"""Doublings at which evidence counts e^-1/2. The nearest neighbours in a grid of powers of two are 1 away."""
FAMILY_REACH = 1.0
FAMILY_WEIGHT = 0.1
"""What the Family's mean counts, in Workloads measured on the spot."""
SPREAD = 0.14
"""Standard deviation of log(time / estimate) without any evidence near by; it falls as 1 / sqrt(1 + evidence / FAMILY_WEIGHT). Three
quarters of the held-out times are within it: some to spare for sizes that are not in any suite."""
STRAY = 0.1
"""What the standard deviation grows by for each doubling beyond the first to the nearest measured Workload. With only the sizes up to 1,024
known, or from 1,024 on, or 256 to 4,096, the ratio of the two times was off by up to 0.09 (1 doubling away), 0.19 (2), 0.23 (3), 0.33 (4).
"""
LAUNCH, DRAM, POWER = 2.75, 3.6e6, 690e6
"""Of the vendor, roughly: microseconds of an empty product, bytes and FLOP a microsecond."""
UNROLLED = re.compile(r"K (?:==|<=) (\d+)")
"""What a kernel requires whose steps along K are unrolled: it takes as long for a smaller K."""


@dataclass(frozen=True)
class Prediction:
    """For one Workload."""

    entry: Entry | None
    """Of the kernel that promises most, whether or not it beats the vendor; None if no kernel of the Pack can do the Workload."""
    own_us: float
    """Expected; infinity without a kernel."""
    vendor_us: float
    spread: float
    """Standard deviation of the logarithm of their ratio."""

    @property
    def gain(self) -> float:
        """Expected time of the vendor over ours."""
        return self.vendor_us / self.own_us

    @property
    def worthwhile(self) -> bool:
        """Whether ours is expected to be faster by more than one standard deviation."""
        return self.entry is not None and self.gain > np.exp(self.spread)


def kind(w: Workload) -> tuple[object, ...]:
    """What Workloads share whose evidence counts for each other: all but the sizes and the type of the elements (fp16 or bf16)."""
    return w.problem, tuple(w.axes), DTYPES[w.dtype], w.accumulate, w.layout, w.epilogue, w.source


class _Kernel(NamedTuple):
    entry: Entry
    plan: LaunchPlan
    family: str
    config: Config


class Predictor:
    """For Workloads of one kind. `entries`: the Pack's of that kind; `times`: (entry's place among them, kernel's Candidate id, us)."""

    def __init__(self, entries: Sequence[Entry], times: Sequence[tuple[int, str, float]], device: DeviceFacts):
        self._device = device
        self._kernels = sorted(_kernels(entries, device), key=lambda k: (k.family, k.entry.candidate))
        self.dtypes = {k.entry.workload.dtype for k in self._kernels}
        """For which it has kernels."""
        names = sorted({k.family for k in self._kernels})
        self._families = {name: family(name) for name in names}
        # one config may be several kernels (other tails, fp16 and bf16): what one of them showed counts for all
        configs: dict[tuple, int] = {}
        keys = [(k.family, *sorted(k.config.items())) for k in self._kernels]
        self._config = np.array([configs.setdefault(key, len(configs)) for key in keys], int)
        self._family = np.array([names.index(key[0]) for key in configs], int)
        """Of each config."""
        groups = [[k for k in self._kernels if k.family == name] for name in names]
        self._estimators = [
            (one.estimator([k.config for k in group], group[0].entry.workload, device), np.array([[_unrolled(k.plan) for k in group]]))
            for one, group in zip(self._families.values(), groups, strict=True)
        ]

        axes = {a: np.array([e.workload.axes[a] for e in entries], int).reshape(-1, 1) for a in "MNK"}
        self._places = _doublings(axes)
        column = {k.entry.candidate: i for i, k in enumerate(self._kernels)}
        known = [(at, column[k], us) for at, k, us in times if k in column]
        at, kernel = (np.array([row[i] for row in known], int) for i in (0, 1))
        off = np.log(np.array([us for *_, us in known]) / self._estimate(axes)[at, kernel])
        usable = np.isfinite(off)  # not of Families without a model
        self._seen, self._off = np.zeros((2, len(entries), len(configs)))
        """How often a config was measured on a Workload; the sum of log(measured / estimate)."""
        np.add.at(self._seen, (at[usable], self._config[kernel[usable]]), 1)
        np.add.at(self._off, (at[usable], self._config[kernel[usable]]), off[usable])
        self._family_seen, self._family_off = (m @ np.eye(len(names))[self._family] for m in (self._seen, self._off))
        self._vendor_at = np.array([i for i, e in enumerate(entries) if e.vendor_us], int)
        self._vendor_off = np.log(np.array([e.vendor_us for e in entries if e.vendor_us]) / _roofline(axes)[self._vendor_at, 0])

    @property
    def compares(self) -> bool:
        """Whether any rival was measured; without one there is nothing to predict."""
        return len(self._vendor_at) > 0

    def predict(self, w: Workload, names: Mapping[str, int], *, only: Container[str] | None = None) -> Prediction:
        """`names`: what the plans' requirements are asked with (`plan.py`); `only`: Candidate ids among which to choose."""
        vendor, spread = self._vendor(w)
        none = Prediction(None, np.inf, float(np.exp(vendor)), float(spread))
        return next(self.ranked(w, names, only=only), none)

    def ranked(self, w: Workload, names: Mapping[str, int], *, only: Container[str] | None = None) -> Iterator[Prediction]:
        """Of all kernels that can do it, the one that `predict` chooses first."""
        squared = self._squared(w)
        near, wide = _gaussian(squared, REACH), _gaussian(squared - squared.min(), FAMILY_REACH)
        family_off = wide @ self._family_off / np.maximum(wide @ self._family_seen, 1e-300)
        evidence = near @ self._seen
        off = (near @ self._off + FAMILY_WEIGHT * family_off[self._family]) / (evidence + FAMILY_WEIGHT)
        own = np.log(self._estimate(_axes(w))[0]) + off[self._config]
        vendor, vendor_spread = self._vendor(w)
        spread = np.hypot(_spread(evidence), vendor_spread)[self._config]

        holds: dict[str, bool] = {}
        for i in np.argsort(own + spread, kind="stable"):
            k = self._kernels[i]
            wanted = k.entry.workload.dtype == w.dtype and (only is None or k.entry.candidate in only) and np.isfinite(own[i])
            if wanted and self._able(k, w, names, holds):
                yield Prediction(k.entry, float(np.exp(own[i])), float(np.exp(vendor)), float(spread[i]))

    def _squared(self, w: Workload) -> np.ndarray:
        """Distances to the measured Workloads."""
        return ((self._places - _doublings(_axes(w))) ** 2).sum(axis=1)

    def _vendor(self, w: Workload) -> tuple[Any, Any]:
        """Logarithm of the expected time of the library, and its spread."""
        squared = self._squared(w)[self._vendor_at]
        # shifted weights do not vanish far from everything measured
        weights = _gaussian(squared - squared.min(), REACH)
        vendor = np.log(_roofline(_axes(w))[0, 0]) + weights @ self._vendor_off / weights.sum()
        stray = STRAY * max(0.0, float(np.sqrt(squared.min())) - 1)
        return vendor, np.hypot(_spread(_gaussian(squared, REACH).sum()), stray)

    def _estimate(self, axes: Mapping[str, np.ndarray]) -> np.ndarray:
        """(Workloads, kernels), microseconds."""
        found = [estimator({**axes, "K": np.maximum(axes["K"], unrolled)}) for estimator, unrolled in self._estimators]
        return np.concatenate([np.empty((len(axes["K"]), 0)), *found], axis=1)

    def _able(self, k: _Kernel, w: Workload, names: Mapping[str, int], holds: dict[str, bool]) -> bool:
        """Whether the plan's requirements hold, each looked up once for all kernels. And whether the model means the Workload: the config
        is legal there."""
        for condition in k.plan.requires:
            if condition not in holds:
                try:
                    holds[condition] = bool(evaluate(condition, names))
                except PlanError:
                    holds[condition] = False
            if not holds[condition]:
                return False
        return self._families[k.family].illegal(k.config, w, self._device) is None


def _kernels(entries: Iterable[Entry], device: DeviceFacts) -> list[_Kernel]:
    """Each once; those that a Family wrote, and that of this version knows the choices of."""
    found: dict[str, _Kernel] = {}
    for e in entries:
        known = e.origin and e.origin.kind == "family" and e.origin.name in NAMES
        if known and e.plan and e.origin and set(e.origin.config) == set(family(e.origin.name).space(e.workload, device)):
            found.setdefault(e.candidate, _Kernel(e, e.plan, e.origin.name, cast(Config, dict(e.origin.config))))
    return list(found.values())


def device_of(target: str, name: str, facts: Mapping[str, object]) -> DeviceFacts:
    """What a Pack's manifest says of its device, for the Families."""
    sms, l2 = (int(n) if isinstance(n := facts.get(key), int | float) else 0 for key in ("SMs", "L2 bytes"))
    return DeviceFacts(target=target, name=name, sms=max(1, sms), l2_bytes=l2)


def _unrolled(plan: LaunchPlan) -> int:
    return max((int(n) for condition in plan.requires for n in UNROLLED.findall(condition)), default=0)


def _axes(w: Workload) -> dict[str, np.ndarray]:
    return {a: np.array([[w.axes[a]]]) for a in "MNK"}


def _doublings(axes: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.log2(np.maximum(np.concatenate([axes[a] for a in "MNK"], axis=1), 1))


def _roofline(axes: Mapping[str, np.ndarray]) -> np.ndarray:
    m, n, k = (axes[a].astype(float) for a in "MNK")
    return LAUNCH + np.maximum((m * k + n * k + m * n) * 2 / DRAM, 2 * m * n * k / POWER)


def _gaussian(squared: np.ndarray, reach: float) -> np.ndarray:
    return np.exp(squared * (-0.5 / reach**2))


def _spread(evidence: Any) -> Any:
    return SPREAD / np.sqrt(1 + evidence / FAMILY_WEIGHT)
