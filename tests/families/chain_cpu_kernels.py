"""Compiles and calls what chain_cpu renders, for its tests: as the cpu target does, without a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import torch

from kernelwright.evaluate.buffers import Buffers, Shape
from kernelwright.families.chain_cpu import ChainCpu
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.plan import evaluate, unmet
from kernelwright.problems import problem_of
from kernelwright.records import Candidate, ScalarArg, TensorArg, Workload
from kernelwright.targets.cpu import FLAGS, instruction_sets
from kernelwright.targets.target import Bound

DEVICE = DeviceFacts(target="cpu", l2_bytes=2 << 20, isa=instruction_sets())
FAMILY = ChainCpu()


class Memory:
    """What Buffers needs of a device."""

    def allocate(self, size: int) -> torch.Tensor:
        raw = torch.empty(size + 256, dtype=torch.uint8)
        return raw[-raw.data_ptr() % 256 :][:size]


@cache
def compiled(source: str, flags: tuple[str, ...], directory: Path) -> ctypes.CDLL:
    path = directory / f"{abs(hash((source, flags)))}.cpp"
    path.write_text(source)
    library = path.with_suffix(".so")
    done = subprocess.run(["g++", *FLAGS, *flags, "-Wall", str(path), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr[:2000]
    return ctypes.CDLL(str(library))


def run(candidate: Candidate, bound: Bound, directory: Path) -> None:
    assert candidate.plan is not None
    assert unmet(candidate.plan, bound.names) is None
    function = compiled(candidate.source, candidate.flags, directory).kernel
    function.restype = None
    size = evaluate(candidate.plan.workspace, bound.names)
    guarded = torch.full((size + 512,), 0xFF, dtype=torch.uint8)
    arguments = []
    for arg in candidate.plan.launches[0].args:
        if isinstance(arg, TensorArg):
            arguments.append(ctypes.c_void_p(bound.tensors[arg.name].data_ptr()))
        elif isinstance(arg, ScalarArg):
            assert not isinstance(arg.value, float)
            arguments.append(ctypes.c_int64(evaluate(arg.value, bound.names)))
        else:
            arguments.append(ctypes.c_void_p(guarded.data_ptr() + 256))
    function(*arguments)
    assert (guarded[:256] == 0xFF).all() and (guarded[256 + size :] == 0xFF).all(), "memory beside the workspace was written"


def best(w: Workload, **changes) -> Config:
    return {**FAMILY.seeds(w, DEVICE)[0], **changes}


def outputs_of(candidate: Candidate, w: Workload, inputs: dict[str, torch.Tensor], shape: Shape, directory: Path):
    """Outputs of one run from poisoned buffers of that shape. Asserts that inputs and guard bands are as they were."""
    buffers = Buffers(Memory(), problem_of(w), w, shape=shape)  # pyright: ignore[reportArgumentType]: it only allocates
    buffers.fill(inputs)
    buffers.poison()
    run(candidate, buffers.bounds[0], directory)
    outputs = {name: tensor.clone() for name, tensor in buffers.outputs().items()}
    for name, tensor in buffers.inputs().items():
        assert torch.equal(tensor.nan_to_num(), inputs[name].nan_to_num()), f"input {name} was changed"
    assert buffers.disturbed() is None
    return outputs
