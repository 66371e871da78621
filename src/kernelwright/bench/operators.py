"""Which operators of PyTorch an answer executes: is it a kernel of its own, other operators, or the reference under other flags?

Decided by running both, not by reading: the answer is loaded in a confined process, and a TorchDispatchMode writes down every ATen operator
that one call of it, and of the reference, dispatches. Operators that only move or cast data (views, copies, layouts) do not count, nor
whether they work in place. Where the rest is the same, in the same order, the answer computes what the reference does, with the same
library kernels. Kernels of its own (CUDA through `load_inline` or `load`, Triton, cupy, numba) are told by watching who compiles.

What this does NOT protect against: an answer that knows of it and forges its own trace. The label decides nothing but the label.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.bench.results import Work
from kernelwright.problems import problem_of
from kernelwright.problems.kernelbench import KernelBench
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Workload
from kernelwright.settings import answer_environment, replace_environment
from kernelwright.targets import sandbox
from kernelwright.targets.processes import die_with_parent
from kernelwright.targets.python_module import match_precision
from kernelwright.targets.python_process import restrict

SECONDS = 240.0
"""nvcc takes a minute for a file that includes PyTorch's headers."""
MOST = 20_000
"""Operators that are written down; a loop over a long sequence has more."""
_MOVES = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "t", "permute", "expand", "squeeze", "unsqueeze", "slice",
    "select", "as_strided", "alias", "detach", "clone", "copy", "_to_copy", "contiguous", "lift_fresh", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "unbind", "split", "split_with_sizes", "chunk", "numpy_T", "movedim",
    "unfold", "flatten", "diagonal", "zeros", "zeros_like", "ones", "full", "scalar_tensor", "fill", "zero", "resize", "set",
    "_pin_memory", "is_same_size", "_local_scalar_dense", "to", "type_as", "conj", "real", "imag", "view_as_real",
    "view_as_complex", "record_stream",
}  # fmt: skip
"""Operators that move, allocate or cast, without a trailing underscore."""
_SAME = {
    "convolution_overrideable": "convolution", "cudnn_convolution": "convolution", "mkldnn_convolution": "convolution",
    "_convolution": "convolution", "conv2d": "convolution", "conv1d": "convolution", "conv3d": "convolution",
    "slow_conv_transpose2d": "convolution",
    "cudnn_batch_norm": "batch_norm", "native_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_with_update": "batch_norm", "linear": "addmm",
}  # fmt: skip
"""One operation under the names of its implementations."""


@dataclass(frozen=True)
class Seen:
    """What running both showed."""

    reference: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Settings of the framework that the answer changed, and what it had compiled or scripted."""
    kernels: tuple[str, ...] = ()
    """Where own kernels come from: `load_inline`, `triton` ..."""
    error: str = ""

    def work(self, language: str = "python") -> tuple[Work, str]:
        """The label, and one sentence on it."""
        if language != "python":
            return "own kernels", "device code with a launch plan: it calls no library"
        if self.error:
            return "unknown", f"its operators could not be watched: {self.error}"
        same = self.reference == self.answer
        names = ", ".join(self.kernels)
        flags = f"; it changes {', '.join(self.flags)}" if self.flags else ""
        if same and self.kernels:
            return "wraps the library", f"the same {len(self.answer)} operators as the reference, beside kernels from {names}{flags}"
        if same:
            return "flags only", f"the same {len(self.answer)} operators as the reference, and no kernel of its own{flags}"
        if self.kernels:
            left = f"{len(self.answer)} of the reference's {len(self.reference)} operators are left to the library"
            return "own kernels", f"kernels from {names}; {left}{flags}"
        return "library operators", f"{len(self.answer)} operators of PyTorch where the reference has {len(self.reference)}{flags}"


class Operators(TorchDispatchMode):
    """Writes down what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.changes: list[str] = []
        """Of layout and precision, as they are asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # in inference mode composite operators arrive whole: matmul instead of mm
        with self:
            if (parts := func.decompose(*args, **(kwargs or {}))) is not NotImplemented:
                return parts
        name = func.overloadpacket.__name__.rstrip("_") if func.namespace in ("aten", "prims") else f"{func.namespace}::{func}"
        name = _SAME.get(name, name)
        if name not in _MOVES and len(self.names) < MOST:
            self.names.append(name)
        if (layout := (kwargs or {}).get("memory_format")) in (torch.channels_last, torch.channels_last_3d):
            self.changes.append(str(layout).removeprefix("torch."))
        if name == "_to_copy" and (dtype := (kwargs or {}).get("dtype")) in (torch.float16, torch.bfloat16):
            self.changes.append(f"casts to {str(dtype).removeprefix('torch.')}")
        return func(*args, **(kwargs or {}))


def reference_operators(problem: KernelBench, w: Workload, device: str) -> tuple[str, ...]:
    """That one call of the file's own module dispatches, on inputs as it draws them."""
    inputs = _inputs(problem, w, device)
    with torch.no_grad(), Operators() as seen:
        problem.eager(w, inputs)
    return tuple(seen.names)


def _inputs(problem: KernelBench, w: Workload, device: str) -> Any:
    case = next(c for c in problem.cases(w) if c.rung == "normal")
    return problem.generate(w, case, torch.Generator(device).manual_seed(0), device)


# ------------------------------------------------------------------------------------------------------------- the child


class Watcher:
    """A process that forks one for each answer. It is forked itself before anything touches a GPU, as CUDA does not survive a fork; so
    PyTorch is imported once for all. `close_in_it`: file descriptors of this process that it must not keep."""

    def __init__(self, close_in_it: Sequence[int] = ()):
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                die_with_parent()
                ours.close()
                for fd in close_in_it:
                    os.close(fd)
                _watching(Connection(theirs.detach()))
            finally:
                os._exit(0)
        theirs.close()
        self._pipe = Connection(ours.detach())

    def watch(self, source: str, w: Workload, device: str, seconds: float = SECONDS) -> Seen:
        """Runs an answer and its reference in a confined process. Never raises for what the answer does."""
        try:
            self._pipe.send_bytes(json.dumps([source, w.to_json(), device, seconds]).encode())
            if not self._pipe.poll(seconds + 30):
                return Seen(error="the process that watches does not answer")
            return _seen(self._pipe.recv_bytes())
        except (OSError, EOFError) as error:
            return Seen(error=f"the process that watches is gone ({type(error).__name__})")

    def close(self) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _watching(pipe: Connection) -> None:
    while True:
        try:
            source, workload, device, seconds = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        seen = _watched(source, Workload.from_json(workload), device, seconds)
        pipe.send_bytes(json.dumps(dataclasses.asdict(seen)).encode())


def _watched(source: str, w: Workload, device: str, seconds: float) -> Seen:
    """In a forked, confined child of this process."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="kernelwright-", ignore_cleanup_errors=True) as private:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(read)
                _child(write, source, w, device, Path(private))
                code = 0
            except BaseException as error:
                _say(write, {"error": f"{type(error).__name__}: {error}"[:500]})
            finally:
                os._exit(code)
        os.close(write)
        try:
            return _hear(read, time.monotonic() + seconds, seconds)
        finally:
            os.close(read)
            _end(pid)


def _say(pipe: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    while data:
        data = data[os.write(pipe, data) :]


def _hear(pipe: int, deadline: float, seconds: float) -> Seen:
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return Seen(error=f"nothing came within {seconds:.0f} s")
        if not (more := os.read(pipe, 1 << 16)):
            break
        data += more
        if len(data) > 8 << 20:
            return Seen(error="it wrote more than a trace")
    return _seen(bytes(data))


def _seen(data: bytes) -> Seen:
    try:
        found = json.loads(data)
        lists = {k: tuple(str(x) for x in found.get(k, ())) for k in ("reference", "answer", "flags", "kernels")}
        return Seen(**lists, error=str(found.get("error", ""))[:500])
    except (ValueError, TypeError, AttributeError):
        return Seen(error="its process ended without a trace")


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # compilers that it started
    os.waitpid(pid, 0)


def _child(pipe: int, source: str, w: Workload, device: str, private: Path) -> None:
    os.setsid()
    die_with_parent()
    tempfile.tempdir = str(private)
    os.chdir(private)
    replace_environment(answer_environment(str(private)))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _close_all_but(pipe)
    gpu = device.startswith("cuda")
    restrict(private, gpu)
    sandbox.seal(processes=gpu)  # on the CPU nothing of an answer starts a program
    _say(pipe, _both(source, w, device))


def _close_all_but(pipe: int) -> None:
    for entry in os.listdir("/proc/self/fd"):
        if (fd := int(entry)) > 2 and fd != pipe:
            with contextlib.suppress(OSError):
                os.close(fd)


def _both(source: str, w: Workload, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    match_precision()
    problem = problem_of(w)
    assert isinstance(problem, KernelBench)
    reference = list(reference_operators(problem, w, device))
    before, watched, imported = _settings(), _Compilers(), set(sys.modules)
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    file = Path("answer.py").resolve()
    file.write_text(source)  # Triton and inspect read a source from its file
    module.__file__ = str(file)
    with watched:
        exec(compile(source, str(file), "exec"), module.__dict__)
        inputs = _inputs(problem, w, device)
        args, state = problem.split(inputs)
        with torch.no_grad(), torch.device(device):
            model = module.__dict__["ModelNew"](*problem.init_inputs)
        if w.dtype != "fp32":
            model = model.to(TORCH_DTYPES[w.dtype])
        model.load_state_dict(state, strict=False)
        with torch.no_grad():
            model(*args)  # what compiles or caches does so now
            with Operators() as seen:
                model(*args)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    flags = [name for name, value in _settings().items() if before[name] != value] + watched.flags + seen.changes
    kernels = watched.kernels + [m for m in ("cupy", "numba", "cuda.core") if m in sys.modules and m not in imported] + _triton(module)
    return {"reference": reference, "answer": seen.names, "flags": list(dict.fromkeys(flags)), "kernels": list(dict.fromkeys(kernels))}


_SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "torch.backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.set_float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.set_num_threads": torch.get_num_threads,
    "torch.set_default_dtype": torch.get_default_dtype,
    "torch.backends.mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,  # pyright: ignore[reportAttributeAccessIssue]
}


def _settings() -> dict[str, Any]:
    found = {}
    for name, read in _SETTINGS.items():
        try:
            found[name] = read()
        except RuntimeError:  # PyTorch refuses to read by its older name what was set by a newer one
            found[name] = "set by another name"
    return found


def _triton(module: types.ModuleType) -> list[str]:
    """Functions of the answer that Triton compiles."""
    return ["triton"] if any(type(v).__module__.startswith("triton") for v in vars(module).values()) else []


class _Compilers:
    """Who asks for a compiler: C++ and CUDA extensions are kernels, torch.compile and TorchScript are settings."""

    def __init__(self) -> None:
        self.kernels: list[str] = []
        self.flags: list[str] = []
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> _Compilers:
        import torch.utils.cpp_extension as extension

        for name in ("load", "load_inline"):
            self._watch(extension, name, self.kernels, f"{name}")
        for place, name, said in (
            (torch.ops, "load_library", "torch.ops.load_library"),
            (torch.cuda, "_compile_kernel", "torch.cuda._compile_kernel"),
        ):
            if hasattr(place, name):
                self._watch(place, name, self.kernels, said)
        for name in ("script", "trace", "freeze"):
            self._watch(torch.jit, name, self.flags, f"torch.jit.{name}")
        # under a dispatch mode nothing is compiled; that it would be is what is to be said
        self._undo.append((torch, "compile", torch.compile))
        torch.compile = self._plain  # pyright: ignore[reportAttributeAccessIssue]
        for place, name, said in ((torch.cuda, "graph", "a CUDA graph"), (torch.cuda.CUDAGraph, "capture_begin", "a CUDA graph")):
            if hasattr(place, name):
                self._watch(place, name, self.flags, said)
        self._watch(torch, "autocast", self.flags, "autocast")
        return self

    def _plain(self, model: Any = None, **_: Any) -> Any:
        self.flags.append("torch.compile")
        return model if model is not None else (lambda function: function)

    def _watch(self, place: Any, name: str, into: list[str], said: str) -> None:
        original = getattr(place, name)
        self._undo.append((place, name, original))

        def called(*args: Any, **kwargs: Any) -> Any:
            into.append(said)
            return original(*args, **kwargs)

        setattr(place, name, called)

    def __exit__(self, *_: object) -> None:
        for place, name, original in reversed(self._undo):
            setattr(place, name, original)
