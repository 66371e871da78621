"""Runs simple CUDA C++ candidates on the host, thread by thread, to test their arithmetic and addressing without a GPU.

It compiles the candidate's own source with g++ and a small header (`cuda_shim.h`). Covered: one-, two- and three-dimensional
grids, static and dynamic shared memory, __syncthreads, shuffles with masks, vector loads and stores, conversions, and the PTX
instructions in `PTX`. Not covered: tensor cores, asynchronous copies, atomics, clusters, and what several blocks do at once.
Functions that approximate to 1 or 2 ulp on a GPU (ex2.approx, rcp.approx) are computed to full float precision here, denormals are
flushed where PTX says so, and tanh.approx keeps 11 bits.

What it finds: wrong results, deadlocks at divergent barriers, collectives with missing lanes, misaligned loads, writes outside
buffers (guard bands), and missing barriers (the threads run in ascending, then in descending order; both must give the same bits).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from kernelwright.plan import evaluate, unmet
from kernelwright.problems.problem import TORCH_DTYPES, TensorSpec
from kernelwright.records import Candidate, Launch, ScalarArg, TensorArg

PTX = {
    "max.NaN.f32": "{0} = emulator::max_nan({1}, {2})",
    "min.NaN.f32": "{0} = emulator::min_nan({1}, {2})",
    "ex2.approx.ftz.f32": "{0} = emulator::ftz(std::exp2(emulator::ftz({1})))",
    "rcp.approx.ftz.f32": "{0} = emulator::ftz(1.0f / emulator::ftz({1}))",
    "sqrt.approx.f32": "{0} = std::sqrt({1})",
    "tanh.approx.f32": "{0} = emulator::rough(std::tanh({1}))",
    "cvt.rn.f16x2.f32": "{0} = emulator::pack(emulator::half_of({2}), emulator::half_of({1}))",
    "cvt.rn.bf16x2.f32": "{0} = emulator::pack(emulator::bfloat_of({2}), emulator::bfloat_of({1}))",
    "cvt.f32.f16": "{0} = emulator::float_of_half({1})",
    "dp4a.u32.u32": "{0} = emulator::dot_bytes({1}, {2}, {3})",
    "griddepcontrol.wait": "",
    "griddepcontrol.launch_dependents": "",
}
"""Host statement of each PTX instruction; {0}, {1} ... are its operands in order."""

_ASM = re.compile(r"asm\s*(?:volatile)?\s*\(\s*\"([^\"]*)\"(.*?)\)\s*;", re.DOTALL)
_OPERAND = re.compile(r"\"[=+]?[a-z]\"\s*\(((?:[^()]|\([^()]*\))*)\)")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*)?([\w:<> ]+?)\s+(\w+)\[\];")

GUARD = 256
"""Elements before and behind each buffer that nobody may write."""


class EmulatorError(AssertionError):
    """The kernel did something that no kernel may do."""


def to_host(text: str) -> str:
    """CUDA C++ with PTX as C++ without."""

    def statement(match: re.Match[str]) -> str:
        instruction = match[1].strip().rstrip(";").split()[0]
        if instruction not in PTX:
            raise EmulatorError(f"the emulator does not know the PTX instruction {instruction}; add it to PTX")
        # one instruction a statement, operands %0, %1 ... used in order: what all our headers do
        return PTX[instruction].format(*(f"({o})" if i else o for i, o in enumerate(_OPERAND.findall(match[2])))) + ";"

    text = _ASM.sub(statement, text)
    return _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(emulator::dynamic_shared);", text)


def included(source: str, headers: Mapping[str, str]) -> set[str]:
    """The headers that a source includes, directly or through another."""
    found: set[str] = set()
    todo = [source]
    while todo:
        new = set(re.findall(r'#include "(kernelwright/[^"]+)"', todo.pop())) & set(headers) - found
        found |= new
        todo += [headers[name] for name in new]
    return found


class Emulated:
    """A candidate compiled for the host."""

    def __init__(self, candidate: Candidate, headers: Mapping[str, str], folder: Path) -> None:
        assert candidate.plan is not None
        self.plan = candidate.plan
        for name in included(candidate.source, headers):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(to_host(headers[name]))
        kernels = {launch.kernel for launch in self.plan.launches}
        entries = "".join(
            f'extern "C" const char* emulate_{k}(void** values, const unsigned* d, int descending) {{\n'
            f"    return emulator::launch<{k}>({k}, values, {{d[0], d[1], d[2]}}, {{d[3], d[4], d[5]}}, descending);\n}}\n"
            for k in kernels
        )
        source = folder / f"{candidate.id}.cpp"
        source.write_text(f'#include "cuda_shim.h"\n{to_host(candidate.source)}\n{entries}')
        library = source.with_suffix(".so")
        include = [f"-I{folder}", f"-I{Path(__file__).parent}"]
        flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
        done = subprocess.run(["g++", *flags, *include, str(source), "-o", str(library)], capture_output=True, text=True)
        if done.returncode:
            raise EmulatorError(f"g++ does not compile it: {done.stderr[:3000]}")
        self.library = ctypes.CDLL(str(library))

    def run(
        self,
        specs: tuple[TensorSpec, ...],
        inputs: Mapping[str, torch.Tensor],
        axes: Mapping[str, int],
        *,
        pad: Mapping[str, int] | None = None,
        offset: int = 0,
        sms: int = 2,
    ) -> dict[str, torch.Tensor] | str:
        """Outputs by name, or the requirement of the plan that does not hold.

        `pad`: further elements between the rows of a matrix, by tensor name. `offset`: elements between an aligned address and
        each buffer. Poison (NaN) fills padding and outputs.
        """
        results = []
        for descending in (False, True):
            buffers = {spec.name: Buffer(spec, inputs.get(spec.name), (pad or {}).get(spec.name, 0), offset) for spec in specs}
            names = {**axes, "sms": sms}
            for name, buffer in buffers.items():
                names |= {f"ld_{name}": buffer.ld, f"numel_{name}": buffer.spec.numel, f"align_{name}": buffer.align}
            if reason := unmet(self.plan, names):
                return reason
            for launch in self.plan.launches:
                self._launch(launch, buffers, names, descending)
            for buffer in buffers.values():
                buffer.check()
            results.append({n: b.values() for n, b in buffers.items() if b.spec.role == "out"})
        for name, first in results[0].items():
            if not torch.equal(first.nan_to_num(nan=123.0), results[1][name].nan_to_num(nan=123.0)):
                raise EmulatorError(f"output {name} depends on the order in which threads run: a barrier is missing")
        return results[0]

    def _launch(self, launch: Launch, buffers: Mapping[str, Buffer], names: Mapping[str, int], descending: bool) -> None:
        ctypes_of = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
        values: list[ctypes._SimpleCData] = []
        for arg in launch.args:
            match arg:
                case TensorArg(name=name):
                    values.append(ctypes.c_void_p(buffers[name].address))
                case ScalarArg(ctype=kind, value=value):
                    number = value if isinstance(value, float) else evaluate(value, names)
                    values.append(ctypes_of[kind](number))
                case _:
                    raise EmulatorError(f"the emulator does not pass arguments of type {type(arg).__name__}")
        dims = [evaluate(e, names) for e in (*launch.grid, *launch.block)]
        if min(dims) < 1:
            raise EmulatorError(f"grid and block {dims} hold a size below 1: no GPU launches that")
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        function = self.library[f"emulate_{launch.kernel}"]
        function.restype = ctypes.c_char_p
        if message := function(pointers, (ctypes.c_uint * 6)(*dims), int(descending)):
            raise EmulatorError(message.decode())


class Buffer:
    """One tensor in memory of its own, with guard bands and padded rows."""

    def __init__(self, spec: TensorSpec, given: torch.Tensor | None, pad: int, offset: int) -> None:
        self.spec = spec
        dtype = TORCH_DTYPES[spec.dtype]
        cols = spec.shape[-1] if spec.shape else 1
        self.rows = spec.numel // cols if cols else 0
        self.ld = cols + pad
        self.used = self.rows * self.ld
        poison = float("nan") if dtype.is_floating_point else -1
        flat = torch.full((self.used + 2 * GUARD + 128 + offset,), poison, dtype=dtype)
        start = GUARD + (-(flat.data_ptr() // flat.element_size() + GUARD)) % (256 // flat.element_size()) + offset
        self.flat, self.start = flat, start
        self.address = flat.data_ptr() + start * flat.element_size()
        self.align = min(256, self.address & -self.address)
        self.matrix = flat[start : start + self.used].view(self.rows, self.ld)[:, :cols] if self.used else flat[:0]
        if given is not None and self.used:
            self.matrix.copy_(given.reshape(self.rows, cols))
        self.before = flat.clone()

    def values(self) -> torch.Tensor:
        return self.matrix.reshape(self.spec.shape).clone() if self.used else torch.empty(self.spec.shape, dtype=self.flat.dtype)

    def check(self) -> None:
        """Raises EmulatorError when something else than the output's own elements has changed."""
        after, before = self.flat.clone(), self.before
        if self.spec.role == "out" and self.used:
            cols = self.matrix.shape[1]
            for flat in (after, before):
                flat[self.start : self.start + self.used].view(self.rows, self.ld)[:, :cols] = 0
        as_bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[after.element_size()]
        if not torch.equal(after.view(as_bits), before.view(as_bits)):
            what = "an input" if self.spec.role == "in" else "memory outside"
            raise EmulatorError(f"the kernel writes to {what} {self.spec.name}")
