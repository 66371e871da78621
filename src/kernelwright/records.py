"""The records that travel between stages: frozen, content-hashed, JSON in and out.

A record holds data only. It knows nothing of torch, of a GPU, or of where it is stored. Two records with the same content
have the same `id`, on any machine. States that make no sense (a Timing on a failed Trial) are refused at construction.
"""

from __future__ import annotations

import enum
import hashlib
import math
import sys
from typing import Any, ClassVar, Literal, Self

import msgspec

DTYPES = {"fp8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "int8": 1, "int32": 4, "int64": 8}
"""Size in bytes of each element type a Workload or tensor may have; fp8 is e4m3 (OCP 8-bit floating point, no infinities)."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Base of all records."""

    not_hashed: ClassVar[tuple[str, ...]] = ()
    """Fields that do not take part in the identity (provenance, say)."""
    hashed_if_set: ClassVar[tuple[str, ...]] = ()
    """Fields that came later: an empty one does not take part, so that records keep the identity they had before."""

    @property
    def id(self) -> str:
        """16 hex digits of the SHA-256 of the record's content, worked out once."""
        remembered: dict[str, str] = self.__dict__  # pyright: ignore[reportAssignmentType]
        if (known := remembered.get("id")) is not None:
            return known
        content = msgspec.to_builtins(self, order="deterministic")
        for field in self.not_hashed:
            content.pop(field, None)
        for field in self.hashed_if_set:
            if not content[field]:
                del content[field]
        text = msgspec.json.encode([type(self).__name__, content], order="deterministic")
        found = remembered["id"] = hashlib.sha256(text).hexdigest()[:16]
        return found

    def __hash__(self) -> int:
        return int(self.id, 16)

    def to_json(self) -> str:
        """One line. Keys keep their order: the order of a Workload's axes is part of its name."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises msgspec.ValidationError, a ValueError, when the text is not such a record."""
        return msgspec.json.decode(text, type=cls)

    def replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)


# ---------------------------------------------------------------------------------------------------------------- what


class Workload(Record, frozen=True, kw_only=True):
    """A Problem with every axis, dtype and layout fixed: the thing that is timed."""

    hashed_if_set = ("epilogue",)

    problem: str
    """Name of the Problem: `gemm`, `linear`, `chain:softmax`, `kernelbench:NAME`."""
    axes: dict[str, int]
    """Axis name to size, in the Problem's order: `{"M": 512, "N": 512, "K": 512}`."""
    dtype: str = "fp32"
    """Type of inputs and outputs, one of DTYPES."""
    accumulate: str = "fp32"
    """Type of the accumulator; compared only with rivals that accumulate in the same type."""
    layout: str = ""
    """GEMM: `nn`, `nt`, `tn`, `tt`, A's letter first; `n` is row-major as the formula names it, `t` is stored transposed."""
    epilogue: str = ""
    """`linear`: what is done to the product, `bias+gelu`; `kernelwright.problems.epilogue` has the grammar."""
    source: str = ""
    """KernelBench problems carry the text of their file, so that a Trial can be replayed without it."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        if bad := [f"{k}={v}" for k, v in self.axes.items() if v < 0]:
            raise ValueError(f"axis sizes must not be negative: {', '.join(bad)}")

    @property
    def name(self) -> str:
        """The text that a user types to get this Workload: `gemm:512x512x512:fp16:nn`."""
        parts = [self.problem, "x".join(str(n) for n in self.axes.values()), self.dtype, self.layout]
        if self.accumulate != "fp32":
            parts.append(f"acc={self.accumulate}")
        parts.append(self.epilogue)
        return ":".join(p for p in parts if p)


# ----------------------------------------------------------------------------------------------------------- candidate

Expr = int | str
"""An integer, or an expression over the Workload's axes and derived names; `kernelwright.plan` lists and evaluates them."""


class TensorArg(Record, tag="tensor", frozen=True, kw_only=True):
    """Pointer to the first element of a tensor of the Problem, by name."""

    name: str


class ScalarArg(Record, tag="scalar", frozen=True, kw_only=True):
    """A number passed by value."""

    ctype: Literal["i32", "i64", "f32"]
    value: Expr | float


class WorkspaceArg(Record, tag="workspace", frozen=True, kw_only=True):
    """Pointer into the plan's workspace."""

    offset: Expr = 0
    """Bytes from the start."""


class TensorMapArg(Record, tag="tensormap", frozen=True, kw_only=True):
    """A CUtensorMap over a tensor, passed by value as a `const __grid_constant__ CUtensorMap` parameter. Tiled mode only.

    Names follow cuTensorMapEncodeTiled: index 0 is the innermost dimension.
    """

    name: str
    dims: tuple[Expr, ...]
    """Elements along each dimension."""
    strides: tuple[Expr, ...]
    """Bytes between neighbours, for dimensions 1 and up (so one entry fewer than dims)."""
    box: tuple[Expr, ...]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    l2_promotion: Literal["none", "64B", "128B", "256B"] = "128B"


Arg = TensorArg | ScalarArg | WorkspaceArg | TensorMapArg


class Launch(Record, frozen=True, kw_only=True):
    """One kernel launch (CUDA) or one call of an `extern "C"` function (CPU: grid, block, cluster and smem are unused)."""

    kernel: str
    args: tuple[Arg, ...]
    grid: tuple[Expr, Expr, Expr] = (1, 1, 1)
    """Blocks along x, y, z."""
    block: tuple[Expr, Expr, Expr] = (1, 1, 1)
    """Threads along x, y, z."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem: Expr = 0
    """Dynamic shared memory, bytes."""
    pdl: bool = False
    """It may be launched with the programmatic edge to its predecessor: it then starts before that ends, so it must execute
    griddepcontrol.wait before its first access to global memory. Only mode `device-chain` and the `chain` rung launch it so."""


class LaunchPlan(Record, frozen=True, kw_only=True):
    """How our host code runs a candidate: launches in order on one stream. Declarative, so a candidate has no host code."""

    launches: tuple[Launch, ...]
    workspace: Expr = 0
    """Bytes, 256-byte aligned."""
    workspace_zeroed: bool = False
    """The workspace is zeroed once before the first run; the candidate must leave it zeroed. Else it holds garbage."""
    requires: tuple[str, ...] = ()
    """Expressions that must hold for the candidate to be used (`K % 8 == 0`); otherwise it is refused for that Workload."""

    def __post_init__(self) -> None:
        if not self.launches:
            raise ValueError("a launch plan needs at least one launch")

    @property
    def dependent(self) -> bool:
        """Whether a launch may take the programmatic edge to its predecessor."""
        return any(launch.pdl for launch in self.launches)


class Origin(Record, frozen=True, kw_only=True):
    """Where a Candidate came from."""

    kind: Literal["family", "file", "llm", "policy", "rival", "script"]
    name: str = ""
    """Family, file, model or rival name."""
    config: dict[str, int | str | bool | float] = {}
    proposer: str = ""
    parents: tuple[str, ...] = ()
    """Ids of the Candidates it was derived from."""


class Candidate(Record, frozen=True, kw_only=True):
    """Source, launch plan and origin. The identity is source + plan + flags: the same kernel from two origins is one."""

    not_hashed = ("origin",)

    kind: Literal["cuda", "cpu", "python", "rival", "fake"]
    source: str
    """Device code, C++, Python, a rival's name, or the fake target's script."""
    plan: LaunchPlan | None = None
    """Needed for `cuda` and `cpu`."""
    flags: tuple[str, ...] = ()
    """Extra compiler options."""
    origin: Origin

    def __post_init__(self) -> None:
        if self.kind in ("cuda", "cpu") and self.plan is None:
            raise ValueError(f"a {self.kind} candidate needs a launch plan")

    @property
    def label(self) -> str:
        """Short text for tables."""
        name = self.origin.name or self.origin.kind
        return name if self.kind == "rival" else f"{name}/{self.id[:8]}"


class KernelResources(Record, frozen=True, kw_only=True):
    """What the compiler says of one kernel."""

    registers: int = 0
    spill_stores: int = 0
    """Bytes."""
    spill_loads: int = 0
    """Bytes."""
    stack: int = 0
    """Bytes."""
    smem: int = 0
    """Static shared memory, bytes."""


class Build(Record, frozen=True, kw_only=True):
    """The compiled Candidate, in the build cache."""

    key: str
    """Hash of source, headers, flags, compiler version and architecture: the name in the cache."""
    artifact: str
    """Path of the cubin or shared object; empty where nothing is compiled (rivals, Python)."""
    compiler: str
    arch: str
    resources: dict[str, KernelResources] = {}
    """By kernel name."""
    seconds: float = 0.0
    log: str = ""


# ------------------------------------------------------------------------------------------------------------- results


class Outcome(enum.StrEnum):
    """How a Candidate fared. Everything but OK is the candidate's own fault, and an ordinary value."""

    OK = "OK"
    COMPILE_ERROR = "COMPILE_ERROR"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    TIMEOUT = "TIMEOUT"
    CRASH = "CRASH"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WRONG_RESULT = "WRONG_RESULT"
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    INPUT_MUTATED = "INPUT_MUTATED"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    CHEAT = "CHEAT"
    REFUSED = "REFUSED"
    """The candidate itself says that it does not do this Workload."""
    NOISY = "NOISY"
    """It is right, but too few undisturbed samples were taken to state a time."""


class Check(Record, frozen=True, kw_only=True):
    """One check of the correctness ladder."""

    rung: str
    """exact, normal, adversarial, memory, repeat, chain, after-timing, shapes."""
    case: str
    """Which inputs: `ternary`, `normal`, `wide`, `nan`, a shape."""
    passed: bool
    error: float = 0.0
    """Normalised error against the float64 reference; 0 for bit-equal."""
    bound: float = 0.0
    vendor_ratio: float | None = None
    """Its relative Frobenius error over the vendor library's own on the same inputs."""
    note: str = ""

    def __post_init__(self) -> None:
        # JSON has neither infinity nor NaN, and an output full of NaN is an ordinary wrong result: store the largest float64
        for field in ("error", "bound", "vendor_ratio"):
            value = getattr(self, field)
            if value is not None and not math.isfinite(value):
                msgspec.structs.force_setattr(self, field, sys.float_info.max)


class Verdict(Record, frozen=True, kw_only=True):
    """The outcome with its evidence."""

    outcome: Outcome
    evidence: str = ""
    """One sentence: what was seen, where."""
    checks: tuple[Check, ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


MODES = ("device-cold", "device-chain", "device-warm", "host-offline", "host-server")
COLD_MODES = ("device-cold", "device-chain")
"""Every launch of a sample has buffers that have left the caches; in `device-chain` launches whose plan allows it overlap as well."""


class Timing(Record, frozen=True, kw_only=True):
    """Samples of one contender in one mode. All times in microseconds."""

    mode: str
    samples: tuple[float, ...]
    """One per round: the median over the round's launches."""
    median: float
    low: float
    """95 % interval of the median."""
    high: float
    launches: int = 1
    """Launches per sample."""
    dropped: int = 0
    """Samples dropped as disturbed (context switch, throttle)."""
    stopped: str = ""
    """Why sampling ended: `converged`, `time limit`, `round limit`."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown timing mode {self.mode!r}; choose one of {', '.join(MODES)}")
        if not self.samples or not all(0 < x < math.inf for x in (*self.samples, self.median, self.low, self.high)):
            raise ValueError("a Timing needs samples, all of them finite and above zero")


class Comparison(Record, frozen=True, kw_only=True):
    """A Candidate against one Rival: both timed in the same interleaved rounds."""

    rival: str
    mode: str
    ratio: float
    """Median over rounds of rival time / candidate time: above 1, the candidate is faster."""
    low: float
    """95 % interval of the ratio."""
    high: float
    rival_us: float
    noise_low: float
    """Interval of an A/A pair in the same rounds: the noise floor."""
    noise_high: float
    rounds: int

    def __post_init__(self) -> None:
        times = (self.ratio, self.low, self.high, self.rival_us, self.noise_low, self.noise_high)
        if not all(0 < x < math.inf for x in times):
            raise ValueError(f"a Comparison with {self.rival} needs ratios and times that are finite and above zero")

    @property
    def outcome(self) -> Literal["win", "tie", "loss"]:
        """A difference inside the noise floor, or an interval that holds 1, is a tie."""
        if self.low > max(1.0, self.noise_high):
            return "win"
        if self.high < min(1.0, self.noise_low):
            return "loss"
        return "tie"


def stored_otherwise(rival: str) -> bool:
    """Whether a rival was given operands in another layout than the Workload's (`cublas-nt`): it is compared with, but cannot serve."""
    return rival.endswith(("-nn", "-nt", "-tn", "-tt"))


INEXACT = ("cusparselt",)
"""Rivals that compute something else than the Problem: compared with where asked for, never held against its reference, never served."""


def cannot_serve(rival: str) -> bool:
    return stored_otherwise(rival) or rival in INEXACT


class Environment(Record, frozen=True, kw_only=True):
    """Where a Trial was made."""

    target: str
    """`cpu`, `cuda:sm_90`, `fake`."""
    device: str
    """`NVIDIA H200`, a CPU's model name."""
    facts: dict[str, str | int | float] = {}
    """Driver, threads, cache sizes, measured peaks, isolation level."""
    versions: dict[str, str] = {}
    """kernelwright, python, torch, compiler, cuBLASLt ..."""
    host: str = ""

    def comparable(self, other: Environment) -> bool:
        """Whether times made there count beside times made here: the same device and the same versions of everything."""
        return (self.device, self.versions) == (other.device, other.versions)


class Trial(Record, frozen=True, kw_only=True):
    """One row of the Archive, never changed afterwards."""

    hashed_if_set = ("scores",)

    workload: Workload
    candidate: Candidate
    verdict: Verdict
    environment: Environment
    build: Build | None = None
    timings: tuple[Timing, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    scores: dict[str, float] = {}
    """Of an open challenge: what the judge measured of its answers in timed rounds, the median; more is better."""
    rivals: dict[str, Verdict] = {}
    """Verdicts of the rivals measured beside it; one that failed has no Comparison."""
    sensors: dict[str, float] = {}
    """Clock, power, temperature, throttled rounds, while it was timed."""
    stage: Literal["screen", "confirm", "verify", "replay"] = "screen"
    session: str = ""
    """Groups the Trials of one run."""
    created: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.verdict.ok and (self.timings or self.comparisons or self.scores):
            raise ValueError(f"a Trial whose verdict is {self.verdict.outcome} must not carry a time or a score")
        if self.stage in ("screen", "confirm", "replay") and self.verdict.ok and not self.timings:
            raise ValueError(f"a verified Trial of stage {self.stage!r} must carry a time")
        if bad := [name for name, value in self.sensors.items() if not math.isfinite(value)]:
            raise ValueError(f"sensors must be finite numbers, leave out those that were not read: {', '.join(bad)}")

    def timing(self, mode: str) -> Timing | None:
        return next((t for t in self.timings if t.mode == mode), None)

    def median(self, mode: str) -> float:
        """Microseconds; infinity where the mode was not measured."""
        timing = self.timing(mode)
        return timing.median if timing else float("inf")

    def comparison(self, rival: str, mode: str) -> Comparison | None:
        return next((c for c in self.comparisons if c.rival == rival and c.mode == mode), None)
