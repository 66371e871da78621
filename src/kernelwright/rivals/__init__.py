"""The baselines, one file each kind, behind the same interface as a candidate: loaded on the same buffers, checked, and clocked alike.

eager                 the problem as a PyTorch user writes it
compile, compile-max  torch.compile, default mode and max-autotune
graph                 the eager call replayed as a CUDA graph
compile-reduce        torch.compile's kernels replayed as a CUDA graph: mode reduce-overhead, without its copies of the inputs
channels-last         eager with images, and weights of convolutions, stored channels last
cudnn-benchmark       eager with torch.backends.cudnn.benchmark
tf32                  eager with TF32 in products and convolutions: only where an fp32 Workload's own bound allows it
cublas                cuBLAS, its own choice of algorithm (cublasGemmEx)
cublaslt              cuBLASLt, the first algorithm of its heuristic
cublaslt-auto         cuBLASLt, the fastest of all algorithms that its heuristic lists
cublaslt-all          cuBLASLt, the fastest that a search of its whole algorithm space finds; on request alone: up to 20 s a Workload
native                our own C++, for applications that no library knows; on the CPU
VENDOR-swapped        of `spmm`: Y^T = W X^T, the dense product with its operands the other way round (dense.py)
cusparselt            of `spmm`, on request: the 2:4 part of the weight through sparse tensor cores; inexact, as it drops the rest
VENDOR-nn, VENDOR-nt  one of the four with the operands stored in that layout, whatever the Workload's
flash, cudnn, cub ... experts of a problem of the suite `experts` (rivals/experts/)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernelwright.problems.epilogue import parse
from kernelwright.records import Workload
from kernelwright.targets.target import Bound, Run

HOST_ONLY = ("graph", "compile-reduce")
"""A graph's kernels are eager's, or those that torch.compile made: it is a rival in host time alone, and cannot itself be captured for a
device clock."""

SETTINGS = ("channels-last", "cudnn-benchmark", "tf32")
"""PyTorch itself under other settings: for whoever judges a module that a user could run so."""

VENDORS = ("cublas", "cublaslt", "cublaslt-auto", "cublaslt-all")

STORED = ("nn", "nt")
"""Layouts of VENDOR-LAYOUT; BLAS calls the second TN."""

Loaded = tuple[list[Run], Callable[[], None] | None]
"""Runs by set, and what must happen once before the first (compiling)."""


def names_for(w: Workload, target: str, *, every: bool = False) -> tuple[str, ...]:
    """The rivals that make sense for a Workload on a target, the anchor of the search first; or `every` one that can be asked for."""
    if w.problem == "unpack":
        return ("eager",)  # which reads a number from the device: nothing to compile or to capture
    names = ["eager", "compile", "compile-max"]
    if target.startswith("cuda"):
        names.append("graph")
        if w.problem == "gemm":
            # cublaslt-all searches for seconds on each shape, so it is for those who ask; who may choose how B is stored compares with both
            # of cuBLAS's classic layouts
            own = VENDORS if every else [v for v in VENDORS if v != "cublaslt-all"]
            stored = VENDORS if every else ["cublas"]
            names += [*own, *(f"{vendor}-{layout}" for vendor in stored for layout in STORED if layout != w.layout)]
        if w.problem == "spmm" and not w.epilogue:
            own = [v for v in VENDORS if every or v in ("cublaslt", "cublaslt-auto")]
            names += [name for vendor in own for name in (vendor, f"{vendor}-swapped")]
            names += [f"{vendor}-nn" for vendor in (VENDORS if every else ("cublas",))]
            names += ["cusparselt"] if every else []
        if w.problem == "linear" and unfused(w) is None:
            names += ["cublaslt", "cublaslt-auto", *(["cublaslt-all"] if every else [])]
        if every and w.source:
            names += ["compile-reduce", *(s for s in SETTINGS if s != "tf32" or w.dtype == "fp32")]
    if w.problem.startswith("expert:"):
        from kernelwright.problems import problem_of
        from kernelwright.problems.applications import Application

        if isinstance(problem := problem_of(w), Application):
            # loops that depend on values: nothing to capture, and seldom anything to compile
            names = ["eager", *(["compile"] if problem.compiles else [])]
    if target == "fake":
        return ("eager",)
    return (*names, *experts_for(w, target, every=every))


def experts_for(w: Workload, target: str, *, every: bool = False) -> tuple[str, ...]:
    """The experts among them that serve on a target, the foremost first; `every` one, also those that would be skipped there."""
    if not w.problem.startswith("expert:"):
        return ()
    from kernelwright.rivals import experts, native

    if native.source_of(w):
        return ("native",) if every or target == "cpu" else ()
    return tuple(r.name for r in experts.experts_of(w) if every or target.startswith("cuda") or not r.cuda_only)


def asked(names: Iterable[str], w: Workload) -> tuple[str, ...]:
    """Rivals that were asked for, as this Workload has them: in the layout that is its own, VENDOR-LAYOUT is VENDOR. So a suite in
    several layouts can be asked for cuBLASLt in each."""
    return tuple(dict.fromkeys(n.removesuffix(f"-{w.layout}") if w.layout and n.rpartition("-")[0] in VENDORS else n for n in names))


def unfused(w: Workload) -> str | None:
    """Why cuBLASLt does not do a `linear` in one kernel, as a clause; None where it does: alpha, an addend, bias, then gelu-tanh."""
    e = parse(w.epilogue)
    if e.added == "after":
        return "it adds a matrix before the activation only"
    if e.activation not in ("", "gelu-tanh"):
        return f"it has no {e.activation}; of activations that PyTorch names it has gelu-tanh alone"
    return None


def load(name: str, w: Workload, sets: Sequence[Bound]) -> Loaded:
    """Raises ValueError for an unknown rival."""
    if name in ("eager", "compile", "compile-max", "graph", "compile-reduce", *SETTINGS):
        from kernelwright.rivals import pytorch

        return pytorch.load(name, w, sets)
    if name == "native":
        from kernelwright.rivals import native

        return native.load(w, sets)
    if w.problem.startswith("expert:"):
        from kernelwright.rivals import experts

        return experts.load(name, w, sets)
    if w.problem == "spmm" and name.removesuffix("-swapped").removesuffix("-nn") in VENDORS:
        from kernelwright.rivals import dense

        return dense.load(name, w, sets)
    if name == "cusparselt":
        from kernelwright.rivals import cusparselt

        return cusparselt.load(name, w, sets)
    if name == "cublas":
        from kernelwright.rivals import cublas

        return cublas.load(name, w, sets)
    if name in VENDORS:
        from kernelwright.rivals import cublaslt

        return cublaslt.load(name, w, sets)
    vendor, _, layout = name.rpartition("-")
    if vendor in VENDORS and layout in STORED:
        from kernelwright.rivals import stored

        return stored.load(name, w, sets)
    raise ValueError(f"unknown rival {name!r}")
