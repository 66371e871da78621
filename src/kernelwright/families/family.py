"""What a Family is: a set of our own kernels for one Problem and one kind of device, spanned by a small space of choices.

A Family writes Candidates and judges which configs are legal. It never compiles, runs or times anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kernelwright.records import Candidate, Origin, Workload

if TYPE_CHECKING:
    import numpy as np

Value = int | str | bool
Config = dict[str, Value]
Space = dict[str, tuple[Value, ...]]
"""Name of each choice to its values, in an order that makes neighbours similar (ascending tile sizes, say)."""


Axes = Mapping[str, "np.ndarray"]
"""Sizes of many Workloads, or of many for each config: arrays that broadcast against a row of configs."""
Estimator = Callable[[Axes], "np.ndarray"]
"""To microseconds, a row for each Workload and a column for each config; NaN where there is no model."""


@dataclass(frozen=True)
class DeviceFacts:
    """What a Family may know of the device: enough to say what is legal."""

    target: str
    """`cpu`, `cuda:sm_80`, `cuda:sm_90` ..., `fake`."""
    name: str = ""
    sms: int = 1
    smem_per_block: int = 0
    """Most dynamic shared memory of one block, bytes."""
    l2_bytes: int = 0
    threads: int = 1
    isa: frozenset[str] = field(default_factory=frozenset)
    """CPU instruction sets: `avx2`, `fma`, `avx512f`, `avx512_bf16` ..."""

    @property
    def sm(self) -> int:
        """90 for `cuda:sm_90`; 0 on other targets."""
        return int(self.target.removeprefix("cuda:sm_")) if self.target.startswith("cuda:sm_") else 0


def outside(config: Config, space: Space) -> str | None:
    """What a config lacks, or has that is no choice of the space, as a clause; None where each choice has one of its values."""
    if missing := sorted(set(space) - set(config)):
        return f"it lacks {', '.join(missing)}"
    for key, value in config.items():
        if key not in space:
            return f"{key} is not a choice here"
        if value not in space[key]:
            return f"{key} = {value} is not among {', '.join(map(str, space[key]))}"
    return None


class Family(ABC):
    """Subclass one per folder of `kernelwright.families` and register it there."""

    name: ClassVar[str]

    @abstractmethod
    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        """Why the Family has nothing for this Workload on this device, as a clause (`it needs sm_80 or newer`); None if it has."""

    @abstractmethod
    def space(self, w: Workload, device: DeviceFacts) -> Space:
        """All choices. Not every combination need be legal."""

    @abstractmethod
    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        """Why a config cannot run (`stages x tile = 240 KB of shared memory, the device has 227`); None if it can."""

    @abstractmethod
    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        """A few legal configs, best guess first: what runs when there is no time to search."""

    def estimate(self, config: Config, w: Workload, device: DeviceFacts) -> float | None:
        """Microseconds that a legal config takes, about, to rank configs of all Families before any is measured; None without a model."""
        return None

    def estimator(self, configs: Sequence[Config], like: Workload, device: DeviceFacts) -> Estimator:
        """`estimate` of the same configs again and again, for Workloads that differ from `like` in their axes."""
        import numpy as np  # what only searches does without it

        def microseconds(axes: Axes) -> np.ndarray:
            sizes = np.broadcast_arrays(*axes.values(), np.empty((1, len(configs))))[:-1]
            found = np.full(sizes[0].shape, np.nan)
            for at in np.ndindex(found.shape):
                w = like.replace(axes={name: int(size[at]) for name, size in zip(axes, sizes, strict=True)})
                if (us := self.estimate(configs[at[-1]], w, device)) is not None:
                    found[at] = us
            return found

        return microseconds

    @abstractmethod
    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        """Source and launch plan. The plan's expressions stay in the axes' names wherever the kernel serves other shapes too."""

    def origin(self, config: Config, proposer: str = "", parents: tuple[str, ...] = ()) -> Origin:
        return Origin(kind="family", name=self.name, config=dict(config), proposer=proposer, parents=parents)
