"""Runs a CUDA Candidate's launch plan on the host through emulator.h: plan expressions, guard bands, workspace and all."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from kernelwright.plan import evaluate, unmet
from kernelwright.records import Candidate, ScalarArg, TensorArg, WorkspaceArg

HERE = Path(__file__).parent
DEVICE = Path(__file__).parents[3] / "src" / "kernelwright" / "device"
_built: dict[str, ctypes.CDLL] = {}
_folder = Path(tempfile.mkdtemp(prefix="kernelwright-emulator-"))


def build(candidate: Candidate, sm: int) -> ctypes.CDLL:
    """The candidate's text, compiled by g++ with one `run_NAME` per kernel that takes an array of pointers to arguments."""
    key = hashlib.sha256(f"{sm}{candidate.source}".encode()).hexdigest()[:16]
    if key in _built:
        return _built[key]
    (_folder / "kernelwright").mkdir(exist_ok=True)
    shutil.copy(DEVICE / "layout.cuh", _folder / "kernelwright" / "layout.cuh")  # plain C++: the real one
    wrappers = []
    for name, parameters in re.findall(r'extern "C" __global__ void __launch_bounds__\(\w+\)\s+(\w+)\(([^)]*)\)', candidate.source):
        types = [p.strip().rsplit(" ", 1)[0] for p in parameters.split(",")]
        arguments = ", ".join(f"*({t}*)arguments[{i}]" for i, t in enumerate(types))
        wrappers.append(
            f"static void** arguments_{name}; static void body_{name}() {{ void** arguments = arguments_{name}; {name}({arguments}); }}\n"
            f'extern "C" const char* run_{name}(void** arguments, unsigned x, unsigned y, unsigned z, int threads, size_t smem, unsigned seed)'
            f" {{ arguments_{name} = arguments; return emulator::launch(body_{name}, dim3_{{x, y, z}}, threads, smem, seed); }}"
        )
    text = _folder / f"{key}.cpp"
    text.write_text(candidate.source + "\n" + "\n".join(wrappers))
    library = _folder / f"{key}.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-D__CUDA_ARCH__={sm}0", "-include", str(HERE / "emulator.h")]
    done = subprocess.run([*command, f"-I{HERE}", f"-I{_folder}", str(text), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    _built[key] = ctypes.CDLL(str(library))
    return _built[key]


def run(
    candidate: Candidate, tensors: dict[str, torch.Tensor], axes: dict[str, int], *, sm: int = 80, seed: int = 1, repeats: int = 1, sms: int = 4
) -> tuple[ctypes.CDLL, torch.Tensor]:
    """Runs the plan `repeats` times on the tensors (2-D, row stride may exceed the row). Returns the library and the workspace.

    Raises AssertionError with the emulator's words on any fault.
    """
    plan = candidate.plan
    assert plan is not None
    names = {**axes, "sms": sms}
    for name, t in tensors.items():
        address = t.data_ptr()
        names |= {f"ld_{name}": t.stride(0), f"numel_{name}": t.numel(), f"align_{name}": min(256, address & -address) if address else 256}
    assert (reason := unmet(plan, names)) is None, reason
    size = evaluate(plan.workspace, names)
    workspace = torch.zeros(size // 4, dtype=torch.int32) if plan.workspace_zeroed else torch.full((size // 4,), -1, dtype=torch.int32)
    library = build(candidate, sm)
    library.emulator_clear()
    for t in (*tensors.values(), workspace):
        if t.numel():
            used = (t.shape[0] - 1) * t.stride(0) + t.shape[1] if t.dim() == 2 else t.numel()
            library.emulator_add_range(ctypes.c_void_p(t.data_ptr()), ctypes.c_size_t(used * t.element_size()))
    for _ in range(repeats):
        for launch in plan.launches:
            values = []
            for arg in launch.args:
                match arg:
                    case TensorArg(name=name):
                        values.append(ctypes.c_void_p(tensors[name].data_ptr()))
                    case WorkspaceArg(offset=offset):
                        values.append(ctypes.c_void_p(workspace.data_ptr() + evaluate(offset, names)))
                    case ScalarArg(ctype=kind, value=value):
                        values.append({"i32": ctypes.c_int32, "i64": ctypes.c_int64}[kind](evaluate(value, names)))
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
            grid = [evaluate(g, names) for g in launch.grid]
            function = getattr(library, f"run_{launch.kernel}")
            function.restype = ctypes.c_char_p
            fault = function(pointers, *grid, evaluate(launch.block[0], names), ctypes.c_size_t(evaluate(launch.smem, names)), seed)
            assert not fault, fault.decode()
    return library, workspace
