"""`kernelbench:STEM`: any PyTorch module in the form of KernelBench (Ouyang et al. 2025): a file with `Model`, `get_inputs` and
`get_init_inputs`.

The Workload carries the file's text. Its tensors are the inputs x0, x1 ..., the parameters and buffers by their dotted path with
`_` for each dot, and the outputs y0, y1 ... Floating-point tensors have the Workload's dtype. The module is in training mode, as
KernelBench leaves it, unless the file calls `eval()`; running statistics that training only writes are not inputs.

The file is executed in this process: it is the user's own, trusted as any program that the user runs. Candidates are not.
"""

from __future__ import annotations

import copy
import hashlib
import linecache
import math
import sys
import types
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.problems import KERNELBENCH, ProblemError
from kernelwright.problems.builder import LoweringError
from kernelwright.problems.chains import program_flops
from kernelwright.problems.draws import place
from kernelwright.problems.lower import Input, lower
from kernelwright.problems.problem import (
    DTYPE_NAMES,
    TORCH_DTYPES,
    UNIT_ROUNDOFF,
    Case,
    Cost,
    Pick,
    Problem,
    Tensors,
    TensorSpec,
    everything,
    one_after_the_other,
)
from kernelwright.problems.rounding import error_scale
from kernelwright.problems.rowprogram import RowProgram
from kernelwright.records import DTYPES, Workload

LARGE = 2**26
"""Elements of all tensors from which on checks that may look at some rows do so: a float64 reference of 2^31 does not fit on any device."""
_WRITTEN_BY_TRAINING = ("running_mean", "running_var", "num_batches_tracked")


def slots(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by dotted path, in the order in which they were made."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


AS_WRITTEN = Case("as written", "normal")
"""`get_inputs()` and parameters exactly as the file has them: what another harness would judge by. Not a case of the ladder."""


class RandomOutput(ProblemError):
    """The module draws at random in forward, so that no kernel can be compared with it."""


def load(path: str | Path, dtype: str = "fp32") -> Workload:
    """The Workload of a KernelBench file. Raises ProblemError, one sentence that names the file, when it cannot be used."""
    w = read(path, dtype)
    problem_from(w)
    return w


def read(path: str | Path, dtype: str = "fp32") -> Workload:
    """The Workload of a file that has not been run. Raises ProblemError when it cannot be read."""
    path = Path(path)
    if path.suffix != ".py":
        raise ProblemError(f"{path} is not a Python file; give the path of a KernelBench .py file")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProblemError(f"{path} does not exist; give the path of a KernelBench .py file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path} cannot be read ({error}); make it a readable UTF-8 text file") from None
    if not source.strip():
        raise ProblemError(f"{path} is empty; a KernelBench file defines Model, get_inputs and get_init_inputs")
    return Workload(problem=f"{KERNELBENCH}{path.stem}", axes={}, dtype=dtype, source=source)


@lru_cache(maxsize=16)
def problem_from(w: Workload) -> KernelBench:
    """The Problem of a Workload made by `load`. Raises ProblemError."""
    if not w.source:
        raise ProblemError(f"{w.problem} comes without the text of its file; give the path of the .py file instead")
    return KernelBench(w)


class KernelBench(Problem):
    """The Problem of one file in one dtype; `w` of every method is the Workload that it was made of."""

    axes = ()

    def __init__(self, w: Workload) -> None:
        self.name = w.problem  # pyright: ignore[reportAttributeAccessIssue]: one Problem for each file
        self.file = f"{w.problem.removeprefix(KERNELBENCH)}.py"
        self.dtype = w.dtype
        namespace = self._execute(w.source)
        self._model_class = self._member(namespace, "Model", "a torch.nn.Module class named Model")
        self._get_inputs = self._member(namespace, "get_inputs", "a function get_inputs() that returns a list of tensors")
        get_init_inputs = self._member(
            namespace, "get_init_inputs", "a function get_init_inputs() that returns Model's arguments, [] for none"
        )
        self.init_inputs: list[Any] = list(self._call("get_init_inputs()", get_init_inputs) or [])
        self.model: nn.Module = self._seeded(lambda: self._call("Model(*get_init_inputs())", self._model_class, *self.init_inputs))
        if not isinstance(self.model, nn.Module):
            raise ProblemError(f"{self.file}: Model is not a torch.nn.Module; derive it from torch.nn.Module")
        self.model.requires_grad_(False)
        if any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in self.model.modules()):
            raise RandomOutput(f"{self.file}: dropout makes the output random; set p=0, or call self.eval() in Model.__init__")
        self.state_names: dict[str, str] = {}  # pyright: ignore[reportIncompatibleVariableOverride]: filled here
        """Tensor name to dotted path, for parameters and buffers."""
        self._arguments, self._specs = self._examine()
        self._placed: dict[tuple[torch.dtype, str], tuple[nn.Module, dict[str, torch.Tensor]]] = {}

    # ------------------------------------------------------------------------------------------------------- the file

    def _execute(self, source: str) -> types.ModuleType:
        digest = hashlib.sha256(source.encode()).hexdigest()[:12]
        module = types.ModuleType(f"kernelbench_{digest}")
        filename = f"<{self.file} {digest}>"
        # TorchScript and tracebacks look the text up by file name; dataclasses look the module up
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        sys.modules[module.__name__] = module
        try:
            code = compile(source, filename, "exec")
        except (SyntaxError, ValueError) as error:
            line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise ProblemError(f"{self.file} is not valid Python{line}: {getattr(error, 'msg', error)}; correct it") from None
        self._call("importing it", exec, code, module.__dict__)
        return module

    def _member(self, module: types.ModuleType, name: str, what: str) -> Callable[..., Any]:
        found = getattr(module, name, None)
        if not callable(found):
            raise ProblemError(f"{self.file} has no {name}; a KernelBench file needs {what}")
        return found

    def _call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            text = str(error).strip().splitlines()
            raise ProblemError(
                f"{self.file}: {what} raised {type(error).__name__}{': ' + text[0] if text else ''}; make it run without error"
            ) from error

    def _seeded(self, function: Callable[[], Any], seed: int = 0, device: str = "cpu") -> Any:
        devices = [torch.device(device)] if device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            with torch.device(device):
                return function()

    def _examine(self) -> tuple[list[Any], tuple[TensorSpec, ...]]:
        """Arguments of forward (a TensorSpec for each tensor) and all TensorSpecs; the module runs once on meta tensors."""
        given = self._shapes_of_inputs()
        if not isinstance(given, list | tuple) or not any(isinstance(x, torch.Tensor) for x in given):
            raise ProblemError(f"{self.file}: get_inputs() returns no tensors; return a list of tensors")
        arguments = [
            TensorSpec(f"x{i}", tuple(x.shape), self._stored(x, f"input {i}"), "in") if isinstance(x, torch.Tensor) else x
            for i, x in enumerate(given)
        ]
        specs = [a for a in arguments if isinstance(a, TensorSpec)]
        for path, tensor in self._state().items():
            name = path.replace(".", "_")
            if name in self.state_names or any(s.name == name for s in specs):
                raise ProblemError(f"{self.file}: two tensors would be named {name}; rename the parameter {path}")
            self.state_names[name] = path
            specs.append(TensorSpec(name, tuple(tensor.shape), self._stored(tensor, path), "in"))
        result = self._forward_once(given)
        outputs = tree_leaves(result)
        if not outputs or not all(isinstance(y, torch.Tensor) for y in outputs):
            raise ProblemError(f"{self.file}: forward returns {type(result).__name__}; return a tensor or a tuple of tensors")
        specs += [TensorSpec(f"y{i}", tuple(y.shape), self._stored(y, f"output {i}"), "out") for i, y in enumerate(outputs)]
        return arguments, tuple(specs)

    def _shapes_of_inputs(self) -> Any:
        """`get_inputs()` on meta tensors where it works so: KernelBench's take gigabytes, and only their shapes are asked for. Otherwise,
        or where it is at fault, as it is."""
        try:
            given = self._seeded(self._get_inputs, device="meta")
            if isinstance(given, list | tuple) and all(x.is_meta for x in given if isinstance(x, torch.Tensor)):
                return given
        except (Exception, SystemExit):  # the user's code may raise anything; a real run says which
            pass
        return self._seeded(lambda: self._call("get_inputs()", self._get_inputs))

    def _forward_once(self, given: Any) -> Any:
        try:
            meta = copy.deepcopy(self.model).to("meta")
            return meta(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in given))
        except (Exception, SystemExit):  # the user's code may raise anything
            # it needs values, or is at fault: a real run says which
            if any(isinstance(x, torch.Tensor) and x.is_meta for x in given):
                given = self._seeded(lambda: self._call("get_inputs()", self._get_inputs))
            return self._seeded(lambda: self._call("forward()", copy.deepcopy(self.model), *given))

    def _stored(self, x: torch.Tensor, what: str) -> str:
        if x.is_floating_point():
            return self.dtype
        if x.dtype not in DTYPE_NAMES:
            raise ProblemError(f"{self.file}: {what} is {str(x.dtype).removeprefix('torch.')}; use floating point, int32 or int64")
        return DTYPE_NAMES[x.dtype]

    def _state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that forward may read, by dotted path."""
        skipped = {
            f"{path}.{name}".lstrip(".")
            for path, m in self.model.named_modules()
            if isinstance(m, _NormBase) and m.training
            for name in _WRITTEN_BY_TRAINING
        }
        return {path: t for path, t in slots(self.model).items() if path not in skipped and t.dtype is not torch.bool}

    # ---------------------------------------------------------------------------------------------------- the Problem

    def tensors(self, w: Workload) -> tuple[TensorSpec, ...]:
        return self._specs

    def cases(self, w: Workload) -> tuple[Case, ...]:
        cases = (Case("normal", "normal"), Case("wide", "normal"))
        if self._lowered is None:
            return cases
        # of these, row programs alone are known to be defined for any value
        return (*cases, Case("signed", "adversarial"), Case("nan", "adversarial"))

    def generate(self, w: Workload, case: Case, rng: torch.Generator, device: torch.device | str) -> Tensors:
        """`get_inputs()` under a seed drawn from `rng`; parameters are those of the file, each changed by up to a quarter (zeros by
        a twentieth), so that a candidate that leaves out a weight of ones or a bias of zeros is wrong. `wide` divides each input by
        up to 2^6, `signed` flips signs at random, `nan` places one NaN."""
        seed = int(torch.randint(2**31, (1,), generator=rng, device=rng.device))
        given = self._seeded(lambda: self._call("get_inputs()", self._get_inputs), seed, str(device))
        inputs: Tensors = {}
        for spec, x in zip(self._arguments, given, strict=True):
            if isinstance(spec, TensorSpec):
                if tuple(x.shape) != spec.shape:
                    raise ProblemError(f"{self.file}: get_inputs() returns other shapes on every call; make its shapes fixed")
                inputs[spec.name] = self._varied(x.to(device), case.name, rng).to(TORCH_DTYPES[spec.dtype]).contiguous()
        state = self._state()
        parameters = dict(self.model.named_parameters())
        for name, path in self.state_names.items():
            t = state[path].to(device)
            if path in parameters and t.is_floating_point() and case is not AS_WRITTEN:
                u = 2 * torch.rand(t.shape, generator=rng, device=device) - 1
                t = torch.where(t == 0, 0.05 * u, t * (1 + 0.25 * u))
            inputs[name] = t.to(TORCH_DTYPES[self._spec(name).dtype]).contiguous().clone()
        if case.name == "nan":
            place(next(t for t in inputs.values() if t.is_floating_point()), math.nan, rng)
        return inputs

    def _varied(self, x: torch.Tensor, case: str, rng: torch.Generator) -> torch.Tensor:
        if not x.is_floating_point() or case not in ("wide", "signed"):
            return x
        if case == "wide":
            return x * torch.exp2(torch.randint(-6, 1, x.shape, generator=rng, device=x.device).to(x.dtype))
        return x * (2 * torch.randint(0, 2, x.shape, generator=rng, device=x.device).to(x.dtype) - 1)

    def _spec(self, name: str) -> TensorSpec:
        return next(s for s in self._specs if s.name == name)

    def arguments(self, w: Workload) -> list[Any]:
        return self.init_inputs

    def drawn_state(self) -> Tensors:
        drawn = slots(self._model_class(*self.init_inputs))
        return {path: drawn[path].detach() for path in self.state_names.values()}

    def split(self, inputs: Tensors) -> tuple[list[Any], Tensors]:
        args = [inputs[a.name] if isinstance(a, TensorSpec) else a for a in self._arguments]
        return args, {path: inputs[name] for name, path in self.state_names.items()}

    def _forward(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        args, state = self.split(inputs)
        key = (dtype, str(next(iter(inputs.values())).device))
        if key not in self._placed:
            model = copy.deepcopy(self.model).to(device=key[1], dtype=dtype)
            self._placed[key] = (model, slots(model))
        model, places = self._placed[key]
        if torch.compiler.is_compiling():
            result = torch.func.functional_call(model, state, tuple(args))
        else:
            # the module reads the given tensors in place; a deep copy for each call would be timed as part of the rival
            for path, tensor in state.items():
                if places[path].data_ptr() != tensor.data_ptr() or places[path].stride() != tensor.stride():
                    places[path].data = tensor
            result = model(*args)
        return {f"y{i}": y for i, y in enumerate(tree_leaves(result))}

    def _double(self, inputs: Tensors) -> Tensors:
        return {name: y.double() for name, y in self._forward(inputs, torch.float64).items()}

    def reference(self, w: Workload, inputs: Tensors) -> Tensors:
        return self._double({k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})

    def eager(self, w: Workload, inputs: Tensors) -> Tensors:
        return self._forward(inputs, TORCH_DTYPES[w.dtype])

    def caller(self, w: Workload, inputs: Tensors) -> Callable[[], Any]:
        """`forward` on these very tensors, as a user calls it: nothing is looked up or exchanged in the call, which returns what `forward`
        returns."""
        args, state = self.split(inputs)
        model = copy.deepcopy(self.model).to(device=next(iter(inputs.values())).device, dtype=TORCH_DTYPES[w.dtype])
        places = slots(model)
        for path, tensor in state.items():
            places[path].data = tensor
        return lambda: model(*args)

    def scale(self, w: Workload, inputs: Tensors, reference: Tensors) -> Tensors:
        return error_scale(self._double, inputs, reference, w.dtype, w.accumulate)

    def bound(self, w: Workload) -> float:
        return 16.0 + math.sqrt(self._longest)  # as for chains

    def error_floor(self, w: Workload) -> float:
        return max(4 * UNIT_ROUNDOFF[w.dtype], one_after_the_other(self._longest, w))  # as for chains

    @property
    def _longest(self) -> int:
        """Axis of any input: no module's sums are known, so it stands for their length."""
        return max((n for s in self._specs if s.role == "in" for n in s.shape), default=1)

    def cost(self, w: Workload) -> Cost:
        size = float(sum(s.numel * DTYPES[s.dtype] for s in self._specs))
        with FlopCounterMode(display=False) as counter:
            self._forward_once([_meta(a) if isinstance(a, TensorSpec) else a for a in self._arguments])
        if (flops := counter.get_total_flops()) > 0:
            return Cost(flops=float(flops), bytes=size, unit=w.dtype)
        lowered = self._lowered
        outputs = float(sum(s.numel for s in self._specs if s.role == "out"))
        return Cost(flops=program_flops(lowered, *self.matrix(w)) if lowered else outputs, bytes=size, unit="vector")

    def variants(self, w: Workload) -> tuple[Workload, ...]:
        return ()

    def alterable(self, w: Workload) -> tuple[str, ...]:
        """Of a row program all inputs; otherwise an argument may have a structure (triangular, sorted), which parameters, each changed at
        random by `generate`, have not."""
        if self._lowered is not None:
            return super().alterable(w)
        return tuple(name for name, path in self.state_names.items() if path in dict(self.model.named_parameters()))

    def sample_rows(self, w: Workload, outputs: Tensors, fewer: int = 1) -> tuple[Pick, Pick]:
        """Of a large row program 64 places along the first axis; everything of a small one, or of another module."""
        rows = self._rows
        if rows is None:
            return everything, everything
        device = next(iter(outputs.values())).device
        chosen = torch.randint(0, rows, (max(1, 64 // fewer),), device=device)
        alone = [s.name for s in self._specs if s.role == "in" and not self._per_row(s)]

        def of_inputs(tensors: Tensors) -> Tensors:
            return {name: t if name in alone else t.index_select(0, chosen) for name, t in tensors.items()}

        def of_outputs(tensors: Tensors) -> Tensors:
            return {name: t.index_select(0, chosen) for name, t in tensors.items()}

        return of_inputs, of_outputs

    @cached_property
    def _rows(self) -> int | None:
        """Length of the first axis, where a large module's outputs along it depend on the inputs at the same place alone, and it takes
        fewer of them."""
        outs = [s for s in self._specs if s.role == "out"]
        full = self._full()
        if self._lowered is None or len(full.shape) < 2 or sum(s.numel for s in self._specs) < LARGE:
            return None
        if any(s.shape[:1] != full.shape[:1] for s in outs):
            return None
        try:
            some = [(_meta(a)[:2] if self._per_row(a) else _meta(a)) if isinstance(a, TensorSpec) else a for a in self._arguments]
            meta = copy.deepcopy(self.model).to("meta")
            shapes = [tuple(y.shape) for y in tree_leaves(meta(*some))]
        except Exception:  # the user's code: it takes the whole batch only
            return None
        return full.shape[0] if shapes == [(2, *s.shape[1:]) for s in outs] else None

    def _per_row(self, spec: TensorSpec) -> bool:
        full = self._full().shape
        return spec.name not in self.state_names and spec.shape[:1] == full[:1] and len(spec.shape) >= len(full) - 1

    # ------------------------------------------------------------------------------------------------- as a row program

    def program(self, w: Workload) -> RowProgram:
        """The module as a RowProgram over its first input of most dimensions, leading ones folded into rows. Raises LoweringError
        when it is more than element-wise, row-reducing or row-scanning."""
        inputs = {s.name: Input(self._axes(s), s.shape, TORCH_DTYPES[s.dtype]) for s in self._specs if s.role == "in"}
        model = copy.deepcopy(self.model).to("meta")

        def function(**tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            args, state = self.split(tensors)
            return tuple(tree_leaves(torch.func.functional_call(model, state, tuple(args))))

        return lower(function, inputs, tuple(s.name for s in self._specs if s.role == "out"))

    def matrix(self, w: Workload) -> tuple[int, int]:
        """(rows, cols) of the matrix that `program` is about; an element-wise one has everything but the first axis in columns."""
        shape = self._full().shape
        program = self._lowered
        if program is not None and len(shape) > 1 and all(n.shape in ("full", "one") for n in program.nodes):
            joins = ("reduce", "scan", "pick", "rotate_half", "index")
            if not any(n.op in joins for n in program.nodes):
                return shape[0], math.prod(shape[1:])
        return math.prod(shape[:-1]), shape[-1] if shape else 1

    @cached_property
    def _lowered(self) -> RowProgram | None:
        try:
            return self.program(Workload(problem=self.name, axes={}))
        except LoweringError:
            return None

    def _full(self) -> TensorSpec:
        return max((a for a in self._arguments if isinstance(a, TensorSpec)), key=lambda s: len(s.shape))

    def _axes(self, spec: TensorSpec) -> tuple[str, ...]:
        full = self._full().shape
        lead = tuple(f"d{i}" for i in range(len(full) - 1))
        if spec.shape == full:
            return (*lead, "cols")
        if math.prod(spec.shape) == 1:
            return ("1",) * len(spec.shape)
        if spec.shape[-1:] == full[-1:] and math.prod(spec.shape[:-1]) == 1 and spec.dtype in ("fp16", "bf16", "fp32"):
            return (*("1",) * (len(spec.shape) - 1), "cols")
        if spec.shape in (full[:-1], (*full[:-1], 1)):
            return lead if spec.shape == full[:-1] else (*lead, "1")
        raise LoweringError(f"{spec.name} of shape {spec.shape} is neither a matrix, a row, a column nor a number beside {full}")


def _meta(spec: TensorSpec) -> torch.Tensor:
    dtype = TORCH_DTYPES[spec.dtype]
    return torch.empty(spec.shape, dtype=torch.float32 if dtype.is_floating_point else dtype, device="meta")
