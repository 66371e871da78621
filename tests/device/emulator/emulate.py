"""Runs a CUDA Candidate's launch plan on the host through emulator.h: plan expressions, guard bands, workspace and all."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelwright.plan import evaluate, unmet
from kernelwright.records import Candidate, ScalarArg, TensorArg, WorkspaceArg

HERE = Path(__file__).parent
DEVICE = Path(__file__).parents[3] / "src" / "kernelwright" / "device"
HEADERS = ("copy", "layout", "mma", "numeric", "pdl")
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(([^)]*)\)')
_built: dict[str, ctypes.CDLL] = {}


def _key(candidate: Candidate, sm: int) -> str:
    return hashlib.sha256(f"{sm}{candidate.source}".encode()).hexdigest()[:12]


def prepare(candidates: list[tuple[Candidate, int]], folder: Path) -> None:
    """Compiles candidates for their architectures with g++, all in one go: each in a namespace of its own, with one
    `run_KEY_NAME` per kernel that takes an array of pointers to the arguments."""
    texts = {_key(c, sm): (c.source, sm) for c, sm in candidates if _key(c, sm) not in _built}
    if not texts:
        return
    (folder / "kernelwright").mkdir(exist_ok=True)
    shutil.copy(DEVICE / "layout.cuh", folder / "kernelwright" / "layout.cuh")  # plain C++: the real one
    parts = [f'#include "kernelwright/{name}.cuh"\n' for name in HEADERS]
    parts += [_translate(key, source, sm) for key, (source, sm) in texts.items()]
    text = folder / f"{next(iter(texts))}.cpp"
    text.write_text("".join(parts))
    library = text.with_suffix(".so")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-include", str(HERE / "emulator.h"), f"-I{HERE}", f"-I{folder}"]
    done = subprocess.run([*command, str(text), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    loaded = ctypes.CDLL(str(library))
    _built.update(dict.fromkeys(texts, loaded))


def _translate(key: str, source: str, sm: int) -> str:
    wrappers = []
    for name, parameters in _KERNEL.findall(source):
        types = [p.strip().rsplit(" ", 1)[0] for p in parameters.split(",")]
        arguments = ", ".join(f"*({t}*)arguments[{i}]" for i, t in enumerate(types))
        wrappers.append(
            f"static void** arguments_{name}; static void body_{name}() {{ void** arguments = arguments_{name}; {name}({arguments}); }}\n"
            f'extern "C" const char* run_{key}_{name}(void** a, unsigned x, unsigned y, unsigned z,'
            " int threads, size_t smem, unsigned seed)"
            f" {{ arguments_{name} = a; return emulator::launch(body_{name}, dim3_{{x, y, z}}, threads, smem, seed); }}\n"
        )
    source = source.replace('extern "C" ', "").replace("extern __shared__ __align__(128) unsigned char dynamic_smem[];", "")
    architecture = f"#undef __CUDA_ARCH__\n#define __CUDA_ARCH__ {sm}0\n"
    return f"{architecture}namespace kernel_{key} {{\n{source}\n{''.join(wrappers)}}}\n"


@dataclass(frozen=True)
class Result:
    workspace: torch.Tensor
    conflicts: int
    """Phases of ldmatrix whose 8 rows did not fall into 8 different groups of banks."""


def run(
    candidate: Candidate,
    tensors: dict[str, torch.Tensor],
    axes: dict[str, int],
    *,
    sm: int = 80,
    seed: int = 1,
    repeats: int = 1,
    sms: int = 4,
) -> Result:
    """Runs the plan `repeats` times on the tensors (2-D, row stride may exceed the row); `prepare` must have compiled it.

    Raises AssertionError with the emulator's words on any fault.
    """
    plan = candidate.plan
    assert plan is not None
    names = {**axes, "sms": sms}
    for name, t in tensors.items():
        address = t.data_ptr()
        names |= {
            f"ld_{name}": t.stride(0) if t.shape[1] else 0,
            f"numel_{name}": t.numel(),
            f"align_{name}": min(256, address & -address) if address else 256,
        }
    assert (reason := unmet(plan, names)) is None, reason
    size = evaluate(plan.workspace, names)
    workspace = torch.zeros(size // 4, dtype=torch.int32) if plan.workspace_zeroed else torch.full((size // 4,), -1, dtype=torch.int32)
    key = _key(candidate, sm)
    library = _built[key]
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
            function = getattr(library, f"run_{key}_{launch.kernel}")
            function.restype = ctypes.c_char_p
            fault = function(pointers, *grid, evaluate(launch.block[0], names), ctypes.c_size_t(evaluate(launch.smem, names)), seed)
            assert not fault, fault.decode()
    return Result(workspace, library.emulator_ldmatrix_conflicts())
