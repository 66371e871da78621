"""Runs a CUDA Candidate's launch plan on the host through emulator.h: plan expressions, guard bands, workspace, tensor maps and all."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import DTYPES, Candidate
from kernelwright.targets import launch as launches
from kernelwright.targets.target import CandidateFault

HERE = Path(__file__).parent
DEVICE = Path(__file__).parents[3] / "src" / "kernelwright" / "device"
HEADERS = ("copy", "layout", "mma", "numeric", "pdl", "tensormap", "barrier", "tma", "wgmma", "epilogue")
REAL = ("layout", "tensormap", "epilogue")
"""Headers that are plain C++: the real ones serve."""
SHARED_MEMORY = 227 * 1024
_KERNEL = re.compile(
    r'extern "C"\s+__global__\s+(?:void\s+)?__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+(?:void\s+)?(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)'
)
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s*)?([\w:<> ]+?)\s+(\w+)\[\];")
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
    for name in REAL:
        shutil.copy(DEVICE / f"{name}.cuh", folder / "kernelwright" / f"{name}.cuh")
    parts = [f'#include "kernelwright/{name}.cuh"\n' for name in HEADERS]
    parts += [_translate(key, source, sm) for key, (source, sm) in texts.items()]
    text = folder / f"{next(iter(texts))}.cpp"
    text.write_text("".join(parts))
    library = text.with_suffix(".so")
    # without fortify, which takes a longjmp between stacks for an error; without unique symbols, which two libraries would share
    command = ["g++", "-std=c++17", "-O1", "-ftree-vectorize", "-U_FORTIFY_SOURCE", "-fno-gnu-unique", "-shared", "-fPIC", "-w"]
    command += ["-include", str(HERE / "emulator.h"), f"-I{HERE}", f"-I{folder}"]
    done = subprocess.run([*command, str(text), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    loaded = ctypes.CDLL(str(library))
    _built.update(dict.fromkeys(texts, loaded))


def _translate(key: str, source: str, sm: int) -> str:
    wrappers = []
    kernels = _KERNEL.findall(source)
    assert len(kernels) == source.count("__global__"), "the emulator does not understand the signature of a kernel"
    for name, parameters in kernels:
        types = [p.strip().rstrip("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") for p in parameters.split(",")]
        arguments = ", ".join(f"*({t.strip()}*)arguments[{i}]" for i, t in enumerate(types))
        sizes = ", ".join(f"sizeof({t.strip()})" for t in types)
        wrappers.append(
            f"static void** arguments_{name}; static void body_{name}() {{ void** arguments = arguments_{name}; {name}({arguments}); }}\n"
            f'extern "C" {{ int sizes_{key}_{name}[] = {{{sizes}, 0}}; }}\n'
            f'extern "C" const char* run_{key}_{name}(void** a, unsigned x, unsigned y, unsigned z, unsigned cx, unsigned cy, unsigned cz,'
            f" int threads, size_t smem, unsigned seed) {{\n    arguments_{name} = a;\n"
            f"    return emulator::launch(body_{name}, dim3_{{x, y, z}}, dim3_{{cx, cy, cz}}, threads, smem, seed);\n}}\n"
        )
    source = _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(emulator::shared_memory());", source.replace('extern "C" ', ""))
    assert "__shared__" not in source, "the emulator knows dynamic shared memory only"
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
    places = {}
    dtypes = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    for name, t in tensors.items():
        address = t.data_ptr()
        places[name] = launches.Tensor(address, dtypes[t.dtype])
        names |= {
            f"ld_{name}": t.stride(0) if t.shape[-1] else 0,
            f"numel_{name}": t.numel(),
            f"align_{name}": min(256, address & -address) if address else 256,
        }
    try:
        launches.refuse_unmet(plan, names)
        size = launches.workspace_bytes(plan, names)
        zeroed = plan.workspace_zeroed
        workspace = torch.zeros(size // 4, dtype=torch.int32) if zeroed else torch.full((size // 4,), -1, dtype=torch.int32)
        packed = launches.pack(plan, names, places, workspace.data_ptr(), size)
    except CandidateFault as error:
        raise AssertionError(str(error)) from None
    key = _key(candidate, sm)
    library = _built[key]
    library.emulator_clear()
    for t in (*tensors.values(), workspace):
        if t.numel():
            used = (t.shape[0] - 1) * t.stride(0) + t.shape[1] if t.dim() == 2 else t.numel()
            library.emulator_add_range(ctypes.c_void_p(t.data_ptr()), ctypes.c_size_t(used * t.element_size()))
    for _ in range(repeats):
        for launch in packed:
            _launch(library, key, launch, sm, seed)
    return Result(workspace, library.emulator_ldmatrix_conflicts())


def _launch(library: ctypes.CDLL, key: str, launch: launches.Packed, sm: int, seed: int) -> None:
    parameters = (ctypes.c_int * (len(launch.args) + 1)).in_dll(library, f"sizes_{key}_{launch.kernel}")
    sizes = tuple(parameters[: [*parameters, 0].index(0)])
    try:
        launches.check(launch, launches.KernelLimits(sm=sm, smem=SHARED_MEMORY, threads=1024, params=sizes))
    except CandidateFault as error:
        raise AssertionError(str(error)) from None
    assert launch.block[1:] == (1, 1), "the emulator numbers threads along x only"
    values = [_tensor_map(a) if isinstance(a, launches.TensorMap) else a for a in launch.args]
    buffers = [_aligned(v) for v in values]
    pointers = (ctypes.c_void_p * len(buffers))(*(address for _, address in buffers))
    function = getattr(library, f"run_{key}_{launch.kernel}")
    function.restype = ctypes.c_char_p
    fault = function(pointers, *launch.grid, *launch.cluster, launch.block[0], ctypes.c_size_t(launch.smem), ctypes.c_uint(seed))
    assert not fault, fault.decode()


def _aligned(value: bytes) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """A copy at a multiple of 64 bytes, and its address."""
    buffer = ctypes.create_string_buffer(len(value) + 64)
    address = -(-ctypes.addressof(buffer) // 64) * 64
    ctypes.memmove(address, value, len(value))
    return buffer, address


def _tensor_map(m: launches.TensorMap) -> bytes:
    """The emulator's own 128 bytes (`Map` in state.h)."""
    swizzle, element = launches.SWIZZLE_BYTES[m.swizzle] or 0, DTYPES[m.dtype]
    assert swizzle in (0, m.box[0] * element), "the emulator wants boxes as wide as their swizzle"
    dims, strides, box = (part + (0,) * (n - len(part)) for part, n in ((m.dims, 5), (m.strides, 4), (m.box, 10)))
    return struct.pack("<Q4H5Q4Q10I", m.address, len(m.dims), element, swizzle, 0x7A9, *dims, *strides, *box)
