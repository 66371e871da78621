"""CUDAHercules (arXiv 2605.08467): its tasks from a checkout, under our timing and our checks where a task allows that.

A task of class 2 is a `def.py` that draws inputs and has a reference in PyTorch: both become a Workload in KernelBench's form, so that its
answers meet fresh inputs, a float64 reference, our bounds and our clock instead of its own (three seeds, `allclose` against a compiled
reference at up to 5e-2, repeated calls on the same pointers). An answer's `solution.cu` has a host function that launches; it runs as a
Python candidate does, in a process of its own, through a module written here that compiles and calls it.

The other classes are programs that check and time themselves: an answer is compiled into the harness (class 1), or prints its own figures
(classes 3 and 4). Their numbers are the answer's to forge, so they are not run; for each it is said why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.bench.results import Task
from kernelwright.problems import ProblemError
from kernelwright.records import Workload

SUITE = "cudahercules"
CLASSES = {1: "single kernel", 2: "module", 3: "application", 4: "challenge"}
_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}
REFERENCE = "reference.cu"


def tasks(path: Path | None, sm: int = 0) -> list[Task]:
    """All tasks of a checkout, those that cannot run here with the reason. `sm`: of the GPU, 90 for sm_90; 0 for none.
    Raises ProblemError."""
    if path is None:
        raise ProblemError("cudahercules needs a checkout of CUDAHercules; name its folder with --path")
    root = path / "tasks" if (path / "tasks").is_dir() else path
    files = sorted(root.glob("class*/**/task.yaml"))
    if not files:
        raise ProblemError(f"{path} is no checkout of CUDAHercules: it has no tasks/class1/.../task.yaml; name another with --path")
    return [_task(file, root, number, sm) for number, file in enumerate(files, 1)]


def _task(file: Path, root: Path, number: int, sm: int) -> Task:
    key = file.parent.relative_to(root).as_posix()
    try:
        about = read_yaml(file.read_text(encoding="utf-8"))
        kind = int(about.get("task_class", 0))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        return Task(suite=SUITE, key=key, number=number, name=file.parent.name, skipped="problem", why=f"{file} cannot be read: {error}")
    hardware: Any = about.get("hardware") or {}
    task = Task(
        suite=SUITE,
        key=key,
        number=number,
        name=str(about.get("name") or file.parent.name),
        level=f"class {kind}",
        group=CLASSES.get(kind, "unknown"),
        domain=str(about.get("domain") or ""),
    )
    needed = int(hardware.get("min_sm") or 0) if isinstance(hardware, Mapping) else 0
    if sm and needed > sm:
        return task.replace(skipped="architecture", why=f"it needs sm_{needed}, and this GPU is sm_{sm}")
    if kind != 2:
        return task.replace(skipped="harness", why=_OTHERS.get(kind, f"class {kind} is unknown"))
    return _class2(task, file.parent)


_OTHERS = {
    1: "an answer of class 1 is included into a program that draws its inputs, checks and times itself: it could print any figure, and "
    "there are no tensors to check from outside; the suite experts has such kernels under our rules",
    3: "an application of class 3 reports its own correctness or time; the suite experts has applications whose validators never trust it",
    4: "a challenge of class 4 has no path on which an answer is run and checked",
}


def _class2(task: Task, folder: Path) -> Task:
    try:
        text = (folder / "def.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return task.replace(skipped="sources", why=f"{task.key} has no readable def.py")
    missing = [name for name in ("get_inputs", "get_outputs", "reference_fn") if not re.search(rf"^def {name}\(", text, re.MULTILINE)]
    if missing:
        return task.replace(
            skipped="sources", why=f"its def.py defines no {missing[0]}: there is nothing to draw inputs or references from"
        )
    if "float64" in text or "complex128" in text:
        return task.replace(skipped="dtype", why="its tensors are float64; kernelwright's Workloads end at fp32")
    if re.search(r"float8|torch\.int8|uint8|fp4", text):
        return task.replace(skipped="dtype", why="its tensors are of 8 bits or fewer, packed in a way that only its own program reads")
    # the first input's type; tensors of another floating type are cast to it, and back for the host function
    drawn = text[text.index("def get_inputs") :]
    dtype = next((_DTYPES[d] for d in re.findall(r"dtype\s*=\s*torch\.(\w+)", drawn) if d in _DTYPES), "fp32")
    return task.replace(workload=Workload(problem=f"kernelbench:{folder.name}", axes={}, dtype=dtype, source=text + _ADAPTER))


_ADAPTER = '''

# ---- kernelwright: the same task in KernelBench's form
import torch as _torch
from torch.overrides import TorchFunctionMode as _Mode


class _Here(_Mode):
    """On whatever device is the default, and in float64 where that is given: casts down would take the reference's precision."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            del kwargs["device"]
        double = any(isinstance(a, _torch.Tensor) and a.dtype == _torch.float64 for a in args)
        name = getattr(func, "__name__", "")
        if double and name in ("float", "half", "bfloat16"):
            return args[0]
        if double and name in ("to", "type"):
            kept = tuple(a for a in args[1:] if not (isinstance(a, _torch.dtype) and a.is_floating_point))
            if isinstance(kwargs.get("dtype"), _torch.dtype) and kwargs["dtype"].is_floating_point:
                del kwargs["dtype"]
            return func(args[0], *kept, **kwargs) if kept or kwargs else args[0]
        if double and isinstance(kwargs.get("dtype"), _torch.dtype) and kwargs["dtype"].is_floating_point:
            kwargs["dtype"] = _torch.float64
        return func(*args, **kwargs)


_drawn, _computed = get_inputs, reference_fn
_names = []


def get_inputs():
    with _Here():
        pairs = _drawn()
    _names[:] = [name for name, _ in pairs]
    return [_unlike(tensor) for _, tensor in pairs]


def _unlike(x):
    """An input of ones or zeros (a norm's weight and bias) is varied: an answer that leaves it out would be right otherwise."""
    if x.is_meta or not x.is_floating_point() or x.numel() < 2 or not bool((x == x.flatten()[0]).all()):
        return x
    change = 2 * _torch.rand_like(x) - 1
    return _torch.where(x == 0, 0.05 * change, x * (1 + 0.25 * change))


def get_init_inputs():
    return []


class Model(_torch.nn.Module):
    def __init__(self):
        super().__init__()
        if not _names:  # in a process that draws no inputs
            with _torch.device("meta"):
                get_inputs()

    def forward(self, *tensors):
        with _Here():
            outputs = _computed(list(zip(_names, tensors)))
        kind = tensors[0].dtype  # of all that a Workload has of floating type
        return tuple(y.to(kind) if y.is_floating_point() else y for _, y in outputs)
'''


def wrapped(source: str, w: Workload, command: tuple[str, ...], root: str = "") -> str:
    """A Python candidate that compiles `solution.cu` (or `reference.cu`) with the command and calls its host function. `root`: the
    checkout, for the folders that its def.py names as includes."""
    return _WRAPPER.format(task=w.source, source=source, command=list(command), root=root)


NVCC = ("nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-x", "cu")

_WRAPPER = '''import ctypes
import os
import re
import subprocess
import tempfile

import torch

_task = {{}}
exec(compile({task!r}, "def.py", "exec"), _task)
_signature = re.search(r"(\\w+)\\s*\\(([^)]*)\\)", re.sub(r"//[^\\n]*", "", _task["FUNCTION_SIGNATURE"]))
_parameters = [p.strip().rsplit(None, 1) for p in _signature[2].split(",") if p.strip()]


def _built():
    folder = tempfile.mkdtemp()
    file, library = os.path.join(folder, "solution.cu"), os.path.join(folder, "solution.so")
    with open(file, "w") as out:
        out.write({source!r})
    command = list({command!r})
    if command[0].endswith("nvcc"):
        major, minor = torch.cuda.get_device_capability()
        arch = f"{{major}}{{minor}}" + ("a" if major >= 9 else "")
        command += ["-gencode", f"arch=compute_{{arch}},code=sm_{{arch}}"]
        command += [f"-I{{os.path.join({root!r}, i)}}" for i in _task.get("REFERENCE_EXTRA_INCLUDES", []) if {root!r}]
        flags = _task.get("REFERENCE_EXTRA_CUDA_FLAGS", []) if {root!r} else []
        command += [f for i, f in enumerate(flags) if "-gencode" not in flags[max(i - 1, 0) : i + 1]]  # for this GPU alone
        command += list(_task.get("REFERENCE_EXTRA_LDFLAGS", []))
    done = subprocess.run([*command, file, "-o", library], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:] or f"the compiler exited with {{done.returncode}}")
    return getattr(ctypes.CDLL(library), _signature[1])


def _drawn():
    """Names and types of the inputs as the task draws them: a Workload has all of floating type in one."""
    try:
        with torch.device("meta"), _task["_Here"]():
            pairs = _task["_drawn"]()
    except Exception:  # it needs values
        with _task["_Here"]():
            pairs = _task["_drawn"]()
    return [(name, tensor.dtype) for name, tensor in pairs]


def _scalar(kind, value):
    if "double" in kind or "float" in kind:
        return ctypes.c_double(value) if "double" in kind else ctypes.c_float(value)
    return ctypes.c_int64(value) if any(word in kind for word in ("64", "long", "size_t")) else ctypes.c_int(int(value))


_launch = _built()
_launch.restype = None


class ModelNew(torch.nn.Module):
    """Tensors go to the host function as it declares them; the stream is PyTorch's."""

    def __init__(self):
        super().__init__()
        self.drawn = _drawn()

    def forward(self, *tensors):
        named = [(name, tensor.to(kind)) for (name, kind), tensor in zip(self.drawn, tensors)]
        outputs = _task["get_outputs"](named)
        found = dict(named) | dict(outputs)
        arguments = []
        for kind, name in _parameters:
            plain = name.lstrip("*")
            pointer = "*" in kind or name.startswith("*")
            if "cudaStream_t" in kind:
                stream = torch.cuda.current_stream().cuda_stream if tensors[0].is_cuda else 0
                arguments.append(ctypes.c_void_p(stream))
            elif pointer:
                arguments.append(ctypes.c_void_p(found[plain].data_ptr()))
            else:
                arguments.append(_scalar(kind, _task["SCALAR_ARGS"][plain]))
        _launch(*arguments)
        results = tuple(t.to(tensors[0].dtype) if t.is_floating_point() else t for _, t in outputs)
        return results if len(results) > 1 else results[0]
'''


# ------------------------------------------------------------------------------------------------------------------ YAML


def read_yaml(text: str) -> dict[str, Any]:
    """What `task.yaml` uses of YAML: mappings by indentation, lists of scalars, quoted and plain scalars, `{}` and `[]`.
    Raises ValueError for anything else."""
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    last: tuple[dict[str, Any], str] | None = None
    block: tuple[int, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        if block is not None:
            if not line.strip() or indent > block[0]:
                block[1].append(line.strip())
                continue
            block = None
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        body = line.strip()
        if body.startswith("- ") or body == "-":
            if last is None:
                raise ValueError(f"line {number} is an item of no list")
            mapping, key = last
            if not isinstance(mapping.get(key), list):
                mapping[key] = []
            mapping[key].append(_scalar(body[1:].strip()))
            continue
        match = re.match(r"([\w.-]+):(?:\s+(.*))?$", body)
        if match is None:
            if last is not None and isinstance(last[0].get(last[1]), str):  # a plain scalar goes on in the next line
                last[0][last[1]] += " " + body
                continue
            raise ValueError(f"line {number} is neither `name: value` nor an item")
        while indent <= stack[-1][0]:
            stack.pop()
        mapping, value = stack[-1][1], (match[2] or "").strip()
        last = (mapping, match[1])
        if value in ("|", ">", "|-", ">-", "|+", ">+"):
            block = (indent, [])
            mapping[match[1]] = ""
        elif value:
            mapping[match[1]] = _scalar(value)
        else:
            inner: dict[str, Any] = {}
            mapping[match[1]] = inner
            stack.append((indent, inner))
    return root


def _scalar(text: str) -> Any:
    if text in ("{}", "[]"):
        return {} if text == "{}" else []
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].encode().decode("unicode_escape")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d*(e-?\d+)?|-?\d+e-?\d+", text):
        return float(text)
    return {"true": True, "false": False, "null": None}.get(text, text)
