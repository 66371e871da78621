"""What is called for a product: a kernel of the Pack, or the vendor's library. docs/dispatch.md says how it is decided and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from kernelwright.plan import PlanError, unmet
from kernelwright.records import Workload
from kernelwright.runtime.pack import Entry, Pack
from kernelwright.runtime.predictor import Prediction, Predictor, device_of, kind
from kernelwright.runtime.times import CALLABLE, Times

LARGEST = 2**31 - 256
"""Kernels count along an axis in 32 bits, in steps of up to 256."""
ALIGNED = 256
"""Bytes; PyTorch allocates in multiples of 512."""

AHEAD = 1.005
"""How much faster a kernel of ours must have been than what can be called of the library, where an algorithm that cannot was faster."""

LONG_US = 3000.0
"""Products that take our kernel longer are the library's. On 19 such of hgemm-1000 ours was 1.04 times as fast as torch.matmul under the
power limit, where the pack's times were measured, and 0.99 times on an H200 that had been idle and ran at its full clock, at worst 0.95.
`kw.warmup` measures as a pack's times are measured: with kernels pinned for products of about 3.2 ms a prefill of Qwen2.5-7B with 16,384
tokens took 2 % longer than with torch's layers, and 1 % less since they are the library's (results/h200/models/bf16)."""

Source = Literal["pinned", "measured", "predicted", "fallback"]


@dataclass(frozen=True)
class Pinned:
    """What is called for a Workload whatever else is known."""

    entry: Entry | None
    """A kernel of the Pack, or None for the library."""
    reason: str = "it was pinned"
    own_us: float | None = None
    vendor_us: float | None = None


@dataclass(frozen=True)
class Choice:
    """What to call for one Workload."""

    workload: Workload
    entry: Entry | None
    """The kernel, with the plan to launch it by; None for the library. A predicted kernel's entry is one of a Workload that it serves."""
    source: Source
    reason: str
    """A clause: what the decision rests on."""
    own_us: float | None = None
    """Expected of our kernel, the fastest one where the library is called; None where nothing is known."""
    vendor_us: float | None = None
    spread: float = 0.0
    """Of a predicted ratio: the standard deviation of its logarithm."""
    rival: str = ""
    """The rival that was fastest, where the library is called because it won."""

    @property
    def library(self) -> bool:
        return self.entry is None

    @property
    def ratio(self) -> float | None:
        """Expected time of the library over ours: above 1, our kernel is faster."""
        return self.vendor_us / self.own_us if self.own_us and self.vendor_us else None

    def explain(self) -> str:
        """For `kw.explain`, one or two sentences."""
        name = "the library" if self.entry is None else f"kernel {self.entry.candidate[:8]}"
        if self.entry is not None and self.entry.origin is not None:
            name += f" ({self.entry.origin.name})"
        said = f"{self.workload.name} calls {name} ({self.source}): {self.reason}."
        if self.ratio is None or self.own_us is None or self.vendor_us is None:
            return said
        within = f", give or take {100 * self.spread:.0f} %" if self.spread else ""
        expected = f"Ours takes {self.own_us:.4g} us, the library {self.vendor_us:.4g} us: {self.ratio:.2f} x its speed{within}."
        return f"{said} {expected}"


def contiguous(w: Workload, sms: int) -> dict[str, int]:
    """The names of a plan's requirements (`plan.py`) for operands without padding at aligned addresses, as tensors mostly are."""
    names = {**w.axes, "sms": sms}
    if {"M", "N", "K"} <= set(w.axes) and len(w.layout) == 2:
        m, n, k = (w.axes[a] for a in "MNK")
        rows = {"a": k if w.layout[0] == "n" else m, "b": n if w.layout[1] == "n" else k, "c": n, "addend": n, "bias": n}
        numel = {"a": m * k, "b": n * k, "c": m * n, "addend": m * n, "bias": n}
        for x, length in rows.items():
            names |= {f"ld_{x}": length, f"numel_{x}": numel[x], f"align_{x}": ALIGNED}
    return names


class Dispatcher:
    """Chooses once for each Workload; callers keep the Choice. Pins come first, then what was measured, then what is predicted.

    >>> d = Dispatcher(pack.load("my-pack"))
    >>> print(d.choose(Workload(problem="gemm", axes={"M": 300, "N": 512, "K": 1000}, dtype="fp16", layout="nn")).explain())
    """

    def __init__(self, pack: Pack):
        self.pack = pack
        self.pinned: dict[Workload, Pinned] = {}
        """For `kw.warmup`, which measures on the spot."""
        made = pack.manifest.environment
        self._device = device_of(made.target, made.device, made.facts)
        self._table = {e.workload: i for i, e in enumerate(pack.entries)}
        self._predictors: dict[tuple[object, ...], Predictor] = {}

    def choose(self, w: Workload, names: Mapping[str, int] | None = None) -> Choice:
        """`names`: strides and alignments of the operands (`ld_X`, `align_X`); what is not given is as of contiguous, aligned tensors.
        Never raises for want of a kernel: then it is the library."""
        asked = contiguous(w, self._device.sms) | dict(names or {})
        known = self._known(w)
        if known is None:
            return _short(self._predicted(w, asked))
        why = known.entry and _unmet(known.entry, asked)
        return _short(known if why is None else self._predicted(w, asked, why))

    def candidates(self, w: Workload, count: int) -> list[Entry]:
        """The kernels worth measuring on a Workload of contiguous, aligned tensors: of those that can do it the `count` that are expected
        to be the fastest, and where nothing can be expected the first that are able."""
        names = contiguous(w, self._device.sms)
        predictor = self._predictor(w)
        ranked = [p.entry for p in predictor.ranked(w, names)] if predictor.compares and min(w.axes.values()) > 0 else []
        alike = (e for e in self.pack.entries if not e.rival and kind(e.workload) == kind(w) and e.workload.dtype == w.dtype)
        able = (e for e in alike if _unmet(e, names) is None)
        found = {e.candidate: e for e in (*filter(None, ranked), *able)}
        return list(found.values())[:count]

    def _known(self, w: Workload) -> Choice | None:
        """As pinned or measured."""
        if pin := self.pinned.get(w):
            return Choice(w, pin.entry, "pinned", pin.reason, pin.own_us, pin.vendor_us)
        if w not in self._table:
            return None
        at = self._table[w]
        entry = self.pack.entries[at]
        if entry.rival:
            reason = f"{entry.rival} was the fastest when the pack was made"
            own_us, kernel = self._fastest.get(at, (None, ""))
            theirs = self._callable.get(at)
            if entry.rival not in CALLABLE and own_us and theirs and own_us * AHEAD < theirs:
                reason += ", but it is an algorithm found by timing all of the library's; of the others ours was"
                return Choice(w, self._entries[kernel], "measured", reason, own_us, theirs)
            return Choice(w, None, "measured", reason, own_us, entry.vendor_us, rival=entry.rival)
        return Choice(w, entry, "measured", "it was the fastest when the pack was made", entry.evidence.median, entry.vendor_us)

    def _predicted(self, w: Workload, names: dict[str, int], why: str = "") -> Choice:
        """`why`: what forbids the kernel that was pinned or measured."""

        def library(reason: str, p: Prediction | None = None) -> Choice:
            said = f"{why}; {reason}" if why else reason
            if p is None:
                return Choice(w, None, "fallback", said)
            return Choice(w, None, "fallback", said, p.own_us if p.entry else None, p.vendor_us, p.spread)

        if not {"M", "N", "K"} <= set(w.axes):
            return library("only products are predicted, and this was not measured")
        if 0 in w.axes.values():
            return library("it is empty")
        if max(w.axes.values()) >= LARGEST:
            return library(f"our kernels count along an axis in 32 bits, up to {LARGEST}")
        predictor = self._predictor(w)
        if w.dtype not in predictor.dtypes:
            return library(f"the pack has no kernel for {' '.join(filter(None, (w.problem, w.dtype, w.layout, w.epilogue)))}")
        if not predictor.compares:
            return library("no rival was measured beside the pack's kernels, so no gain can be expected")
        p = predictor.predict(w, names)
        if p.entry is None:
            return library("no kernel of the pack can do these sizes, strides or alignments", p)
        if not p.worthwhile:
            return library("no kernel of the pack is expected to be faster by more than the prediction may be off", p)
        return Choice(
            w, p.entry, "predicted", "it is expected to be the fastest, from what was measured near by", p.own_us, p.vendor_us, p.spread
        )

    def _predictor(self, w: Workload) -> Predictor:
        """Of the Workload's kind, made when one is first asked about."""
        if (key := kind(w)) not in self._predictors:
            places = [i for i, e in enumerate(self.pack.entries) if kind(e.workload) == key]
            local = {place: i for i, place in enumerate(places)}
            times = [(local[at], k, us) for k, seen in self._times.items() for at, us in seen if at in local]
            self._predictors[key] = Predictor([self.pack.entries[i] for i in places], times, self._device)
        return self._predictors[key]

    @cached_property
    def _measured(self) -> Times:
        return self.pack.times()

    @property
    def _times(self) -> dict[str, tuple[tuple[int, float], ...]]:
        return self._measured.kernels

    @cached_property
    def _callable(self) -> dict[int, float]:
        return self._measured.callable_us()

    @cached_property
    def _fastest(self) -> dict[int, tuple[float, str]]:
        """Of our own kernels on each measured Workload: microseconds, and which."""
        found: dict[int, tuple[float, str]] = {}
        for kernel, seen in self._times.items():
            for at, us in seen:
                found[at] = min((us, kernel), found.get(at, (us, kernel)))
        return found

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        """One of each kernel's."""
        return {e.candidate: e for e in self.pack.entries if not e.rival}


def _short(choice: Choice) -> Choice:
    """The library in place of a kernel that takes LONG_US."""
    if choice.entry is None or (choice.own_us or 0.0) < LONG_US:
        return choice
    why = f"{choice.reason}, but takes over {LONG_US / 1000:.0f} ms, and on a GPU that was idle the library may be faster"
    return replace(choice, entry=None, reason=why)


def _unmet(entry: Entry, names: Mapping[str, int]) -> str | None:
    try:
        return unmet(entry.plan, names) if entry.plan else None
    except PlanError as error:
        return str(error)
