"""What `linear` does to the sums, for device/epilogue.cuh: the steps compiled in, the arguments after a kernel's own, what they require."""

from __future__ import annotations

from kernelwright.problems.epilogue import Epilogue, parse
from kernelwright.records import Arg, ScalarArg, TensorArg, Workload

_ACTIVATION = {"": "none", "gelu": "gelu", "gelu-tanh": "gelu_tanh", "silu": "silu"}
_ADDED = {"": "nothing", "before": "before_activation", "after": "after_activation"}


def _of(w: Workload) -> Epilogue:
    return parse(w.epilogue) if w.epilogue else Epilogue()


def _vector(w: Workload) -> int:
    """Elements of bias and addend in one load."""
    return next(n for n in (8, 2, 1) if w.axes["N"] % n == 0)


def registers(w: Workload) -> int:
    """What it takes beside the sums where they nearly fill a thread's registers. An addend's loads and gelu's polynomial spill up to 700
    bytes beside 192 sums (ptxas 13.0), where bias, alpha and the other activations fit."""
    e = _of(w)
    return 32 if e.added or e.activation == "gelu" else 0


def steps(w: Workload) -> str:
    """The line of Config."""
    e = _of(w)
    if e == Epilogue():
        return "static constexpr kw::Steps epilogue = {};"
    flags = [str(flag).lower() for flag in (e.alpha != 1, e.bias)]
    values = (*flags, f"kw::Added::{_ADDED[e.added]}", f"kw::Activation::{_ACTIVATION[e.activation]}", str(_vector(w)))
    return f"static constexpr kw::Steps epilogue = {{{', '.join(values)}}};"


def args(w: Workload) -> tuple[Arg, ...]:
    """bias, addend, ld_addend, alpha, beta: null where a step is absent, which the kernel then does not read."""
    e = _of(w)
    null = ScalarArg(ctype="i64", value=0)
    return (
        TensorArg(name="bias") if e.bias else null,
        TensorArg(name="addend") if e.added else null,
        ScalarArg(ctype="i32", value="ld_addend" if e.added else 0),
        ScalarArg(ctype="f32", value=e.alpha),
        ScalarArg(ctype="f32", value=e.factor),
    )


def requires(w: Workload) -> tuple[str, ...]:
    """That loads of several elements are aligned, and whole inside N."""
    e, vector = _of(w), _vector(w)
    if vector == 1 or not (e.bias or e.added):
        return ()
    needs = [f"N % {vector} == 0"]
    needs += [f"align_bias % {2 * vector} == 0"] if e.bias else []
    needs += [f"ld_addend % {vector} == 0", f"align_addend % {2 * vector} == 0"] if e.added else []
    return tuple(needs)
