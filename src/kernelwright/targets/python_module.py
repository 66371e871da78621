"""Python candidates: a module that defines `ModelNew`, as a KernelBench answer does. The side that runs in the candidate's own process.

It is made with what `Problem.arguments` says, and called with the problem's inputs.

Parameters and buffers of `ModelNew` are loaded from the problem's, as a state dict, before every launch and outside the clock: inputs and
weights of a launch are fresh. They are found by name, or by the values that both modules draw under one seed (`answer_parameters`). An
answer that prepares its weights (transposes, packs) does so in its constructor, or in a hook of `load_state_dict`.

What a launch returns must be plain, finished data: exactly `torch.Tensor`, strided, of the output's dtype and shape, on the device. The
judge does not believe this side, it reads the memory that is named (`cpu_device`), while the process is stopped.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernelwright.problems import problem_of
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Outcome, Workload
from kernelwright.targets.answer_parameters import Parameters, seeded
from kernelwright.targets.cpu_child import Work
from kernelwright.targets.target import Bound, CandidateFault

_COMPILERS = ("torch._dynamo", "torch._inductor", "triton", "numba")


def match_precision() -> None:
    """Rivals and Python candidates begin with what a Workload names: they accumulate in its type, across split-K slices too, and fp32 is
    not cut to TF32, which cuDNN's convolutions are by default. A candidate may set it otherwise, and is held against the same bound."""
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False


class Answer(Work):
    """Made in the judge, before the fork: the source runs only when `load` is called, in the process that it may take down."""

    def __init__(self, source: str, w: Workload, sets: Sequence[Bound]):
        problem = problem_of(w)
        self._problem = problem
        self._source, self._init_inputs, self._dtype = source, problem.arguments(w), TORCH_DTYPES[w.dtype]
        specs = problem.tensors(w)
        self.outputs = tuple(s.name for s in specs if s.role == "out")
        self._wanted = [(s.name, tuple(s.shape), sets[0].tensors[s.name].dtype) for s in specs if s.role == "out"]
        self._device = sets[0].tensors[specs[0].name].device.type
        split = [problem.split({s.name: one.tensors[s.name] for s in specs if s.role == "in"}) for one in sets]
        self._args, self._states = [args for args, _ in split], [state for _, state in split]
        self.stateful = bool(split[0][1])
        self.hidden = tuple(s.name for s in specs if s.role == "in" and s.name not in problem.state_names)
        """Inputs of `forward`: kept from the process until the clock runs."""
        self._parameters: Parameters | None = None

    def load(self) -> None:
        self._model = self.make(self.define())

    def define(self) -> Any:
        """Executes the source; the class that it defines."""
        # before any code of the answer's
        known = seeded(self._problem.drawn_state, self._device) if self.stateful else {}
        module = types.ModuleType("answer")
        # TorchScript and tracebacks look the text up by file name; dataclasses look the module up
        linecache.cache["<answer>"] = (len(self._source), None, self._source.splitlines(keepends=True), "<answer>")
        sys.modules["answer"] = module
        with self._blamed(Outcome.COMPILE_ERROR):
            exec(compile(self._source, "<answer>", "exec"), module.__dict__)
            if "ModelNew" not in module.__dict__:
                raise CandidateFault(Outcome.COMPILE_ERROR, "the answer defines no class ModelNew")
            made = module.__dict__["ModelNew"]
            if self.stateful:
                self._parameters = Parameters(known, lambda: self._plain(made), self._device)
            return made

    def _plain(self, made: Any) -> torch.nn.Module:
        return made(*self._init_inputs).requires_grad_(False)

    def make(self, made: Any) -> torch.nn.Module:
        with self._blamed(Outcome.COMPILE_ERROR):
            return self._cast(seeded(lambda: self._plain(made), self._device))

    def _cast(self, model: torch.nn.Module) -> torch.nn.Module:
        """Of half types: what it made in fp32 is in the Workload's type, as KernelBench casts an answer."""
        return model.to(self._dtype) if self._dtype in (torch.float16, torch.bfloat16) else model

    def state(self, index: int) -> None:
        self.fill(self._model, index)

    def fill(self, model: torch.nn.Module, index: int) -> None:
        """Loads a set's parameters and buffers. What the problem has no input for stays as it is: statistics that training only writes,
        buffers of the answer's own."""
        if self._parameters is None:
            return
        with self._blamed(Outcome.CRASH):
            left = self._parameters.load(model, self._states[index], self._cast)
        if left:
            evidence = f"ModelNew has no parameter or buffer {left[0]}, nor one that takes the same value under the same seed"
            raise CandidateFault(Outcome.COMPILE_ERROR, f"{evidence}; keep the name that it has in Model")

    def launch(self, index: int) -> Any:
        return self.call(self._model, index)

    def call(self, model: torch.nn.Module, index: int) -> Any:
        with self._blamed(Outcome.CRASH):
            return model(*self._args[index])

    def describe(self, result: Any) -> list[dict[str, Any]] | None:
        return [
            {"address": t.data_ptr(), "shape": list(t.shape), "strides": list(t.stride()), "dtype": str(t.dtype)}
            for t in self.plain(result)
        ]

    def plain(self, result: Any) -> list[torch.Tensor]:
        """The tensors that a launch returned. Raises CandidateFault where one is not finished data of the right kind."""
        results = tuple(result) if type(result) in (tuple, list) else (result,)
        if len(results) != len(self._wanted):
            raise CandidateFault(Outcome.WRONG_RESULT, f"it returned {len(results)} values, the problem has {len(self._wanted)} outputs")
        for (name, shape, dtype), value in zip(self._wanted, results, strict=True):
            if type(value) is not torch.Tensor:
                kind = type(value).__name__
                if isinstance(value, torch.Tensor):
                    raise CandidateFault(Outcome.CHEAT, f"{name} is a {kind}, a subclass of torch.Tensor; return a plain tensor")
                raise CandidateFault(Outcome.WRONG_RESULT, f"{name} has shape {kind}, want {shape}")
            if tuple(value.shape) != shape:
                raise CandidateFault(Outcome.WRONG_RESULT, f"{name} has shape {tuple(value.shape)}, want {shape}")
            if value.dtype != dtype:
                raise CandidateFault(Outcome.WRONG_RESULT, f"{name} is {value.dtype}, want {dtype}")
            if value.device.type != self._device:
                raise CandidateFault(Outcome.WRONG_RESULT, f"{name} lies on {value.device}, want {self._device}")
            if (
                value.layout is not torch.strided
                or value.is_conj()
                or value.is_neg()
                or torch._C._functorch.is_functorch_wrapped_tensor(value)  # pyright: ignore[reportAttributeAccessIssue]
            ):
                raise CandidateFault(Outcome.CHEAT, f"{name} is not plain data: {value.layout}, lazy or wrapped; return a strided tensor")
        return list(results)

    @contextlib.contextmanager
    def _blamed(self, outcome: Outcome) -> Iterator[None]:
        """Around the candidate's own code: whatever it raises is its fault."""
        try:
            yield
        except (MemoryError, CandidateFault):
            raise
        except Exception as error:
            raise CandidateFault(*self._blame(error, outcome)) from None

    def _blame(self, error: Exception, outcome: Outcome) -> tuple[Outcome, str]:
        """What an exception of the candidate's says of it. A compiler that wanted to start is refused, in words that help; where compilers
        start (on a GPU, until the first run is over), what one says is an error in the source."""
        text = f"{type(error).__name__}: {error}"[:2000]
        chain, seen = [], error
        while seen is not None and len(chain) < 8:
            chain.append(seen)
            seen = seen.__cause__ or seen.__context__
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return Outcome.OUT_OF_MEMORY, text
        denied = any(isinstance(e, PermissionError) or "Operation not permitted" in str(e) for e in chain)
        if any(type(e).__module__.startswith(_COMPILERS) for e in chain):
            if self._device == "cuda" and not denied:
                return Outcome.COMPILE_ERROR, text
            return Outcome.REFUSED, (
                "it compiles when it runs (torch.compile, say), and the sandbox starts no compiler; "
                f"call PyTorch directly, or write a C++ candidate ({text[:300]})"
            )
        return outcome, text + (" (the sandbox allows no processes, network, or files outside its own folder)" if denied else "")


def library_calls(source: str) -> str:
    """What an answer's text says that it calls of PyTorch, as a note: `calls torch.matmul, F.relu`; empty if it shows nothing. A hint from
    the syntax tree, not a verdict: names can be hidden, and calling PyTorch is allowed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    modules = {"torch", "F", "functional", "nn"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = getattr(node, "module", None) or ""
            for alias in node.names:
                if alias.name.split(".")[0] == "torch" or origin.split(".")[0] == "torch":
                    modules.add(alias.asname or alias.name.split(".")[0])
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name.split(".")[0] in modules and name.split(".")[-1] not in _MAKES_NOTHING:
                found.add(name)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("@")
    return f"calls {', '.join(sorted(found))}" if found else ""


_MAKES_NOTHING = {"empty", "empty_like", "zeros", "zeros_like", "Parameter", "device", "no_grad", "inference_mode", "Module"}


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
